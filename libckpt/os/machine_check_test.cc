#include "libckpt/os/machine_check.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

namespace ckpt::os {
namespace {

TEST(MachineCheck, ThisKernelHasWhatIsNeeded) {
  for (const Finding& finding : CheckKernel()) {
    EXPECT_EQ(finding.level, FindingLevel::kOk) << finding.name << ": " << finding.message;
  }
}

TEST(MachineCheck, AFolderIsProbedAndLeftClean) {
  std::string folder = testing::TempDir() + "/check.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Finding good = CheckFolder("data", folder, 1);
  EXPECT_EQ(good.level, FindingLevel::kOk) << good.message;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const Finding missing = CheckFolder("data", folder + "/a/b", 1);
  EXPECT_EQ(missing.level, FindingLevel::kOk) << missing.message;
  EXPECT_NE(missing.message.find("to be made in " + folder), std::string::npos) << missing.message;
  const Finding full = CheckFolder("data", folder, uint64_t{1} << 62);
  EXPECT_EQ(full.level, FindingLevel::kFail);
  EXPECT_NE(full.remedy, "");
  std::filesystem::remove_all(folder);
}

TEST(MachineCheck, AFileIsNoFolder) {
  std::string file = testing::TempDir() + "/check.XXXXXX";
  const int fd = mkstemp(file.data());
  ASSERT_GE(fd, 0);
  ::close(fd);
  const Finding finding = CheckFolder("store", file, 1);
  EXPECT_EQ(finding.level, FindingLevel::kFail) << finding.message;
  EXPECT_NE(finding.message.find("cannot be written"), std::string::npos) << finding.message;
  std::filesystem::remove(file);
}

TEST(MachineCheck, TooLittleMemoryIsAWarning) {
  EXPECT_EQ(CheckMemory("memory", 1).level, FindingLevel::kOk);
  EXPECT_EQ(CheckMemory("memory", uint64_t{1} << 60).level, FindingLevel::kWarn);
}

}  // namespace
}  // namespace ckpt::os
