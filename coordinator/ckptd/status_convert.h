// Our errors as gRPC's: the codes are the same numbers.
#pragma once

#include <grpcpp/support/status.h>

#include "libckpt/base/status.h"

namespace ckpt::ckptd {

inline grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message = status.message();
  if (status.outcome() == Outcome::kMaybeApplied) message += " (maybe applied)";
  return {static_cast<grpc::StatusCode>(status.code()), std::move(message)};
}

}  // namespace ckpt::ckptd
