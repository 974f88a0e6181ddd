#include "libckpt/comm/nccl/library.h"

#include <dlfcn.h>

namespace ckpt::comm::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

std::string FileOf(void* symbol) {
  Dl_info info{};
  const bool found = ::dladdr(symbol, &info) != 0 && info.dli_fname != nullptr;
  return found ? info.dli_fname : "";
}

// NCCL inside another object: the program's communicators are of that copy.
Status NotLinkedIntoSomethingElse() {
  void* const symbol = ::dlsym(RTLD_DEFAULT, "ncclGetVersion");
  if (symbol == nullptr) return OkStatus();
  const std::string file = FileOf(symbol);
  const std::string name = file.substr(file.rfind('/') + 1);
  if (name.compare(0, 10, "libnccl.so") == 0) return OkStatus();
  return FailedPrecondition("NCCL is linked statically into " + (file.empty() ? "it" : file) +
                            ": its communicators cannot be reached from here; use a build that "
                            "loads libnccl.so.2");
}

}  // namespace

std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Result<const Library*> Library::Get() {
  // Never unloaded: its own threads may live until the process ends.
  static Library* const library = new Library;
  static const Status* const loaded = new Status(library->Load());
  if (!loaded->ok()) return Status(*loaded);
  return library;
}

Status Library::Load() {
  CKPT_RETURN_IF_ERROR(NotLinkedIntoSomethingElse());
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return Unimplemented("no NCCL: " + std::string(why == nullptr ? kLibrary : why));
  }
#define CKPT_NCCL_FIND(name, result, parameters) \
  name = reinterpret_cast<result(*) parameters>(::dlsym(library, #name));
  CKPT_NCCL_CALLS(CKPT_NCCL_FIND)
  CKPT_NCCL_LATER_CALLS(CKPT_NCCL_FIND)
#undef CKPT_NCCL_FIND
#define CKPT_NCCL_REQUIRE(name, result, parameters)                                  \
  if (name == nullptr)                                                               \
    return Unimplemented("this NCCL has no " #name ": " + VersionText(kVersionMin) + \
                         " or later is needed");
  CKPT_NCCL_CALLS(CKPT_NCCL_REQUIRE)
#undef CKPT_NCCL_REQUIRE
  path_ = FileOf(reinterpret_cast<void*>(ncclGetVersion));
  CKPT_RETURN_IF_ERROR(StatusOf(ncclGetVersion(&version_), "ncclGetVersion", nullptr));
  if (version_ < kVersionMin) {
    return Unimplemented(path_ + " is NCCL " + VersionText(version_) + ": " +
                         VersionText(kVersionMin) + " or later is needed");
  }
  return OkStatus();
}

Status Library::StatusOf(Result32 result, const char* call, CommPtr comm) const {
  if (result == kSuccess || result == kInProgress) return OkStatus();
  const char* const words = ncclGetErrorString(result);
  std::string text = std::string(call) + ": " + (words == nullptr ? "error" : words) + " " +
                     std::to_string(result);
  const char* const last = ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') text += std::string(" (") + last + ")";
  const bool usage = result == kInvalidArgument || result == kInvalidUsage;
  return usage ? InvalidArgument(text) : Aborted(text);
}

}  // namespace ckpt::comm::nccl
