#include "coordinator/run/its_store.h"

namespace ckpt::run {

Status NeedsItsStore(storage::Store* store, const AttemptId& known) {
  CKPT_ASSIGN_OR_RETURN(const Epoch highest, store->HighestEpoch());
  if (highest >= known.epoch) return OkStatus();
  return FailedPrecondition(
      store->Describe() + " is not the store that " + known.ToString() + " came from: " +
      (highest.value() == 0
           ? "no launch of this job has ever used it"
           : "the newest launch that used it was epoch " + std::to_string(highest.value())) +
      ". Is its file system mounted? Nothing was changed there");
}

}  // namespace ckpt::run
