// Serves the generations that this node holds to other agents, over TCP.
//
// A chunk of the data part goes out straight from the memfd: it cannot change once the generation
// is sealed. Not by sendfile: its digest has just brought it into the cache, where a copy costs
// less than page by page at the receiver. The part before it (header, digests) still changes while
// the shard is being written, so its chunks are copied, until two copies in a row are equal, and
// sent from the copy.
//
// I1  Nothing is told or sent before the token has been seen.
// I2  At most kConnectionsMax connections are served; others wait to be accepted.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "coordinator/agent/data_wire.h"
#include "coordinator/agent/held_copies.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/fd.h"
#include "libckpt/os/socket.h"
#include "libckpt/os/thread.h"

namespace ckpt::agent {

class DataServer {
 public:
  static constexpr size_t kConnectionsMax = 16;

  // Listens on a port that the kernel chooses. `held` outlives it.
  static Result<std::unique_ptr<DataServer>> Start(const std::string& host, const HeldCopies* held);
  ~DataServer();

  const os::HostPort& address() const { return address_; }
  // Who may fetch; empty (the start): nobody. Threads: any.
  void SetToken(std::string token);

 private:
  DataServer(os::UniqueFd listener, os::HostPort address, const HeldCopies* held);
  void AcceptLoop();
  void Serve(int fd);
  Status Greet(int fd);
  Status ServeRequest(int fd, const DataRequest& request);
  Status SendChunks(int fd, const DataRequest& request, const HeldCopies::Whole& whole);

  const os::UniqueFd listener_;
  const os::HostPort address_;
  const HeldCopies* const held_;
  Mutex mutex_;
  bool stopping_ CKPT_GUARDED_BY(mutex_) = false;
  CondVar stopped_;
  std::set<int> serving_ CKPT_GUARDED_BY(mutex_);
  std::string token_ CKPT_GUARDED_BY(mutex_);
  os::WorkerPool pool_;
  os::Thread acceptor_;
};

}  // namespace ckpt::agent
