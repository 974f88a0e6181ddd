#include "coordinator/agent/log_limit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libckpt/os/fd.h"
#include "libckpt/os/file.h"

namespace ckpt::agent {
namespace {

constexpr uint64_t kLimit = 256 << 10;

uint64_t OnDisk(const std::string& path) {
  struct stat st;
  EXPECT_EQ(::stat(path.c_str(), &st), 0);
  return static_cast<uint64_t>(st.st_blocks) * 512;
}

TEST(LogLimit, TheNewestPartIsKeptWhileTheWriterAppends) {
  std::string dir = "/tmp/ckpt-log-XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const std::string path = dir + "/rank0.log";
  EXPECT_EQ(LimitLog(path, kLimit).code(), Code::kNotFound);
  uint64_t offset = 0;  // a reader that keeps up
  {
    const os::UniqueFd fd = os::OpenAppend(path).value();
    std::string read;
    for (int i = 0; i < 40; ++i) {
      const std::string part(64 << 10, static_cast<char>('A' + i % 26));
      ASSERT_EQ(::write(fd.get(), part.data(), part.size()), static_cast<ssize_t>(part.size()));
      EXPECT_TRUE(LimitLog(path, kLimit).ok());
      EXPECT_LE(OnDisk(path), kLimit + (64 << 10));
      EXPECT_EQ(FirstKept(path, offset).value(), offset) << "what was just written is there";
      read.assign(part.size(), '\0');
      const auto file = os::PosixFileSystem().Open(path, os::OpenOptions::Read()).value();
      ASSERT_TRUE(file->PRead(offset, std::as_writable_bytes(std::span(read))).ok());
      EXPECT_EQ(read, part);
      offset += part.size();
    }
  }
  const uint64_t first = FirstKept(path, 0).value();
  EXPECT_GT(first, 0u);
  EXPECT_GE(offset - first, kLimit / 2);
  EXPECT_EQ(FirstKept(path, offset).value(), offset);
  EXPECT_TRUE(os::PosixFileSystem().RemoveTree(dir).ok());
}

TEST(LogLimit, ALinkIsNotFollowed) {
  std::string dir = "/tmp/ckpt-log-XXXXXX";
  ASSERT_NE(mkdtemp(dir.data()), nullptr);
  const std::string other(1 << 20, 'x');
  ASSERT_TRUE(os::WriteNewFile(os::PosixFileSystem(), dir + "/other", other).ok());
  ASSERT_EQ(::symlink((dir + "/other").c_str(), (dir + "/rank0.log").c_str()), 0);
  EXPECT_TRUE(LimitLog(dir + "/rank0.log", kLimit).ok());
  EXPECT_EQ(os::ReadFile(os::PosixFileSystem(), dir + "/other", 2 << 20).value(), other);
  EXPECT_TRUE(os::PosixFileSystem().RemoveTree(dir).ok());
}

}  // namespace
}  // namespace ckpt::agent
