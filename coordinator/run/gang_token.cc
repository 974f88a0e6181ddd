#include "coordinator/run/gang_token.h"

#include <filesystem>

#include "libckpt/base/ids.h"
#include "libckpt/os/file.h"
#include "libckpt/os/process.h"

namespace ckpt::run {
namespace {

constexpr size_t kTokenBytesMax = 256;

// Under another name first, and linked: nobody reads it half-written, or before it is private.
Status Make(os::FileSystem* fs, const std::string& path) {
  const std::string fresh = path + "-" + os::HostName() + "-" + std::to_string(os::SelfPid());
  CKPT_ASSIGN_OR_RETURN(auto file, fs->Open(fresh, os::OpenOptions::CreateNew()));
  std::error_code error;
  std::filesystem::permissions(
      fresh, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, error);
  const std::string token = JobId::Random().ToString();
  Status made = error ? PermissionDenied(fresh + ": " + error.message()) : OkStatus();
  if (made.ok()) made = file->PWrite(0, AsBytes(token));
  if (made.ok()) made = file->Close();
  if (made.ok()) made = fs->Link(fresh, path);
  fs->Unlink(fresh).IgnoreError();
  return made.code() == Code::kAlreadyExists ? OkStatus() : made;
}

}  // namespace

Result<std::string> GangTokenOf(const std::string& store) {
  os::FileSystem& fs = os::PosixFileSystem();
  const std::string path = os::JoinPath(store, ".gang-token");
  Result<os::FileStat> stat = fs.Stat(path);
  if (stat.status().code() == Code::kNotFound) {
    CKPT_RETURN_IF_ERROR(Make(&fs, path).Annotate("making a token for the gang"));
    stat = fs.Stat(path);
  }
  CKPT_RETURN_IF_ERROR(stat.status());
  if ((stat->mode & 077) != 0 || stat->bytes == 0 || stat->bytes > kTokenBytesMax) {
    return PermissionDenied(path +
                            " is no secret of this user alone (mode 0600); remove it, or set "
                            "CKPT_GANG_TOKEN to the same on all nodes");
  }
  CKPT_ASSIGN_OR_RETURN(auto file, fs.Open(path, os::OpenOptions::Read()));
  std::string token(stat->bytes, '\0');
  CKPT_RETURN_IF_ERROR(
      file->PRead(0, MutableByteSpan(reinterpret_cast<std::byte*>(token.data()), token.size())));
  return token;
}

}  // namespace ckpt::run
