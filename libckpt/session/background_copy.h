// Copies of overlapped saves: made by one thread of our own that takes only what the training
// leaves of the cores, and, from the fence on, by the loop's thread as well.
//
// I1  A copy's `done` is called once, by whoever copied last, under no lock.
// I2  After Finish() was OK no copy is under way.
// I3  A copy that is asked about (`changed`) ends in Finish() only: whether it is one is known when
//     the state may change again, not before.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/status.h"
#include "libckpt/engine/shared_capture.h"
#include "libckpt/os/thread.h"

namespace ckpt::session {

class BackgroundCopies {
 public:
  using Done = std::function<void(const Status&)>;
  using Changed = std::function<bool()>;

  // Loop's thread. On an error `done` is not called. `changed` may be empty: asked in Finish, once
  // the copy is complete; true: the state was changed meanwhile, `done` hears kFailedPrecondition.
  Status Begin(std::unique_ptr<engine::SharedCapture> capture, Changed changed, Done done);
  // Loop's thread: copies what is left, on `threads` threads, and returns when every `done` has
  // been called. What became of a copy is for its `done`; kDeadlineExceeded is this call's own.
  Status Finish(uint32_t threads, const Deadline& deadline);

 private:
  struct Copy {
    std::unique_ptr<engine::SharedCapture> capture;
    Changed changed;
    Done done;
    Mutex mutex;
    CondVar moved;
    bool copied CKPT_GUARDED_BY(mutex) = false;   // nothing is left to do behind the loop
    bool claimed CKPT_GUARDED_BY(mutex) = false;  // by the one who calls `done`
    bool ended CKPT_GUARDED_BY(mutex) = false;

    Status Run(bool on_loop, uint32_t threads, const Deadline& deadline);
    void End(Status status);  // pre: claimed by the caller
    bool Copied();
    bool Ended();
  };
  // One task of the copier works through all there is: however late it comes to run, the loop never
  // finds its queue full.
  struct Queue {
    Mutex mutex;
    std::vector<std::shared_ptr<Copy>> copies CKPT_GUARDED_BY(mutex);  // oldest first
    bool scheduled CKPT_GUARDED_BY(mutex) = false;

    std::shared_ptr<Copy> Next();  // null: there is none, and the copier is not scheduled any more
    std::vector<std::shared_ptr<Copy>> All();
  };

  const std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::unique_ptr<os::WorkerPool> copier_;  // from the first overlapped save on
};

}  // namespace ckpt::session
