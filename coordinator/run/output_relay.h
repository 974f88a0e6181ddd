// What ranks print, on ckpt-run's own stdout and stderr, line by line with "[rank 3] " before each.
// A thread of its own: a reader of ours that stalls (a pager) stalls the ranks that print, never
// the control loop.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "libckpt/os/event_loop.h"
#include "libckpt/os/fd.h"
#include "libckpt/os/thread.h"

namespace ckpt::run {

class OutputRelay {
 public:
  static Result<std::unique_ptr<OutputRelay>> Create();
  // Blocks: until what has been printed so far is passed on.
  ~OutputRelay();

  // The write end for one rank's stream; `to` is where its lines go (1 or 2).
  Result<os::UniqueFd> Add(uint32_t rank, int to);

 private:
  struct Source {
    os::UniqueFd fd;
    std::string prefix;
    int to = 2;
    std::string partial;   // a line that has not ended yet
    bool stalled = false;  // its reader took nothing for too long: no more is passed on
  };

  OutputRelay() = default;
  void Pump(const std::shared_ptr<Source>& source);
  void Pass(Source* source, bool ended);

  std::unique_ptr<os::EventLoop> loop_;
  std::map<int, std::shared_ptr<Source>> sources_;  // the relay's thread only
  os::Thread thread_;
};

}  // namespace ckpt::run
