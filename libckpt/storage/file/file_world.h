// The directory store's world for the suites: a fresh directory on the machine's file system.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "libckpt/storage/file/file_store.h"
#include "libckpt/testing/store_world.h"

namespace ckpt::testing {

// Removed with everything in it at the end.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& beneath = ::testing::TempDir()) {
    std::string pattern = os::JoinPath(beneath, "ckpt-store-XXXXXX");
    path_ = ::mkdtemp(pattern.data()) != nullptr ? pattern : std::string();
    EXPECT_FALSE(path_.empty());
  }
  ~ScratchDirectory() { os::PosixFileSystem().RemoveTree(path_).IgnoreError(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FileWorld : public StoreWorld {
 public:
  explicit FileWorld(const std::string& beneath = ::testing::TempDir()) : scratch_(beneath) {}
  std::unique_ptr<storage::Store> Actor() override {
    return storage::OpenFileStore(os::PosixFileSystem(), path(),
                                  {.poll_min = std::chrono::milliseconds(1)});
  }
  void Plant(const std::string& key, const std::string& bytes) override {
    auto& fs = os::PosixFileSystem();
    const std::string at = os::JoinPath(path(), key);
    EXPECT_TRUE(fs.MakeDirs(os::ParentOf(at)).ok());
    fs.Unlink(at).IgnoreError();
    EXPECT_TRUE(os::WriteNewFile(fs, at, bytes).ok()) << at;
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return os::PosixFileSystem().RenameNoReplace(os::JoinPath(path(), from),
                                                 os::JoinPath(path(), to));
  }
  Status Remove(const std::string& key) override {
    return os::PosixFileSystem().Unlink(os::JoinPath(path(), key));
  }
  std::vector<std::string> Keys() override {
    std::vector<std::string> keys;
    Collect("", &keys);
    return keys;
  }
  std::string path() const { return scratch_.path() + "/job"; }

 private:
  void Collect(const std::string& below, std::vector<std::string>* keys) {
    const auto entries = os::PosixFileSystem().List(os::JoinPath(path(), below));
    if (!entries.ok()) return;
    for (const os::DirEntry& entry : *entries) {
      const std::string key = below.empty() ? entry.name : below + "/" + entry.name;
      if (entry.type == os::FileType::kDirectory)
        Collect(key, keys);
      else
        keys->push_back(key);
    }
  }
  ScratchDirectory scratch_;
};

// On a file system in RAM where there is one, for tests of thousands of saves: the same calls, and
// syncs that cost nothing.
class FastFileWorld : public FileWorld {
 public:
  static constexpr uint64_t kStride = 5;  // of the steps tried when three actors meet
  FastFileWorld() : FileWorld(Place()) {}

  static std::string Place() {
    return ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ::testing::TempDir();
  }
};

}  // namespace ckpt::testing
