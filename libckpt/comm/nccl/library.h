// NCCL, found at run time: the copy that the program has loaded, else libnccl.so.2 by the loader's
// own rules. A machine without one is no error before somebody asks for a communicator.
#pragma once

#include <string>

#include "libckpt/base/status.h"
#include "libckpt/comm/nccl/nccl_api.h"

namespace ckpt::comm::nccl {

class Library {
 public:
  // The first call loads it. Threads: any.
  // Errors: kUnimplemented if there is none, or one that lacks a call, which is named, or is too
  // old; kFailedPrecondition if the program brings NCCL linked into something else: what we would
  // load beside it is another library with other communicators.
  static Result<const Library*> Get();

#define CKPT_NCCL_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  CKPT_NCCL_CALLS(CKPT_NCCL_MEMBER)
  CKPT_NCCL_LATER_CALLS(CKPT_NCCL_MEMBER)
#undef CKPT_NCCL_MEMBER

  int version() const { return version_; }  // 22304 is 2.23.4
  const std::string& path() const { return path_; }

  // "ncclCommSplit: invalid usage 5 (…)"; `comm` may be null. Codes: kAborted where the
  // communicator is lost (CUDA, system, remote, internal), else kInvalidArgument. OK for
  // kInProgress.
  Status StatusOf(Result32 result, const char* call, CommPtr comm) const;

 private:
  Status Load();

  int version_ = 0;
  std::string path_;
};

// "2.23.4"
std::string VersionText(int version);

}  // namespace ckpt::comm::nccl
