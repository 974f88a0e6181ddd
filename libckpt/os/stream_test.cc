#include "libckpt/os/stream.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "libckpt/os/fd.h"

namespace ckpt::os {
namespace {

TEST(Stream, AReaderThatStopsEndsTheWriteAtItsDeadline) {
  auto pipe = MakePipe();
  ASSERT_TRUE(pipe.ok());
  const std::string more(1 << 20, 'x');  // more than a pipe holds
  const Status status =
      WriteWithin(pipe->second.get(), more, Deadline("a line", std::chrono::milliseconds(50)));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("a line"), std::string::npos);
}

TEST(Stream, WhatFitsArrivesWhole) {
  auto pipe = MakePipe();
  ASSERT_TRUE(pipe.ok());
  const std::string text(20'000, 'y');
  ASSERT_TRUE(
      WriteWithin(pipe->second.get(), text, Deadline("text", std::chrono::seconds(30))).ok());
  pipe->second.Reset();
  std::string got;
  for (bool ended = false; !ended;) {
    const Result<ReadChunk> chunk = ReadAvailable(pipe->first.get(), 4096);
    ASSERT_TRUE(chunk.ok());
    got += chunk->bytes;
    ended = chunk->ended;
  }
  EXPECT_EQ(got, text);
}

TEST(PrivateDir, ThatOfAKilledProcessIsRemovedByTheNext) {
  const std::string base = testing::TempDir() + "private-" + std::to_string(getpid());
  std::filesystem::create_directory(base);
  ::setenv("XDG_RUNTIME_DIR", base.c_str(), 1);
  auto pipe = MakePipe();
  ASSERT_TRUE(pipe.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<std::string> made = MakePrivateDir("one-");
    if (made.ok()) (void)!::write(pipe->second.get(), made->data(), made->size());
    for (;;) ::pause();
  }
  pipe->second.Reset();
  std::string theirs(4096, '\0');
  const ssize_t count = ::read(pipe->first.get(), theirs.data(), theirs.size());
  ASSERT_GT(count, 0);
  theirs.resize(static_cast<size_t>(count));
  const Result<std::string> mine = MakePrivateDir("one-");
  ASSERT_TRUE(mine.ok()) << mine.status().ToString();
  EXPECT_TRUE(std::filesystem::exists(theirs)) << "its maker lives";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(MakePrivateDir("one-").ok());
  EXPECT_FALSE(std::filesystem::exists(theirs));
  EXPECT_TRUE(std::filesystem::exists(*mine));
  std::filesystem::remove_all(base);
}

}  // namespace
}  // namespace ckpt::os
