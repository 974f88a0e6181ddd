#include "libckpt/os/machine_check.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iostream>

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

// As a file system does that knows no O_DIRECT.
[[noreturn]] void CheckWhereDirectIsRefused(const std::string& folder) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_fcntl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_DIRECT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(3);
  const Finding finding = CheckDirect("store: direct I/O", folder);
  std::cerr << finding.message << "\n";
  ::_exit(finding.level == FindingLevel::kWarn && !finding.remedy.empty() ? 0 : 1);
}

TEST(MachineCheck, DirectIoIsTriedAndWhatRefusesItIsNamed) {
  std::string folder = testing::TempDir() + "/check.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const Finding finding = CheckDirect("store: direct I/O", folder + "/to/be/made");
  EXPECT_NE(finding.message.find(folder), std::string::npos) << finding.message;
  EXPECT_EQ(finding.remedy.empty(), finding.level == FindingLevel::kOk) << finding.message;
  EXPECT_EXIT(CheckWhereDirectIsRefused(folder), testing::ExitedWithCode(0),
              "not in .*: O_DIRECT: Invalid argument \\(EINVAL\\); files go through");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(CheckDirect("store: direct I/O", "/proc/none").level, FindingLevel::kWarn);
}

TEST(MachineCheck, TooLittleMemoryIsAWarning) {
  EXPECT_EQ(CheckMemory("memory", 1).level, FindingLevel::kOk);
  EXPECT_EQ(CheckMemory("memory", uint64_t{1} << 60).level, FindingLevel::kWarn);
}

}  // namespace
}  // namespace ckpt::os
