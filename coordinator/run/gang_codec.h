// The structs of gang_link.h as the GangMsg of proto/ckpt/v1/gang.proto, which carries them.
#pragma once

#include "ckpt/v1/gang.pb.h"
#include "coordinator/run/gang_link.h"

namespace ckpt::run {

ckpt::v1::GangMsg ToProto(const GangMessage& message);
// kInvalidArgument for a message without a known kind or with impossible numbers.
Result<GangMessage> FromProto(const ckpt::v1::GangMsg& message);

}  // namespace ckpt::run
