#include "coordinator/run/roles.h"

namespace ckpt::run {

Status CheckJoinOptions(const Options& options, const JoinMsg& join) {
  if (join.job != options.job) {
    return FailedPrecondition("this gang runs job '" + options.job + "', not '" + join.job + "'");
  }
  if (join.node_count != options.node_count || join.node_rank >= options.node_count) {
    return InvalidArgument("this gang has --nnodes " + std::to_string(options.node_count) +
                           "; node " + std::to_string(join.node_rank) + " said " +
                           std::to_string(join.node_count));
  }
  if (join.drain != options.drain) {
    return FailedPrecondition(options.drain
                                  ? "this gang drains: its ckpt-runs all have --drain"
                                  : "this gang runs ranks: no ckpt-run of it has --drain");
  }
  return OkStatus();
}

}  // namespace ckpt::run
