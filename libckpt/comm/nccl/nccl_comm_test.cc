// The communicators over whatever NCCL and driver the loader finds: the doubles where ctest says so
// (CKPT_EXPECT_NCCL), real ones where there are some. Rank r is a thread on device r: NCCL refuses
// two ranks on one. Without enough devices the tests say that they are skipped.
#include "libckpt/comm/nccl/nccl_comm.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "libckpt/comm/local/local_comm.h"
#include "libckpt/device/cuda/driver_api.h"
#include "libckpt/testing/comm_conformance.h"
#include "libckpt/testing/fakenccl/fakenccl.h"

namespace ckpt::testing {
namespace {

namespace nccl = comm::nccl;
using comm::LocalKeyValue;
using comm::NcclCommunicators;
using device::CudaDevice;

Deadline Soon() { return Deadline("test", std::chrono::seconds(20)); }
Deadline Short() { return Deadline("a short wait", std::chrono::milliseconds(300)); }

std::unique_ptr<NcclCommunicators> Make(uint32_t rank, uint32_t world) {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(static_cast<int>(rank));
  if (!device.ok()) {
    EXPECT_EQ(std::getenv("CKPT_EXPECT_NCCL"), nullptr) << device.status().ToString();
    std::printf("%s\n", device.status().ToString().c_str());
    return nullptr;
  }
  Result<std::unique_ptr<NcclCommunicators>> group = NcclCommunicators::Make(
      "world", rank, world, std::shared_ptr<CudaDevice>(std::move(*device)), nullptr);
  if (group.ok()) return std::move(*group);
  EXPECT_EQ(std::getenv("CKPT_EXPECT_NCCL"), nullptr) << group.status().ToString();
  std::printf("%s\n", group.status().ToString().c_str());
  return nullptr;
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommConformance, ::testing::Values(CommMaker{"nccl", Make}));

// All that one GPU can show: NCCL refuses two ranks on it.
TEST(NcclOneRank, GoesDownAndComesBackWithItsSplitAndBuffer) {
  const std::unique_ptr<NcclCommunicators> rank = Make(0, 1);
  if (rank == nullptr) GTEST_SKIP() << "SKIPPED: no NCCL, or no device";
  const auto device = CudaDevice::Open(0).value();
  void* const memory = device->Alloc(1 << 20).value();
  const uint32_t split = rank->AddSplit("part", 0, 0, 0, nullptr).value();
  const Status buffer = rank->AddBuffer(split, memory, 1 << 20, false, 0);
  EXPECT_TRUE(buffer.ok() || buffer.code() == Code::kUnimplemented) << buffer.ToString();
  for (int i = 0; i < 3; ++i) {
    LocalKeyValue kv;
    ASSERT_TRUE(rank->Up("alone-" + std::to_string(i), &kv, Soon()).ok());
    const Status verified = rank->Verify(Soon());
    EXPECT_TRUE(verified.ok()) << verified.ToString();
    EXPECT_NE(rank->handle(split), nullptr);
    EXPECT_TRUE(rank->Quiesce(Soon()).ok());
    EXPECT_TRUE(rank->Down(Soon()).ok());
  }
  EXPECT_TRUE(device->Free(memory).ok());
}

// What only the double can be told to do.
template <typename Return = void, typename... Arguments>
Return Control(const char* name, Arguments... arguments) {
  static void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Return (*)(Arguments...)>(::dlsym(library, name))(arguments...);
}
void Fail(const char* call, int result, bool sticky = false, uint64_t nth = 1) {
  Control("fakenccl_fail", call, nth, result, sticky ? 1 : 0);
}
uint64_t Living() { return Control<uint64_t>("fakenccl_living"); }

class FakeNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || ::dlsym(library, "fakenccl_fail") == nullptr) {
      ASSERT_EQ(std::getenv("CKPT_EXPECT_NCCL"), nullptr) << "the double of NCCL was not found";
      GTEST_SKIP() << "SKIPPED: this NCCL is not the double";
    }
  }
  void MakeRanks(uint32_t world) {
    for (uint32_t r = 0; r < world; ++r) ranks_.push_back(Make(r, world));
  }
  std::vector<Status> OnAll(const std::function<Status(uint32_t)>& body) {
    std::vector<Status> statuses(ranks_.size());
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < ranks_.size(); ++r)
      threads.emplace_back([&, r] { statuses[r] = body(r); });
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  void ExpectAllOk(const std::function<Status(uint32_t)>& body) {
    const auto statuses = OnAll(body);
    for (size_t r = 0; r < statuses.size(); ++r)
      EXPECT_TRUE(statuses[r].ok()) << "rank " << r << ": " << statuses[r].ToString();
  }
  std::vector<Status> TryUp(const Deadline& deadline) {
    const std::string id = "incarnation-" + std::to_string(++built_);
    kv_ = std::make_unique<LocalKeyValue>();
    return OnAll([&](uint32_t r) { return ranks_[r]->Up(id, kv_.get(), deadline); });
  }
  void Up() {
    const auto statuses = TryUp(Soon());
    for (const Status& status : statuses) ASSERT_TRUE(status.ok()) << status.ToString();
  }
  void QuiesceAndDown() {
    ExpectAllOk([&](uint32_t r) { return ranks_[r]->Quiesce(Soon()); });
    ExpectAllOk([&](uint32_t r) { return ranks_[r]->Down(Soon()); });
  }

  std::vector<std::unique_ptr<NcclCommunicators>> ranks_;
  std::unique_ptr<LocalKeyValue> kv_;
  int built_ = 0;
};

TEST_F(FakeNccl, SplitsAndBuffersComeBackWithTheWorld) {
  MakeRanks(4);
  std::vector<std::shared_ptr<CudaDevice>> devices;
  std::vector<void*> memory;
  for (uint32_t r = 0; r < 4; ++r) {
    devices.push_back(CudaDevice::Open(static_cast<int>(r)).value());
    memory.push_back(devices[r]->Alloc(1 << 20).value());
    NcclCommunicators& rank = *ranks_[r];
    const int color = static_cast<int>(r % 2), key = -static_cast<int>(r);  // the other way round
    const uint32_t pairs = rank.AddSplit("pairs", 0, color, key, nullptr).value();
    const uint32_t alone = rank.AddSplit("alone", pairs, r < 2 ? 0 : -1, 0, nullptr).value();
    EXPECT_EQ(alone, 2u);
    ASSERT_TRUE(rank.AddBuffer(0, memory[r], 4096, false, 0).ok());
    ASSERT_TRUE(rank.AddBuffer(pairs, memory[r], 1 << 20, true, 1).ok());
  }
  const auto aborts = Control<uint64_t>("fakenccl_passages", "ncclCommAbort");
  for (int round = 0; round < 2; ++round) {
    Up();
    ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
    EXPECT_EQ(Living(), 4u + 4u + 2u);
    EXPECT_EQ(Control<uint64_t>("fakenccl_registered_bytes"), 4u * (4096 + (1 << 20)));
    for (uint32_t r = 0; r < 4; ++r) {
      EXPECT_NE(ranks_[r]->window(memory[r]), nullptr);
      EXPECT_EQ(ranks_[r]->handle(2) != nullptr, r < 2);
    }
    QuiesceAndDown();
    EXPECT_EQ(Living(), 0u);
    EXPECT_EQ(ranks_[0]->handle(0), nullptr);
    EXPECT_EQ(ranks_[0]->window(memory[0]), nullptr);
  }
  EXPECT_EQ(Control<uint64_t>("fakenccl_passages", "ncclCommAbort"), aborts);
  ranks_.clear();
  for (uint32_t r = 0; r < 4; ++r) EXPECT_TRUE(devices[r]->Free(memory[r]).ok());
}

// A stream of the program's own with a collective that waits for a peer.
class OneStuck : public FakeNccl {
 protected:
  void SetUp() override {
    FakeNccl::SetUp();
    if (IsSkipped()) return;
    MakeRanks(2);
    device_ = CudaDevice::Open(0).value();
    stream_ = device_->CreateStream().value();
    memory_ = static_cast<std::byte*>(device_->Alloc(4096).value());
    ranks_[0]->AddStream(stream_);
    living_before_ = Living();
    Up();
    const Status enqueued = device_->InItsContext([&] {
      const nccl::Library* const library = nccl::Library::Get().value();
      return library->StatusOf(
          library->ncclAllGather(memory_, memory_ + 1024, 64, nccl::kUint8, ranks_[0]->handle(0),
                                 static_cast<nccl::StreamPtr>(stream_)),
          "ncclAllGather", nullptr);
    });
    ASSERT_TRUE(enqueued.ok()) << enqueued.ToString();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    ranks_.clear();
    EXPECT_TRUE(device_->DestroyStream(stream_).ok());
    EXPECT_TRUE(device_->Free(memory_).ok());
  }
  std::shared_ptr<CudaDevice> device_;
  device::StreamHandle stream_ = nullptr;
  std::byte* memory_ = nullptr;
  uint64_t living_before_ = 0;
};

TEST_F(OneStuck, QuiesceNamesRankCommunicatorAndDeadline) {
  const Status status = ranks_[0]->Quiesce(Short());
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
  for (const char* word : {"rank 0", "'world'", "draining a stream", "a short wait"})
    EXPECT_NE(status.message().find(word), std::string::npos) << word << ": " << status.ToString();
  // Then it is aborted, without a try to finalize, which would wait for the peer.
  EXPECT_TRUE(ranks_[0]->Down(Soon()).ok());
  EXPECT_TRUE(ranks_[1]->Down(Soon()).ok());
  EXPECT_EQ(Living(), living_before_);
  Up();
  ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
}

TEST_F(OneStuck, EndsWhenItsPeerIsAborted) {
  EXPECT_TRUE(ranks_[1]->Down(Soon()).ok());
  const Status status = ranks_[0]->Quiesce(Soon());
  EXPECT_EQ(status.code(), Code::kAborted) << status.ToString();
  EXPECT_TRUE(ranks_[0]->Down(Soon()).ok());
}

// Over NVLink nobody hears of an abort: the deadline ends the wait, and the abort of this rank
// needs no peer.
TEST_F(OneStuck, AnAbortThatItsPeerDoesNotHearOfEndsAtTheDeadline) {
  ::setenv("CKPT_FAKENCCL_SILENT_ABORT", "1", 1);
  EXPECT_TRUE(ranks_[1]->Down(Soon()).ok());
  EXPECT_EQ(ranks_[0]->Quiesce(Short()).code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(ranks_[0]->Down(Soon()).ok());
  EXPECT_EQ(Living(), living_before_);
  Up();
  ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
  QuiesceAndDown();
  ::unsetenv("CKPT_FAKENCCL_SILENT_ABORT");
}

TEST_F(OneStuck, AnAsynchronousErrorEndsTheWait) {
  Control("fakenccl_async_error", ranks_[0]->handle(0), int{nccl::kRemoteError});
  const Status status = ranks_[0]->Quiesce(Soon());
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_NE(status.message().find("remote process exited"), std::string::npos) << status.ToString();
}

// Finalize needs all ranks; one that is left alone aborts in the end.
TEST_F(FakeNccl, ARankThatFinalizesAloneIsAborted) {
  MakeRanks(2);
  Up();
  ASSERT_TRUE(ranks_[0]->Quiesce(Soon()).ok());
  EXPECT_TRUE(ranks_[0]->Down(Short()).ok());
  EXPECT_TRUE(ranks_[1]->Down(Soon()).ok());
  EXPECT_EQ(Living(), 0u);
}

TEST_F(FakeNccl, AGraphThatHoldsACommunicatorIsNamedAndNothingIsTouched) {
  MakeRanks(2);
  Up();
  ASSERT_TRUE(ranks_[0]->Graph(0, "forward", true).ok());
  for (const Status& status : {ranks_[0]->Quiesce(Soon()), ranks_[0]->Down(Soon())}) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_NE(status.message().find("'forward'"), std::string::npos) << status.ToString();
  }
  ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
  ASSERT_TRUE(ranks_[0]->Graph(0, "forward", false).ok());
  QuiesceAndDown();
}

// A graph that nobody told of: NCCL's abort does not return, and the rank is not held for that.
TEST_F(FakeNccl, AnAbortThatDoesNotReturnIsGivenUpAndNothingIsBuiltOnIt) {
  MakeRanks(1);
  Up();
  auto* const held = ranks_[0]->handle(0);
  Control("fakenccl_hold", held, 1);
  const Status status = ranks_[0]->Down(Short());
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
  EXPECT_NE(status.message().find("ncclCommAbort"), std::string::npos) << status.ToString();
  const Status again = TryUp(Soon())[0];
  EXPECT_NE(again.message().find("start the process again"), std::string::npos) << again.ToString();
  ranks_.clear();  // what hangs is left alone
  Control("fakenccl_hold", held, -1);
  while (Living() > 0) std::this_thread::yield();
  MakeRanks(1);  // whose abort joins the thread of the one before
  Up();
}

TEST_F(FakeNccl, WhatTheRanksSplitDifferentlyEndsAtTheDeadline) {
  MakeRanks(2);
  ASSERT_TRUE(ranks_[0]->AddSplit("one", 0, 0, 0, nullptr).ok());
  const auto statuses = TryUp(Deadline("bringing up", std::chrono::seconds(1)));
  EXPECT_FALSE(statuses[0].ok());
  EXPECT_NE(statuses[0].message().find("ncclCommSplit"), std::string::npos)
      << statuses[0].ToString();
}

TEST_F(FakeNccl, TwoRanksOnOneDeviceAreRefused) {
  for (uint32_t r = 0; r < 2; ++r)
    ranks_.push_back(
        NcclCommunicators::Make("world", r, 2,
                                std::shared_ptr<CudaDevice>(CudaDevice::Open(0).value()), nullptr)
            .value());
  for (const Status& status : TryUp(Soon()))
    EXPECT_NE(status.message().find("invalid usage"), std::string::npos) << status.ToString();
}

// Every call once and from then on: each round ends, is down, and the next one works.
TEST_F(FakeNccl, EachCallThatFailsIsNamedAndTheNextBuildWorks) {
  constexpr const char* kCalls[] = {
      "ncclGetUniqueId",       "ncclCommInitRankConfig", "ncclCommInitRankConfig.async",
      "ncclCommSplit",         "ncclCommSplit.async",    "ncclCommGetAsyncError",
      "ncclCommRegister",      "ncclCommCount",          "ncclCommUserRank",
      "ncclAllGather",         "ncclCommDeregister",     "ncclCommFinalize",
      "ncclCommFinalize.async"};
  MakeRanks(2);
  auto device = CudaDevice::Open(0).value();
  void* const memory = device->Alloc(4096).value();
  for (uint32_t r = 0; r < 2; ++r)
    ASSERT_TRUE(ranks_[r]->AddSplit("part", 0, 0, static_cast<int>(r), nullptr).ok());
  ASSERT_TRUE(ranks_[0]->AddBuffer(0, memory, 4096, false, 0).ok());
  for (const char* call : kCalls) {
    for (const bool sticky : {false, true}) {
      SCOPED_TRACE(std::string(call) + (sticky ? " from now on" : " once"));
      const uint64_t before = Control<uint64_t>("fakenccl_passages", call);
      Fail(call, nccl::kSystemError, sticky);
      std::vector<Status> all = TryUp(Deadline("bringing up", std::chrono::seconds(1)));
      const auto add = [&](std::vector<Status> more) {
        all.insert(all.end(), more.begin(), more.end());
      };
      const Deadline check("a check", std::chrono::seconds(1));
      add(OnAll([&](uint32_t r) { return ranks_[r]->Verify(check); }));
      add(OnAll([&](uint32_t r) { return ranks_[r]->Quiesce(Soon()); }));
      add(OnAll([&](uint32_t r) { return ranks_[r]->Down(Soon()); }));
      EXPECT_GT(Control<uint64_t>("fakenccl_passages", call), before) << "never reached";
      EXPECT_EQ(Living(), 0u);
      const std::string name = std::string(call).substr(0, std::string(call).find('.'));
      const bool teardown = name == "ncclCommFinalize" || name == "ncclCommDeregister";
      const bool named = std::any_of(all.begin(), all.end(), [&](const Status& status) {
        return !status.ok() && status.message().find(name) != std::string::npos;
      });
      EXPECT_EQ(named, !teardown);  // abort takes the place of a finalize that fails
      Fail(call, 0);
      Up();
      ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
      QuiesceAndDown();
      EXPECT_EQ(Living(), 0u);
    }
  }
  ranks_.clear();
  EXPECT_TRUE(device->Free(memory).ok());
}

// Every call of the driver, once: it is named, or what it was for is done another way.
TEST_F(FakeNccl, EachCallOfTheDriverThatFailsLeavesAGroupThatCanBeBuiltAgain) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto fail =
      reinterpret_cast<void (*)(const char*, uint64_t, int, int)>(::dlsym(driver, "fakecuda_fail"));
  const auto passages =
      reinterpret_cast<uint64_t (*)(const char*)>(::dlsym(driver, "fakecuda_passages"));
  constexpr const char* kCalls[] = {"cuCtxPushCurrent_v2",
                                    "cuStreamCreate",
                                    "cuMemAddressReserve",
                                    "cuMemCreate",
                                    "cuMemMap",
                                    "cuMemSetAccess",
                                    "cuMemcpyHtoDAsync_v2",
                                    "cuMemcpyDtoHAsync_v2",
                                    "cuEventCreate",
                                    "cuEventRecord",
                                    "cuEventQuery",
                                    "fakecuda_launch",
                                    "cuStreamDestroy_v2",
                                    "cuMemUnmap",
                                    "cuMemRelease",
                                    "cuMemAddressFree"};
  MakeRanks(2);
  for (const char* call : kCalls) {
    for (uint64_t nth = 1; nth <= 4; ++nth) {
      SCOPED_TRACE(std::string(call) + " at passage " + std::to_string(nth));
      const uint64_t before = passages(call);
      fail(call, nth, device::cuda::kOutOfMemory, 0);
      TryUp(Deadline("bringing up", std::chrono::seconds(1)));
      const Deadline check("a check", std::chrono::milliseconds(200));
      OnAll([&](uint32_t r) { return ranks_[r]->Verify(check); });
      OnAll([&](uint32_t r) { return ranks_[r]->Quiesce(Soon()); });
      OnAll([&](uint32_t r) { return ranks_[r]->Down(Soon()); });
      EXPECT_GT(passages(call), before) << "never reached";
      fail(call, 1, 0, 0);
      EXPECT_EQ(Living(), 0u);
      Up();
      ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
      QuiesceAndDown();
      EXPECT_EQ(Living(), 0u);
    }
  }
}

// What destroys or aborts and fails is lost for this process, and says so.
TEST_F(FakeNccl, ADestroyOrAbortThatFailsIsNamedAndNeverBuiltAgain) {
  for (const bool destroy : {true, false}) {
    ranks_.clear();
    MakeRanks(1);
    Up();
    const std::string call = destroy ? "ncclCommDestroy" : "ncclCommAbort";
    if (destroy) {
      ASSERT_TRUE(ranks_[0]->Quiesce(Soon()).ok());
    }
    auto* const handle = ranks_[0]->handle(0);
    Fail(call.c_str(), nccl::kSystemError);
    const Status status = ranks_[0]->Down(Soon());
    EXPECT_NE(status.message().find(call), std::string::npos) << status.ToString();
    EXPECT_FALSE(TryUp(Soon())[0].ok());
    EXPECT_EQ(nccl::Library::Get().value()->ncclCommAbort(handle), nccl::kSuccess);
  }
}

TEST_F(FakeNccl, AFailureOfRankZeroIsToldToTheOthers) {
  MakeRanks(3);
  Fail("ncclGetUniqueId", nccl::kSystemError);
  const auto statuses = TryUp(Soon());
  for (const Status& status : statuses)
    EXPECT_NE(status.message().find("ncclGetUniqueId"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace ckpt::testing
