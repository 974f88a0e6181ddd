// ckptd as a library: what main does, and what tests start in their own process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "libckpt/base/status.h"

namespace ckpt::ckptd {

struct ServerOptions {
  std::string listen;  // unix:PATH | HOST:PORT, loopback only; port 0: any free one
  std::string data;    // folder of the records
  int64_t heartbeat_ms = 1000;
  std::function<void(Status)> on_fatal;
};

class Server {
 public:
  // Errors: kInvalidArgument for an address that is no loopback one; kAlreadyExists for one that is
  //         in use; else what the state store says.
  static Result<std::unique_ptr<Server>> Start(ServerOptions options);
  virtual ~Server() = default;  // stops it: jobs and agents go on
  // Where it really listens: the port is never 0.
  virtual std::string address() const = 0;
};

// $CKPT_SERVER is the callers' business: ckptd listens where they look by themselves,
// /run/ckpt/ckptd.sock for root, else $XDG_RUNTIME_DIR/ckpt/ckptd.sock. Empty if there is neither.
std::string DefaultListen();
// /var/lib/ckpt/ckptd for root, else $XDG_STATE_HOME or ~/.local/state, /ckpt/ckptd.
std::string DefaultData();

}  // namespace ckpt::ckptd
