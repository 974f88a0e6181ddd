// One caller that reads the timeline from a revision on.
#pragma once

#include "ckpt/v1/coordinator.grpc.pb.h"
#include "coordinator/ckptd/core_loop.h"

namespace ckpt::ckptd {

// The reactor deletes itself when gRPC is done with it.
grpc::ServerWriteReactor<v1::Event>* StartEventWatch(CoreLoop* loop,
                                                     const v1::WatchEventsRequest& request);

}  // namespace ckpt::ckptd
