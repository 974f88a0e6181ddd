// A job as a YAML file describes it.
#pragma once

#include <string>

#include "ckpt/v1/types.pb.h"
#include "libckpt/base/status.h"

namespace ckpt::ckptctl {

// Reads `text`; `path` is for messages only. Errors: kInvalidArgument naming the key and its line.
Status ParseJobFile(const std::string& path, const std::string& text, v1::JobSpec* spec);

// "64MiB", "1.5 GiB", "4096": bytes.
Result<uint64_t> ParseBytes(const std::string& text);
// "500ms", "30s", "5m", "2h", "30" (seconds): milliseconds.
Result<uint64_t> ParseMillis(const std::string& text);

// "12" within [min, max].
Result<int64_t> ParseWhole(const std::string& text, int64_t min, int64_t max);
Status CheckJobClass(const std::string& name);

}  // namespace ckpt::ckptctl
