#include "libckpt/os/memfd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "libckpt/base/limits.h"
#include "libckpt/base/log.h"
#include "libckpt/os/futex.h"
#include "libckpt/os/thread.h"

namespace ckpt::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Memfd, SizeAndSealsAreFixed) {
  Result<Memfd> memory = Memfd::Create("test", 10000);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  EXPECT_EQ(memory->bytes(), 10000u);
  EXPECT_NE(ftruncate(memory->fd(), 1), 0);
  EXPECT_NE(ftruncate(memory->fd(), 20000), 0);
  EXPECT_NE(fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(fcntl(memory->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(Memfd::Create("test", 0).status().code(), Code::kInvalidArgument);
}

TEST(Memfd, MappingsOfDuplicatesShowTheSameBytes) {
  Result<Memfd> memory = Memfd::Create("test", 1 << 20);
  ASSERT_TRUE(memory.ok());
  EXPECT_TRUE(memory->Reserve(0, memory->bytes()).ok());
  Result<Memfd> copy = memory->Dup();
  ASSERT_TRUE(copy.ok());
  EXPECT_EQ(copy->inode(), memory->inode());
  Result<Mapping> writable = memory->Map({.writable = true, .populate = true});
  Result<Mapping> readable = copy->Map({.writable = false});
  ASSERT_TRUE(writable.ok() && readable.ok());
  std::memcpy(writable->data() + 12345, "hello", 5);
  EXPECT_EQ(std::memcmp(readable->data() + 12345, "hello", 5), 0);
  memory = Memfd();
  EXPECT_EQ(std::memcmp(readable->data() + 12345, "hello", 5), 0) << "a mapping needs no fd";
}

TEST(Memfd, WriteFillsWithinItsSize) {
  const Memfd memory = Memfd::Create("test", 10000).value();
  const std::vector<std::byte> bytes(5000, std::byte{7});
  EXPECT_TRUE(memory.Write(5000, bytes).ok());
  EXPECT_EQ(memory.Write(5001, bytes).code(), Code::kInvalidArgument);
  EXPECT_EQ(memory.Write(10001, {}).code(), Code::kInvalidArgument);
  const Mapping mapping = memory.Map({.writable = false}).value();
  EXPECT_EQ(mapping.data()[4999], std::byte{0});
  EXPECT_EQ(std::memcmp(mapping.data() + 5000, bytes.data(), bytes.size()), 0);
}

TEST(Memfd, DescriptorsFromOutsideAreChecked) {
  Result<Memfd> good = Memfd::Create("test", 4096);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(Memfd::FromFd(DupFd(good->fd()).value()).ok());
  EXPECT_TRUE(Memfd::FromFd(DupFd(good->fd()).value(), 4096).ok());
  EXPECT_EQ(Memfd::FromFd(DupFd(good->fd()).value(), 8192).status().code(), Code::kInvalidArgument);

  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(Memfd::FromFd(std::move(unsealed)).status().code(), Code::kInvalidArgument);

  UniqueFd empty(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK), 0);
  EXPECT_EQ(Memfd::FromFd(std::move(empty)).status().code(), Code::kInvalidArgument);

  Result<std::pair<UniqueFd, UniqueFd>> pipe = MakePipe();
  ASSERT_TRUE(pipe.ok());
  EXPECT_EQ(Memfd::FromFd(std::move(pipe->first)).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Memfd::FromFd(UniqueFd()).status().code(), Code::kInvalidArgument);
}

TEST(Mapping, AnonymousIsZeroAndMovable) {
  Result<Mapping> mapping = Mapping::Anonymous(1 << 16, true);
  ASSERT_TRUE(mapping.ok());
  for (const std::byte byte : mapping->bytes()) ASSERT_EQ(byte, std::byte{0});
  Mapping other = std::move(*mapping);
  EXPECT_FALSE(mapping->valid());
  other.data()[7] = std::byte{1};
  *mapping = std::move(other);
  EXPECT_EQ(mapping->data()[7], std::byte{1});
  EXPECT_EQ(Mapping::Anonymous(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Mapping::Anonymous(uint64_t{1} << 60).status().code(), Code::kResourceExhausted);
}

TEST(Futex, WakesAcrossMappings) {
  Result<Memfd> memory = Memfd::Create("futex", 4096);
  ASSERT_TRUE(memory.ok());
  Result<Mapping> ours = memory->Map(), theirs = memory->Map();
  ASSERT_TRUE(ours.ok() && theirs.ok());
  auto* word = reinterpret_cast<std::atomic<uint32_t>*>(ours->data());
  auto* other = reinterpret_cast<std::atomic<uint32_t>*>(theirs->data());
  Thread waker("waker", [&] {
    other->store(1);
    FutexWakeAll(reinterpret_cast<uint32_t*>(other));
  });
  const Deadline deadline("futex test", seconds(60));
  while (word->load() == 0) {
    ASSERT_TRUE(FutexWait(reinterpret_cast<uint32_t*>(word), 0, deadline).ok());
  }
  waker.Join();
}

TEST(Futex, HasADeadlineAndSeesAChangedWord) {
  std::atomic<uint32_t> word{5};
  auto* address = reinterpret_cast<uint32_t*>(&word);
  EXPECT_TRUE(FutexWait(address, 4, Deadline("changed", seconds(60))).ok());
  const Status status = FutexWait(address, 5, Deadline("waiting for nobody", milliseconds(1)));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("waiting for nobody"), std::string::npos);
}

TEST(Mapping, PopulatedPagesAreThereAndHoldWhatTheyHeld) {
  constexpr uint64_t kBytes = 64 * kPageBytes;
  Result<Mapping> memory = Mapping::Anonymous(kBytes);
  ASSERT_TRUE(memory.ok());
  memory->data()[5] = std::byte{9};
  const auto touched = [&] {
    std::vector<unsigned char> pages(kBytes / kPageBytes);
    EXPECT_EQ(::mincore(memory->data(), kBytes, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; });
  };
  EXPECT_LT(touched(), 64);
  ASSERT_TRUE(Populate(memory->bytes()).ok());
  EXPECT_EQ(touched(), 64);
  EXPECT_EQ(memory->data()[5], std::byte{9});
  EXPECT_TRUE(Populate({}).ok());
}

TEST(Thread, IdlePriorityIsTenBelowTheProgramsOwn) {
  int before = 0, after = 0;
  Thread("idle", [&] {
    const auto own = static_cast<id_t>(::gettid());
    before = ::getpriority(PRIO_PROCESS, own);
    LowerOwnPriority(Priority::kIdle);
    after = ::getpriority(PRIO_PROCESS, own);
  }).Join();
  EXPECT_EQ(after, std::min(before + 10, 19));
}

TEST(WorkerPool, RunsAllAndRefusesBeyondItsBound) {
  std::atomic<int> done{0};
  std::atomic<bool> go{false};
  WorkerPool pool("test", 2, 3);
  const auto task = [&] {
    while (!go)
      FutexWait(reinterpret_cast<uint32_t*>(&go), 0, Deadline("go", milliseconds(1))).IgnoreError();
    ++done;
  };
  int accepted = 0;
  Status refused;
  while ((refused = pool.TrySubmit(task)).ok()) ASSERT_LE(++accepted, 5);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(pool.Drain(Deadline("drain", milliseconds(1))).code(), Code::kDeadlineExceeded);
  go = true;
  EXPECT_TRUE(pool.Submit(task, Deadline("room in the pool", seconds(60))).ok());
  EXPECT_TRUE(pool.Drain(Deadline("drain", seconds(60))).ok());
  EXPECT_EQ(done, accepted + 1);
  EXPECT_TRUE(pool.Submit(task, Deadline("room", seconds(60))).ok());
  pool.Shutdown();
  EXPECT_EQ(done, accepted + 2) << "what was accepted is run";
  EXPECT_EQ(pool.TrySubmit(task).code(), Code::kCancelled);
}

TEST(WorkerPool, WhatATaskThrowsGoesNoFurther) {
  std::string log;
  SetLogSink([&log](LogLevel, std::string_view message) { log += message; });
  std::atomic<int> done{0};
  {
    WorkerPool pool("test", 1, 3);
    EXPECT_TRUE(pool.TrySubmit([] { throw std::bad_alloc(); }).ok());
    EXPECT_TRUE(pool.TrySubmit([&] { ++done; }).ok());
    EXPECT_TRUE(pool.Drain(Deadline("drain", seconds(60))).ok());
  }
  SetLogSink(nullptr);
  EXPECT_EQ(done, 1);
  EXPECT_NE(log.find("out of memory"), std::string::npos);
}

}  // namespace
}  // namespace ckpt::os
