// A real ext4 of a few MiB, mounted from a file, that fills up: needs root and a loop device, and
// skips with the reason where there is none.
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

#include "tests/storage/small_job.h"

namespace ckpt::engine::testing {
namespace {

int Command(const std::string& line) { return std::system((line + " >/dev/null 2>&1").c_str()); }

class SmallExt4 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "mounting a small ext4 needs root";
    image_ = scratch_.path() + "/image";
    mount_ = scratch_.path() + "/mount";
    ASSERT_EQ(Command("mkdir " + mount_), 0);
    ASSERT_EQ(Command("truncate -s 8M " + image_), 0);
    if (Command("mkfs.ext4 -q -m 0 -O ^has_journal " + image_) != 0)
      GTEST_SKIP() << "mkfs.ext4 is not here";
    if (Command("mount -o loop " + image_ + " " + mount_) != 0)
      GTEST_SKIP() << "no loop device can be mounted here";
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) EXPECT_EQ(Command("umount " + mount_), 0);
  }
  uint64_t FreeBytes() const {
    struct statvfs room;
    EXPECT_EQ(::statvfs(mount_.c_str(), &room), 0);
    return room.f_bavail * room.f_bsize;
  }
  // Leaves `bytes` free.
  void FillUpTo(uint64_t bytes) {
    ::unlink((mount_ + "/ballast").c_str());
    const uint64_t free = FreeBytes();
    ASSERT_GT(free, bytes);
    std::ofstream out(mount_ + "/ballast", std::ios::binary);
    const std::string block(4096, 'b');
    for (uint64_t at = 0; at + 4096 <= free - bytes; at += 4096) out.write(block.data(), 4096);
  }

  Scratch scratch_{::testing::TempDir()};
  std::string image_, mount_;
  bool mounted_ = false;
};

TEST_F(SmallExt4, EveryBudgetLeavesThePredecessorAndTheNextSaveWorks) {
  const bool whole = std::getenv("CKPT_SOAK") != nullptr;
  int refused = 0, written = 0;
  for (uint64_t budget = 0; budget < 160 * 1024; budget += whole ? 4096 : 5 * 4096) {
    const std::string directory = mount_ + "/job";
    os::PosixFileSystem().RemoveTree(directory).IgnoreError();
    ::unlink((mount_ + "/ballast").c_str());
    SmallJob job(directory);
    ASSERT_CKPT_OK(job.Save(1));
    FillUpTo(budget);
    const Status full = job.Save(2);
    if (!full.ok()) {
      ++refused;
      EXPECT_EQ(full.code(), Code::kResourceExhausted) << budget << ": " << full.ToString();
      for (const char* part : {"needed", "free"})
        EXPECT_NE(full.message().find(part), std::string::npos) << full.message();
    }
    written += full.ok() ? 1 : 0;
    EXPECT_CKPT_OK(job.CheckNewest(full.ok() ? 2 : 1));
    ::unlink((mount_ + "/ballast").c_str());
    EXPECT_CKPT_OK(job.Save(3).Annotate("after a full disk"));
    EXPECT_CKPT_OK(job.CheckNewest(3));
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(written, 0);
}

}  // namespace
}  // namespace ckpt::engine::testing
