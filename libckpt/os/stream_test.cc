#include "libckpt/os/stream.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ckpt::os
