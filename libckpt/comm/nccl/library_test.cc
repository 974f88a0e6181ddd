// What our code relies on of NCCL itself, by the names that dlopen finds: the double where ctest
// says so (CKPT_EXPECT_NCCL), a real one where two devices are.
#include "libckpt/comm/nccl/library.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/device/cuda/cuda_device.h"

namespace ckpt::comm::nccl {
namespace {

using device::CopyShape;
using device::CudaDevice;

constexpr uint64_t kBytes = 300'001;  // of a rank: no multiple of anything

struct Rank {
  int number = 0;
  std::unique_ptr<CudaDevice> device;
  device::StreamHandle stream = nullptr;
  std::byte* memory = nullptr;  // kBytes to send, and kWorld times as many to receive
  CommPtr comm = nullptr;
};

class NcclConformance : public ::testing::Test {
 protected:
  static constexpr int kWorld = 2;

  void SetUp() override {
    const Result<const Library*> library = Library::Get();
    if (!library.ok()) return Skip(library.status());
    nccl_ = *library;
    for (int r = 0; r < kWorld; ++r) {
      Result<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(r);
      if (!device.ok()) return Skip(device.status());
      Rank& rank = ranks_.emplace_back();
      rank.number = r;
      rank.device = std::move(*device);
      rank.stream = rank.device->CreateStream().value();
      rank.memory = static_cast<std::byte*>(rank.device->Alloc(kBytes * (kWorld + 1)).value());
    }
    ASSERT_EQ(nccl_->ncclGetUniqueId(&id_), kSuccess);
  }
  void TearDown() override {
    for (Rank& rank : ranks_) {
      EXPECT_TRUE(rank.device->DestroyStream(rank.stream).ok());
      EXPECT_TRUE(rank.device->Free(rank.memory).ok());
    }
  }
  void Skip(const Status& why) {
    ASSERT_EQ(std::getenv("CKPT_EXPECT_NCCL"), nullptr) << why.ToString();
    std::printf("%s\n", why.ToString().c_str());
    GTEST_SKIP() << "SKIPPED: no NCCL, or no two devices";
  }
  void OnAll(const std::function<void(Rank&)>& body) {
    std::vector<std::thread> threads;
    for (Rank& rank : ranks_) threads.emplace_back([&] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  Result32 InContext(const Rank& rank, const std::function<Result32()>& call) {
    Result32 result = kInternalError;
    EXPECT_TRUE(rank.device->InItsContext([&] { return result = call(), OkStatus(); }).ok());
    return result;
  }
  // What it is once it is no longer in progress; kInProgress if that takes too long.
  Result32 State(CommPtr comm, int seconds = 30) {
    const Deadline deadline("conformance", std::chrono::seconds(seconds));
    Result32 state = kInProgress;
    while (nccl_->ncclCommGetAsyncError(comm, &state) == kSuccess && state == kInProgress &&
           !deadline.Expired())
      std::this_thread::yield();
    return state;
  }
  Result32 Begin(Rank* rank) {
    Config config;
    config.blocking = 0;
    return InContext(*rank, [&] {
      return nccl_->ncclCommInitRankConfig(&rank->comm, kWorld, id_, rank->number, &config);
    });
  }
  void Connect() {
    OnAll([&](Rank& rank) {
      const Result32 begun = Begin(&rank);
      EXPECT_TRUE(begun == kSuccess || begun == kInProgress) << begun;
      EXPECT_EQ(State(rank.comm), kSuccess);
    });
  }
  void Fill(const Rank& rank, uint8_t value) {
    const std::vector<uint8_t> bytes(kBytes, value);
    EXPECT_TRUE(
        rank.device->CopyToDevice(rank.stream, rank.memory, bytes.data(), CopyShape{kBytes}).ok());
  }
  Result32 Gather(const Rank& rank) {
    const Result32 result = InContext(rank, [&] {
      return nccl_->ncclAllGather(rank.memory, rank.memory + kBytes, kBytes, kUint8, rank.comm,
                                  static_cast<StreamPtr>(rank.stream));
    });
    return result == kInProgress ? State(rank.comm) : result;
  }
  bool Drained(const Rank& rank, int seconds = 30) {
    device::Event* const event = rank.device->RecordEvent(rank.stream).value();
    const Status status = rank.device->Synchronize(
        event, Deadline("draining", std::chrono::milliseconds(seconds * 1000)));
    rank.device->FreeEvent(event);
    return status.ok();
  }
  void ExpectGathered(const Rank& rank, uint8_t first) {
    std::vector<uint8_t> got(kBytes * kWorld);
    EXPECT_TRUE(
        rank.device
            ->CopyToHost(rank.stream, got.data(), rank.memory + kBytes, CopyShape{got.size()})
            .ok());
    EXPECT_TRUE(Drained(rank));
    for (int r = 0; r < kWorld; ++r) {
      const auto* const part = got.data() + static_cast<size_t>(r) * kBytes;
      EXPECT_EQ(part[0], first + r);
      EXPECT_EQ(std::memcmp(part, part + 1, kBytes - 1), 0) << "part " << r << " is torn";
    }
  }
  void FinalizeAndDestroy() {
    OnAll([&](Rank& rank) {
      const Result32 begun = nccl_->ncclCommFinalize(rank.comm);
      EXPECT_TRUE(begun == kSuccess || begun == kInProgress) << begun;
      EXPECT_EQ(State(rank.comm), kSuccess);
      EXPECT_EQ(nccl_->ncclCommDestroy(rank.comm), kSuccess);
    });
  }

  const Library* nccl_ = nullptr;
  std::vector<Rank> ranks_;
  UniqueId id_{};
};

TEST_F(NcclConformance, ACommunicatorIsInProgressUntilAllRanksCame) {
  Begin(&ranks_[0]);
  EXPECT_EQ(State(ranks_[0].comm, 1), kInProgress);
  Begin(&ranks_[1]);
  for (Rank& rank : ranks_) EXPECT_EQ(State(rank.comm), kSuccess);
  FinalizeAndDestroy();
}

TEST_F(NcclConformance, ACollectiveRunsInStreamOrderAndMovesTheBytes) {
  Connect();
  for (uint8_t round = 1; round < 20; round += 3) {
    OnAll([&](Rank& rank) {
      Fill(rank, static_cast<uint8_t>(round + rank.number));
      EXPECT_EQ(Gather(rank), kSuccess);
      // Behind it on the stream: it must not get in.
      Fill(rank, 0xee);
      EXPECT_TRUE(Drained(rank));
      ExpectGathered(rank, round);
    });
  }
  FinalizeAndDestroy();
}

TEST_F(NcclConformance, ACollectiveWaitsOnItsStreamForThePeer) {
  Connect();
  Fill(ranks_[0], 1);
  EXPECT_EQ(Gather(ranks_[0]), kSuccess);
  EXPECT_FALSE(Drained(ranks_[0], 1));
  Fill(ranks_[1], 2);
  EXPECT_EQ(Gather(ranks_[1]), kSuccess);
  for (Rank& rank : ranks_) {
    EXPECT_TRUE(Drained(rank));
    ExpectGathered(rank, 1);
  }
  FinalizeAndDestroy();
}

TEST_F(NcclConformance, AbortFreesTheStreamOfACollectiveThatHangs) {
  Connect();
  EXPECT_EQ(Gather(ranks_[0]), kSuccess);
  EXPECT_EQ(nccl_->ncclCommAbort(ranks_[0].comm), kSuccess);
  EXPECT_TRUE(Drained(ranks_[0]));
  EXPECT_EQ(nccl_->ncclCommAbort(ranks_[1].comm), kSuccess);
  ASSERT_EQ(nccl_->ncclGetUniqueId(&id_), kSuccess);  // one is used once
  Connect();
  OnAll([&](Rank& rank) {
    EXPECT_EQ(Gather(rank), kSuccess);
    EXPECT_TRUE(Drained(rank));
  });
  FinalizeAndDestroy();
}

TEST_F(NcclConformance, AbortEndsABuildThatWaitsForAPeer) {
  Begin(&ranks_[0]);
  EXPECT_EQ(nccl_->ncclCommAbort(ranks_[0].comm), kSuccess);
}

TEST_F(NcclConformance, FinalizeWaitsForThePeersAndForWhatIsEnqueued) {
  Connect();
  Fill(ranks_[0], 5);
  EXPECT_EQ(Gather(ranks_[0]), kSuccess);
  nccl_->ncclCommFinalize(ranks_[0].comm);
  EXPECT_EQ(State(ranks_[0].comm, 1), kInProgress);
  Fill(ranks_[1], 6);
  EXPECT_EQ(Gather(ranks_[1]), kSuccess);
  nccl_->ncclCommFinalize(ranks_[1].comm);
  for (Rank& rank : ranks_) {
    EXPECT_EQ(State(rank.comm), kSuccess);
    ExpectGathered(rank, 5);
    EXPECT_EQ(nccl_->ncclCommDestroy(rank.comm), kSuccess);
  }
}

TEST_F(NcclConformance, ASplitIsOrderedByItsKeys) {
  Connect();
  OnAll([&](Rank& rank) {
    CommPtr split = nullptr;
    Config config;
    config.blocking = 0;
    InContext(rank,
              [&] { return nccl_->ncclCommSplit(rank.comm, 7, -rank.number, &split, &config); });
    EXPECT_EQ(State(rank.comm), kSuccess);
    EXPECT_EQ(State(split), kSuccess);
    int count = 0, place = -1;
    EXPECT_EQ(nccl_->ncclCommCount(split, &count), kSuccess);
    EXPECT_EQ(nccl_->ncclCommUserRank(split, &place), kSuccess);
    EXPECT_EQ(count, kWorld);
    EXPECT_EQ(place, kWorld - 1 - rank.number);
    nccl_->ncclCommFinalize(split);
    EXPECT_EQ(State(split), kSuccess);
    EXPECT_EQ(nccl_->ncclCommDestroy(split), kSuccess);
  });
  FinalizeAndDestroy();
}

}  // namespace
}  // namespace ckpt::comm::nccl
