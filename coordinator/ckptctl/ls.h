// ckptctl ls PATH: the checkpoints of a job, newest first.
#pragma once

#include "coordinator/ckptctl/offline.h"

namespace ckpt::ckptctl {

Status ListCheckpoints(const OfflineOptions& options, std::ostream& out);

}  // namespace ckpt::ckptctl
