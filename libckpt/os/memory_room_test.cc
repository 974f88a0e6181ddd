#include "libckpt/os/memory_room.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace ckpt::os {
namespace {

class MemoryRoomTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "memory-room-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    File("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  800 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void File(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  MemoryRoom Room() {
    const Result<MemoryRoom> room = AvailableMemory(root_ + "/proc", root_ + "/cgroup");
    EXPECT_TRUE(room.ok()) << room.status().ToString();
    return room.ok() ? *room : MemoryRoom();
  }

  std::string root_;
};

TEST_F(MemoryRoomTest, WithoutACgroupItIsTheMachines) {
  const MemoryRoom room = Room();
  EXPECT_EQ(room.bytes, 800u * 1024);
  EXPECT_EQ(room.limit_bytes, 1000u * 1024);
  EXPECT_EQ(room.limit, "this machine's memory");
}

TEST_F(MemoryRoomTest, TheTightestLevelCountsAndPageCacheIsRoom) {
  File("proc/self/cgroup", "0::/jobs/train\n");
  File("cgroup/jobs/train/memory.max", "max\n");
  File("cgroup/jobs/train/memory.current", "5000\n");
  File("cgroup/jobs/memory.max", "100000\n");
  File("cgroup/jobs/memory.current", "90000\n");
  File("cgroup/jobs/memory.stat", "anon 60000\nactive_file 10000\ninactive_file 20000\n");
  const MemoryRoom room = Room();
  EXPECT_EQ(room.bytes, 40000u);
  EXPECT_EQ(room.limit_bytes, 100000u);
  EXPECT_NE(room.limit.find("/cgroup/jobs/memory.max"), std::string::npos) << room.limit;
}

TEST_F(MemoryRoomTest, AnOlderVersionsLimitCountsToo) {
  File("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/box\n0::/\n");
  File("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  File("cgroup/memory/memory.usage_in_bytes", "70000\n");
  File("cgroup/memory/box/memory.limit_in_bytes", "50000\n");
  File("cgroup/memory/box/memory.usage_in_bytes", "60000\n");
  EXPECT_EQ(Room().bytes, 0u);
}

TEST_F(MemoryRoomTest, NothingToReadIsAnError) {
  std::filesystem::remove_all(root_ + "/proc");
  EXPECT_EQ(AvailableMemory(root_ + "/proc", root_).status().code(), Code::kInternal);
}

TEST(MemoryRoom, OfThisMachine) {
  const Result<MemoryRoom> room = AvailableMemory();
  ASSERT_TRUE(room.ok()) << room.status().ToString();
  EXPECT_GT(room->bytes, 0u);
}

}  // namespace
}  // namespace ckpt::os
