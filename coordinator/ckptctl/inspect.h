// ckptctl inspect PATH: what one checkpoint holds: files, tensors, values.
#pragma once

#include "coordinator/ckptctl/offline.h"

namespace ckpt::ckptctl {

Status Inspect(const OfflineOptions& options, std::ostream& out);

}  // namespace ckpt::ckptctl
