// The helpers that work on any FileSystem.
#include "libckpt/os/file.h"

#include "libckpt/base/clock.h"

namespace ckpt::os {

Result<Transfer> File::StartWrite(uint64_t offset, ByteSpan data) {
  CKPT_RETURN_IF_ERROR(PWrite(offset, data));
  // Never written to: a transfer of either direction names its memory in one way.
  auto* memory = const_cast<std::byte*>(data.data());
  return Transfer{0, true, offset, {memory, data.size()}};
}

Result<Transfer> File::StartRead(uint64_t offset, MutableByteSpan out) {
  return Transfer{0, false, offset, out};
}

Result<size_t> File::Await(const Transfer& transfer) {
  if (transfer.write) return transfer.memory.size();
  return PReadSome(transfer.offset, transfer.memory);
}

Result<bool> Exists(FileSystem& fs, const std::string& path) {
  const Result<FileStat> stat = fs.Stat(path);
  if (stat.ok()) return true;
  if (stat.status().code() == Code::kNotFound) return false;
  return stat.status();
}

Result<std::string> ReadFile(FileSystem& fs, const std::string& path, uint64_t bytes_max) {
  CKPT_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path, OpenOptions::Read()));
  CKPT_ASSIGN_OR_RETURN(const uint64_t bytes, file->Size());
  if (bytes > bytes_max) {
    return ResourceExhausted(path + " has " + FormatBytes(bytes) + ", at most " +
                             FormatBytes(bytes_max) + " are expected");
  }
  std::string text(bytes, '\0');
  CKPT_RETURN_IF_ERROR(file->PRead(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Status WriteNewFile(FileSystem& fs, const std::string& path, std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path, OpenOptions::CreateNew()));
  CKPT_RETURN_IF_ERROR(file->PWrite(0, AsBytes(bytes)));
  CKPT_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

Status ReplaceFile(FileSystem& fs, const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".new";
  CKPT_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                        fs.Open(temporary, OpenOptions::CreateOrTruncate()));
  CKPT_RETURN_IF_ERROR(file->PWrite(0, AsBytes(bytes)));
  CKPT_RETURN_IF_ERROR(file->Sync());
  CKPT_RETURN_IF_ERROR(file->Close());
  CKPT_RETURN_IF_ERROR(fs.Rename(temporary, path));
  return fs.SyncDir(ParentOf(path));
}

std::string JoinPath(std::string_view dir, std::string_view name) {
  if (dir.empty()) return std::string(name);
  std::string path(dir);
  if (path.back() != '/') path += '/';
  return path += name;
}

std::string ParentOf(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  path = path.substr(0, slash);
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path.empty() ? "/" : std::string(path);
}

std::string BaseName(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || path.size() == 1) return std::string(path);
  return std::string(path.substr(slash + 1));
}

}  // namespace ckpt::os
