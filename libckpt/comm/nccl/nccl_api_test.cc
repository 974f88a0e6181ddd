// What we declare is what NCCL's header says, where it is there: checked when this compiles.
#include "libckpt/comm/nccl/nccl_api.h"

#include <gtest/gtest.h>

#include "libckpt/comm/nccl/config.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

#include "libckpt/testing/header_twin.h"

CKPT_TWIN_STRUCT(ncclUniqueId, ckpt::comm::nccl::UniqueId)
CKPT_TWIN_STRUCT(ncclConfig_t, ckpt::comm::nccl::Config)

namespace ckpt::comm::nccl {
namespace {

using testing::Plain;

#define CKPT_SAME_CALL(name, result, parameters) \
  static_assert(std::is_same_v<Plain<decltype(::name)>::Type, result parameters>, #name);
CKPT_NCCL_CALLS(CKPT_SAME_CALL)
CKPT_NCCL_LATER_CALLS(CKPT_SAME_CALL)

static_assert(sizeof(ncclUniqueId) == sizeof(UniqueId));
static_assert(sizeof(ncclConfig_t) >= sizeof(Config));
#define CKPT_SAME_FIELD(theirs, ours) \
  static_assert(offsetof(ncclConfig_t, theirs) == offsetof(Config, ours), #theirs);
CKPT_SAME_FIELD(size, size)
CKPT_SAME_FIELD(magic, magic)
CKPT_SAME_FIELD(version, version)
CKPT_SAME_FIELD(blocking, blocking)
CKPT_SAME_FIELD(cgaClusterSize, cga_cluster_size)
CKPT_SAME_FIELD(minCTAs, min_ctas)
CKPT_SAME_FIELD(maxCTAs, max_ctas)
CKPT_SAME_FIELD(netName, net_name)
CKPT_SAME_FIELD(splitShare, split_share)
static_assert(offsetof(ncclConfig_t, blocking) == kConfigBlockingOffset);
static_assert(offsetof(ncclConfig_t, netName) == kConfigNetNameOffset);
static_assert(offsetof(ncclConfig_t, commName) == kConfigCommNameOffset);
static_assert(NCCL_API_MAGIC == kMagic);
static_assert(NCCL_CONFIG_UNDEF_INT == kUndefined);
static_assert(NCCL_SPLIT_NOCOLOR == kSplitNoColor);

CKPT_SAME_NUMBER(kSuccess, ncclSuccess)
CKPT_SAME_NUMBER(kUnhandledCudaError, ncclUnhandledCudaError)
CKPT_SAME_NUMBER(kSystemError, ncclSystemError)
CKPT_SAME_NUMBER(kInternalError, ncclInternalError)
CKPT_SAME_NUMBER(kInvalidArgument, ncclInvalidArgument)
CKPT_SAME_NUMBER(kInvalidUsage, ncclInvalidUsage)
CKPT_SAME_NUMBER(kRemoteError, ncclRemoteError)
CKPT_SAME_NUMBER(kInProgress, ncclInProgress)
CKPT_SAME_NUMBER(kUint8, ncclUint8)
CKPT_SAME_NUMBER(kInt64, ncclInt64)
CKPT_SAME_NUMBER(kUint64, ncclUint64)
CKPT_SAME_NUMBER(kFloat32, ncclFloat32)
CKPT_SAME_NUMBER(kFloat64, ncclFloat64)
CKPT_SAME_NUMBER(kSum, ncclSum)

}  // namespace

TEST(NcclApi, IsWhatTheHeaderSays) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.commName = "tensor";
  Result<ConfigCopy> copy = ConfigCopy::Of(&config);
  ASSERT_TRUE(copy.ok());
  auto* const theirs = reinterpret_cast<ncclConfig_t*>(copy->get());
  EXPECT_EQ(theirs->size, sizeof config);
  EXPECT_EQ(theirs->blocking, 0);
  EXPECT_NE(theirs->commName, config.commName);
  EXPECT_STREQ(theirs->commName, "tensor");
  EXPECT_EQ(theirs->nvlsHostMode, NCCL_CONFIG_UNDEF_INT);
}
}  // namespace ckpt::comm::nccl
#else
TEST(NcclApi, IsWhatTheHeaderSays) {
  GTEST_SKIP() << "SKIPPED: no nccl.h here (NCCL_HOME, and the CUDA Toolkit)";
}
#endif

namespace ckpt::comm::nccl {
namespace {

TEST(NcclConfig, OfAnOlderHeaderIsAsLongAsItWas) {
  struct {  // 2.14
    size_t size = 20;
    unsigned magic = kMagic, version = 21400;
    int blocking = kUndefined;
    int canary = 7;
  } old;
  Result<ConfigCopy> copy = ConfigCopy::Of(&old);
  ASSERT_TRUE(copy.ok()) << copy.status().ToString();
  EXPECT_EQ(copy->get()->size, 20u);
  EXPECT_EQ(copy->get()->version, 21400u);
  EXPECT_EQ(copy->get()->blocking, 0);
}

TEST(NcclConfig, OwnsItsStrings) {
  std::string name = "Socket";
  Config config;
  config.net_name = name.c_str();
  Result<ConfigCopy> copy = ConfigCopy::Of(&config);
  ASSERT_TRUE(copy.ok());
  name = "Changed";
  const ConfigCopy moved = std::move(*copy);
  EXPECT_STREQ(const_cast<ConfigCopy&>(moved).get()->net_name, "Socket");
}

TEST(NcclConfig, RefusesWhatIsNotInitialisedAndWhatBlocks) {
  Config config;
  config.magic = 0;
  EXPECT_EQ(ConfigCopy::Of(&config).status().code(), Code::kInvalidArgument);
  config = Config();
  config.size = 4;
  EXPECT_EQ(ConfigCopy::Of(&config).status().code(), Code::kInvalidArgument);
  config = Config();
  config.blocking = 1;
  const Status status = ConfigCopy::Of(&config).status();
  EXPECT_NE(status.message().find("blocking"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace ckpt::comm::nccl
