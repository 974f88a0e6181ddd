// The queue of the kernel behind os::File; what it refuses must be made all the same.
#include "libckpt/os/uring/uring_file.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <deque>

#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/limits.h"

namespace ckpt::os {
namespace {

class UringFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/ckpt-uring-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { PosixFileSystem().RemoveTree(dir_).IgnoreError(); }
  std::unique_ptr<File> OpenDirect(const std::string& name, OpenOptions options) {
    options.direct = true;
    auto file = UringFileSystem().Open(JoinPath(dir_, name), options);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return file.ok() ? std::move(file).value() : nullptr;
  }
  // Skips the test where there is no queue: then nothing here is about it.
  static bool Queued(const File& file) { return file.depth() > 1; }

  std::string dir_;
};
#define CKPT_NEEDS_QUEUE(file) \
  if (!Queued(file)) GTEST_SKIP() << "io_uring or direct I/O is refused here"

AlignedBuffer Pages(uint64_t number, uint64_t pages) {
  AlignedBuffer buffer(pages * kPageBytes);
  for (size_t i = 0; i < buffer.size(); ++i)
    buffer.data()[i] = static_cast<std::byte>(number * 131 + i * 7 + i / kPageBytes);
  return buffer;
}

TEST_F(UringFileTest, WhatIsStartedIsThereWhenItWasAwaited) {
  const auto file = OpenDirect("f", OpenOptions::CreateNew());
  CKPT_NEEDS_QUEUE(*file);
  constexpr uint64_t kBlocks = 40, kPages = 5;  // more than can be under way at once
  std::deque<AlignedBuffer> blocks;
  std::deque<Transfer> writes;
  for (uint64_t b = 0; b < kBlocks; ++b) {
    blocks.push_back(Pages(b, kPages));
    const auto started = file->StartWrite(b * kPages * kPageBytes, blocks.back().span());
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    EXPECT_NE(started->number, 0u);
    writes.push_back(*started);
  }
  for (; !writes.empty(); writes.pop_back()) {  // in any order
    const auto written = file->Await(writes.back());
    ASSERT_TRUE(written.ok()) << written.status().ToString();
    EXPECT_EQ(*written, kPages * kPageBytes);
  }
  ASSERT_TRUE(file->Sync().ok());
  std::deque<AlignedBuffer> back;
  std::deque<Transfer> reads;
  for (uint64_t b = 0; b < kBlocks; ++b) {
    back.emplace_back(kPages * kPageBytes);
    reads.push_back(file->StartRead(b * kPages * kPageBytes, back.back().span()).value());
  }
  for (uint64_t b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(file->Await(reads[b]).value(), kPages * kPageBytes);
    EXPECT_EQ(AsText(back[b].span()), AsText(blocks[b].span())) << b;
  }
  EXPECT_TRUE(file->Close().ok());
}

TEST_F(UringFileTest, AReadEndsWhereTheFileEnds) {
  const AlignedBuffer pages = Pages(1, 3);
  const std::string bytes(AsText(pages.span().first(2 * kPageBytes + 100)));
  ASSERT_TRUE(WriteNewFile(PosixFileSystem(), JoinPath(dir_, "f"), bytes).ok());
  const auto file = OpenDirect("f", OpenOptions::Read());
  CKPT_NEEDS_QUEUE(*file);
  AlignedBuffer out(8 * kPageBytes);
  const auto all = file->Await(file->StartRead(0, out.span()).value());
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_EQ(*all, bytes.size());
  EXPECT_EQ(AsText(out.span().first(*all)), bytes);
  EXPECT_EQ(file->Await(file->StartRead(4 * kPageBytes, out.span()).value()).value(), 0u);
}

TEST_F(UringFileTest, WhatIsNoPageIsMadeWithoutTheQueue) {
  const auto file = OpenDirect("f", OpenOptions::CreateNew());
  CKPT_NEEDS_QUEUE(*file);
  const AlignedBuffer pages = Pages(2, 2);
  const auto tail = file->StartWrite(0, pages.span().first(100));
  ASSERT_TRUE(tail.ok());
  EXPECT_EQ(tail->number, 0u);
  EXPECT_EQ(file->Await(*tail).value(), 100u);
  EXPECT_EQ(file->Size().value(), 100u);
}

// I2: the error is that of pwrite, with the path in it.
TEST_F(UringFileTest, ARefusedWriteHasAnErrorOfItsOwn) {
  ASSERT_TRUE(WriteNewFile(PosixFileSystem(), JoinPath(dir_, "f"), "x").ok());
  const auto file = OpenDirect("f", OpenOptions::Read());
  CKPT_NEEDS_QUEUE(*file);
  const AlignedBuffer pages = Pages(3, 1);
  const auto started = file->StartWrite(0, pages.span());
  ASSERT_TRUE(started.ok());
  const auto written = file->Await(*started);
  EXPECT_FALSE(written.ok());
  EXPECT_NE(written.status().message().find(dir_ + "/f"), std::string::npos)
      << written.status().ToString();
}

// A write that the limit of the file's size cuts short: what is left is tried again, and refused.
TEST_F(UringFileTest, AShortWriteIsNoSuccess) {
  const auto file = OpenDirect("f", OpenOptions::CreateNew());
  CKPT_NEEDS_QUEUE(*file);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{2 * kPageBytes, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const AlignedBuffer pages = Pages(4, 4);
  const auto started = file->StartWrite(0, pages.span());
  const auto written = started.ok() ? file->Await(*started) : started.status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(written.ok());
}

// I1: the memory is the kernel's until the file is gone; sanitizers would see it otherwise.
TEST_F(UringFileTest, AFileThatIsDestroyedWaitsForWhatIsUnderWay) {
  AlignedBuffer pages = Pages(5, 64);
  const std::string expected(AsText(pages.span()));
  {
    const auto file = OpenDirect("f", OpenOptions::CreateNew());
    CKPT_NEEDS_QUEUE(*file);
    ASSERT_TRUE(file->StartWrite(0, pages.span()).ok());
  }
  std::fill(pages.span().begin(), pages.span().end(), std::byte{0});
  EXPECT_EQ(ReadFile(PosixFileSystem(), JoinPath(dir_, "f"), expected.size()).value(), expected);
}

TEST_F(UringFileTest, NothingIsWrittenAfterAFailedSync) {
#if !defined(CKPT_FAULTS)
  GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)";
#else
  const auto file = OpenDirect("f", OpenOptions::CreateNew());
  CKPT_NEEDS_QUEUE(*file);
  {
    ArmedFault fault("os.file.sync", ErrnoStatus(EIO, "syncing f"));
    EXPECT_EQ(file->Sync().code(), Code::kDataLoss);
  }
  const AlignedBuffer pages = Pages(6, 1);
  EXPECT_EQ(file->StartWrite(0, pages.span()).status().code(), Code::kFailedPrecondition);
#endif
}

// No descriptor is left for a ring.
TEST_F(UringFileTest, AFileWithoutARingIsWrittenAllTheSame) {
  const auto file = OpenDirect("f", OpenOptions::CreateNew());
  CKPT_NEEDS_QUEUE(*file);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const AlignedBuffer pages = Pages(7, 2);
  const auto started = file->StartWrite(0, pages.span());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(started.ok()) << started.status().ToString();
  EXPECT_EQ(started->number, 0u);
  EXPECT_EQ(file->Await(*started).value(), pages.size());
}

// As the profiles of containers do it.
bool RefuseIoUring(unsigned call = __NR_io_uring_setup, unsigned error = EPERM) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

[[noreturn]] void WriteWhereItIsRefused(const std::string& path) {
  if (!RefuseIoUring()) ::_exit(3);
  if (&UringFileSystem() != &PosixFileSystem()) ::_exit(4);
  OpenOptions options = OpenOptions::CreateNew();
  options.direct = true;
  const auto file = UringFileSystem().Open(path, options);
  const AlignedBuffer pages = Pages(8, 2);
  if (!file.ok()) ::_exit(5);
  const auto started = (*file)->StartWrite(0, pages.span());
  if (!started.ok() || (*file)->Await(*started).value() != pages.size()) ::_exit(6);
  ::_exit((*file)->Sync().ok() && (*file)->Close().ok() ? 0 : 7);
}

TEST_F(UringFileTest, WhereAProfileRefusesItFilesAreWrittenByThePool) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a fresh process: it asks only once
  EXPECT_EXIT(WriteWhereItIsRefused(dir_ + "/f"), ::testing::ExitedWithCode(0), "");
}

[[noreturn]] void CheckWhereItIsRefused(unsigned call, unsigned error) {
  if (!RefuseIoUring(call, error)) ::_exit(3);
  const Finding finding = CheckUring();
  std::fprintf(stderr, "%s -> %s\n", finding.message.c_str(), finding.remedy.c_str());
  ::_exit(finding.level == FindingLevel::kWarn ? 0 : 1);
}

TEST_F(UringFileTest, TheDoctorNamesWhatRefusesIt) {
  const bool used = &UringFileSystem() != &PosixFileSystem();
  const Finding here = CheckUring();
  EXPECT_EQ(here.level, used ? FindingLevel::kOk : FindingLevel::kWarn) << here.message;
  if (!used) GTEST_SKIP() << "no ring can be had here: " << here.message;
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto zero = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(CheckWhereItIsRefused(__NR_io_uring_setup, EPERM), zero,
              "making a ring: .*\\(EPERM\\); .* -> let the container's seccomp profile");
  EXPECT_EXIT(CheckWhereItIsRefused(__NR_io_uring_setup, ENOSYS), zero,
              "making a ring: .*\\(ENOSYS\\); .* -> it came with Linux 5.1");
  EXPECT_EXIT(CheckWhereItIsRefused(__NR_io_uring_setup, ENOMEM), zero,
              "making a ring: .*\\(ENOMEM\\); .* -> raise the limit of locked memory");
  EXPECT_EXIT(CheckWhereItIsRefused(__NR_io_uring_enter, EACCES), zero,
              "using a ring: .*\\(EACCES\\)");
}

}  // namespace
}  // namespace ckpt::os
