// A capture that several threads may work on: each that calls Run() copies what nobody has copied
// yet. An overlapped save is begun by one thread at low priority; the loop's own thread joins in
// when it needs the state back, so that it never waits for a thread that the machine starves.
//
// I1  After Run() has returned anything but kDeadlineExceeded, no thread reads a tensor or writes
//     into the region.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "libckpt/engine/engine.h"

namespace ckpt::engine {

class SharedCapture {
 public:
  struct Options {
    std::function<void(uint64_t)> progress;  // bytes done; any thread
    std::function<bool()> cancelled;         // polled between blocks; may be empty
  };

  // Errors: kFailedPrecondition, kInvalidArgument as Capture's; nothing is copied yet.
  // `region` and the tensors' memory must outlive the copy.
  static Result<std::unique_ptr<SharedCapture>> Begin(
      std::shared_ptr<const std::vector<LiveTensor>> tensors, StagingRegion* region,
      Options options);
  virtual ~SharedCapture() = default;

  // Copies on `threads` threads (0 chooses), the caller's included, and returns when every byte is
  // in the region, whoever copied it.
  //
  // Threads: any number at once.
  // Errors:  the first error of any of them, for all; kCancelled.
  virtual Status Run(uint32_t threads, const Deadline& deadline) = 0;
};

}  // namespace ckpt::engine
