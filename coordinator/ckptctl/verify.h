// ckptctl verify PATH: reads and checks every byte of a checkpoint, or of all visible ones of a
// job.
#pragma once

#include "coordinator/ckptctl/offline.h"

namespace ckpt::ckptctl {

// kDataLoss if anything is damaged; what it is was written to `out`.
Status Verify(const OfflineOptions& options, std::ostream& out);

}  // namespace ckpt::ckptctl
