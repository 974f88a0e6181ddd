#include "libckpt/comm/nccl/preflight.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

namespace ckpt::comm::nccl {
namespace {

class PreflightTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("CKPT_EXPECT_NCCL") == nullptr)
      GTEST_SKIP() << "SKIPPED: only a double can be told what it is";
  }
  void TearDown() override {
    for (const auto& [name, value] : told_) ::unsetenv(name.c_str());
  }
  void Tell(const std::string& name, const std::string& value) {
    told_[name] = value;
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  Finding Of(const std::string& check, uint32_t world = 2, const Status& graphs = OkStatus()) {
    const auto device = device::CudaDevice::Open(0).value();
    findings_ = Preflight(*Library::Get().value(), *device, world, graphs);
    for (const Finding& finding : findings_) {
      if (finding.check == check) return finding;
    }
    return {"not found", Verdict::kNo, ""};
  }
  std::map<std::string, std::string> told_;
  std::vector<Finding> findings_;
};

TEST_F(PreflightTest, SaysWhatItIs) {
  const Finding nccl = Of("nccl");
  EXPECT_EQ(nccl.reason.substr(0, 7), "2.32.3,") << nccl.reason;
  EXPECT_NE(nccl.reason.find("libnccl.so.2"), std::string::npos);
  EXPECT_EQ(Of("driver").reason, "CUDA 13.0");
  EXPECT_EQ(Of("ipc").verdict, Verdict::kUnknown);
  EXPECT_TRUE(Refusal(findings_).ok());
}

TEST_F(PreflightTest, RefusesMigForSeveralRanksOnly) {
  Tell("CKPT_FAKECUDA_MIG", "1");
  EXPECT_EQ(Of("mig").verdict, Verdict::kNo);
  EXPECT_NE(Refusal(findings_).message().find("mig: "), std::string::npos);
  EXPECT_EQ(Of("mig", 1).verdict, Verdict::kYes);
  EXPECT_TRUE(Refusal(findings_).ok());
}

TEST_F(PreflightTest, KnowsComputeModesOldDriversAndMulticast) {
  Tell("CKPT_FAKECUDA_COMPUTE_MODE", "2");
  EXPECT_EQ(Of("compute mode").verdict, Verdict::kNo);
  Tell("CKPT_FAKECUDA_COMPUTE_MODE", "3");
  EXPECT_NE(Of("compute mode").reason.find("exclusive process"), std::string::npos);
  Tell("CKPT_FAKECUDA_DRIVER", "12040");
  EXPECT_NE(Of("driver").reason.find("CUDA 12.4, before 12.8"), std::string::npos);
  Tell("CKPT_FAKECUDA_MULTICAST", "1");
  EXPECT_NE(Of("nvls").reason.find("driver's own checkpoint"), std::string::npos);
  Tell("NCCL_NVLS_ENABLE", "0");
  EXPECT_EQ(Of("nvls").reason, "NCCL_NVLS_ENABLE is 0");
}

TEST_F(PreflightTest, AGraphIsReportedAndNotRefused) {
  const Finding graphs = Of("graphs", 2, FailedPrecondition("graph \"a\" holds\nit"));
  EXPECT_EQ(graphs.verdict, Verdict::kNo);
  EXPECT_TRUE(Refusal(findings_).ok());
  EXPECT_NE(ToJson(findings_).find(
                R"({"check":"graphs","verdict":"no","reason":"graph \"a\" holds it"})"),
            std::string::npos)
      << ToJson(findings_);
}

}  // namespace
}  // namespace ckpt::comm::nccl
