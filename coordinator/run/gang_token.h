// The secret that the ckpt-runs of one gang share, where CKPT_GANG_TOKEN does not give one.
#pragma once

#include <string>

#include "libckpt/base/status.h"

namespace ckpt::run {

// What `.gang-token` in the store's directory holds, which all nodes of a gang share and only the
// job's user reads; made by whoever comes first. Errors: kPermissionDenied if others may read it.
Result<std::string> GangTokenOf(const std::string& store);

}  // namespace ckpt::run
