// Files and directories behind one interface, so that a file system that forgets unsynced data can
// stand in for the real one in crash tests. Everything that a store does to a disk goes through it.
//
// I1  A failed Sync is terminal for its File: the kernel may have dropped the pages, so no later
//     Sync may claim that they are safe.
// I2  Nothing becomes durable by itself: data by File::Sync, a name by SyncDir of its directory.
// I3  The last component of a path is never followed if it is a symbolic link.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/base/status.h"

namespace ckpt::os {

enum class FileType { kRegular, kDirectory, kSymlink, kOther };

struct DirEntry {
  std::string name;  // never "." or ".."
  FileType type = FileType::kOther;
};

struct FileStat {
  FileType type = FileType::kOther;
  uint64_t bytes = 0;
  uint64_t inode = 0;
  uint64_t device = 0;
  uint64_t links = 0;
  uint32_t mode = 0;     // permission bits
  int64_t mtime_ns = 0;  // of the file system's clock: for people, never compared
};

struct OpenOptions {
  bool write = false;      // else read only; a writer may read too
  bool create = false;     // mode 0666 less the umask
  bool exclusive = false;  // with create: kAlreadyExists if the name is taken (by a link as well)
  bool truncate = false;
  // Past the page cache where the file system can, for large files that are written or read once.
  // What is not in whole pages, from and to page-aligned memory, turns it off for this file. Where
  // it cannot be, writes are pushed to the disk as they come, so that they do not pile up in RAM.
  bool direct = false;

  static OpenOptions Read() { return {}; }
  static OpenOptions ReadWrite() { return {.write = true}; }
  static OpenOptions CreateNew() { return {.write = true, .create = true, .exclusive = true}; }
  static OpenOptions CreateOrTruncate() {
    return {.write = true, .create = true, .truncate = true};
  }
};

// A read or write that may be under way; 0: it is not, and is made by Await if it was not yet.
struct Transfer {
  uint64_t number = 0;
  bool write = false;
  uint64_t offset = 0;
  MutableByteSpan memory;
};

class File {
 public:
  // Closes without checking; a writer calls Close. Waits for what is under way.
  virtual ~File() = default;

  // All of `data` at `offset`. Threads: safe for disjoint ranges. Errors: kResourceExhausted for a
  // full disk; maybe applied, in part.
  virtual Status PWrite(uint64_t offset, ByteSpan data) = 0;
  // Exactly out.size() bytes; kDataLoss if the file ends before. Threads: safe.
  virtual Status PRead(uint64_t offset, MutableByteSpan out) = 0;
  // Up to out.size() bytes; fewer only at the end of the file, 0 beyond it. Threads: safe.
  virtual Result<size_t> PReadSome(uint64_t offset, MutableByteSpan out) = 0;
  // PWrite and PReadSome that go on by themselves where the kernel queues them (depth() > 1): the
  // memory belongs to them until Await, which is called once for each and before Sync, and says
  // how much was moved; of a write, all. Threads: safe, as those.
  // Blocks: while depth() transfers are under way. Errors: those of PWrite and PRead, at the latest
  // of Await.
  virtual Result<Transfer> StartWrite(uint64_t offset, ByteSpan data);
  virtual Result<Transfer> StartRead(uint64_t offset, MutableByteSpan out);
  virtual Result<size_t> Await(const Transfer& transfer);
  // How many can be under way; 1: whoever starts one makes it.
  virtual uint32_t depth() const { return 1; }
  // What the kernel knows it by, for its queues; -1: nothing.
  virtual int descriptor() const { return -1; }
  // Reserves space for `bytes` from the start without changing the size. OK also where the file
  // system cannot; kResourceExhausted if there is no room.
  virtual Status Allocate(uint64_t bytes) = 0;
  virtual Status Truncate(uint64_t bytes) = 0;
  // Blocks: on disk. Durable: data and size, not the name. Errors: I1; maybe applied.
  virtual Status Sync() = 0;
  // Errors of a delayed write show here at the latest. Later calls are kFailedPrecondition.
  virtual Status Close() = 0;
  virtual Result<uint64_t> Size() = 0;
  // Whether what is aligned goes past the page cache now.
  virtual bool direct() const { return false; }
  virtual const std::string& path() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Result<std::unique_ptr<File>> Open(const std::string& path,
                                             const OpenOptions& options) = 0;
  // Opens `name` ("a", "a/b") beneath `dir`; no component of `name` may be a symbolic link, ".." or
  // lead elsewhere: kPermissionDenied or kInvalidArgument.
  virtual Result<std::unique_ptr<File>> OpenBeneath(const std::string& dir, const std::string& name,
                                                    const OpenOptions& options) = 0;

  // kAlreadyExists if the name is taken. Mode 0777 less the umask.
  virtual Status MakeDir(const std::string& path) = 0;
  // With missing parents; OK if it is a directory already (or a link to one). Each directory made
  // is synced into its parent.
  virtual Status MakeDirs(const std::string& path) = 0;
  // A second name for a regular file. kAlreadyExists (not applied) if `to` is taken.
  virtual Status Link(const std::string& from, const std::string& to) = 0;
  // Atomic; replaces a file at `to`.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // kAlreadyExists (not applied) if `to` is taken. Where the file system cannot do it in one step,
  // regular files go by link and unlink, others are kUnimplemented.
  virtual Status RenameNoReplace(const std::string& from, const std::string& to) = 0;
  virtual Status Unlink(const std::string& path) = 0;
  virtual Status RemoveDir(const std::string& path) = 0;
  // `path` and everything beneath it; a symbolic link is removed, never followed. OK if nothing is
  // there. Not atomic.
  virtual Status RemoveTree(const std::string& path) = 0;
  // Opens the directory anew each time (an NFS client may keep an old view of an open one).
  // Sorted by name.
  virtual Result<std::vector<DirEntry>> List(const std::string& dir) = 0;
  // Of the link itself if it is one.
  virtual Result<FileStat> Stat(const std::string& path) = 0;
  // Durable: the names in `dir`.
  virtual Status SyncDir(const std::string& dir) = 0;
};

// The machine's own. Threads: safe. Never destroyed.
FileSystem& PosixFileSystem();

// kNotFound becomes false.
Result<bool> Exists(FileSystem& fs, const std::string& path);
// kResourceExhausted if it is longer than `bytes_max`.
Result<std::string> ReadFile(FileSystem& fs, const std::string& path, uint64_t bytes_max);
// Creates `path` exclusively with `bytes`, synced and closed; its name is not synced.
Status WriteNewFile(FileSystem& fs, const std::string& path, std::string_view bytes);
// Replaces `path` as one step that survives a crash: a synced temporary file beside it, rename,
// directory sync. Threads: one writer for each path.
Status ReplaceFile(FileSystem& fs, const std::string& path, std::string_view bytes);

// "a/b" + "c" → "a/b/c"; the parent of "a/b" is "a", of "a" is ".", of "/" is "/".
std::string JoinPath(std::string_view dir, std::string_view name);
std::string ParentOf(std::string_view path);
std::string BaseName(std::string_view path);

}  // namespace ckpt::os
