// What every Communicator must do, run by each implementation with ranks on threads:
//
//   INSTANTIATE_TEST_SUITE_P(Local, CommConformance, ::testing::Values(CommMaker{…}));
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libckpt/comm/comm.h"
#include "libckpt/comm/local/local_comm.h"

namespace ckpt::testing {

struct CommMaker {
  std::string name;
  std::function<std::unique_ptr<comm::Communicator>(uint32_t rank, uint32_t world)> make;
};

class CommConformance : public ::testing::TestWithParam<CommMaker> {
 protected:
  static constexpr uint32_t kWorld = 3;
  static Deadline Soon() { return Deadline("conformance", std::chrono::seconds(60)); }
  static Deadline Short() { return Deadline("a short wait", std::chrono::milliseconds(200)); }

  void SetUp() override {
    for (uint32_t r = 0; r < kWorld; ++r) {
      ranks_.push_back(GetParam().make(r, kWorld));
      if (ranks_.back() == nullptr) GTEST_SKIP() << "SKIPPED: no such device";
    }
  }
  // Runs `body(rank)` on a thread each; what each returned.
  std::vector<Status> OnAll(const std::function<Status(uint32_t)>& body, uint32_t first = 0) {
    std::vector<Status> statuses(kWorld);
    std::vector<std::thread> threads;
    for (uint32_t r = first; r < kWorld; ++r) {
      threads.emplace_back([&, r] { statuses[r] = body(r); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  void ExpectAllOk(const std::function<Status(uint32_t)>& body) {
    const auto statuses = OnAll(body);
    for (uint32_t r = 0; r < kWorld; ++r) {
      EXPECT_TRUE(statuses[r].ok()) << "rank " << r << ": " << statuses[r].ToString();
    }
  }
  void UpAll(const std::string& id) {
    kvs_.push_back(std::make_unique<comm::LocalKeyValue>());
    ExpectAllOk([&](uint32_t r) { return ranks_[r]->Up(id, kvs_.back().get(), Soon()); });
  }
  void DownAll() {
    ExpectAllOk([&](uint32_t r) { return ranks_[r]->Down(Soon()); });
  }

  std::vector<std::unique_ptr<comm::Communicator>> ranks_;
  std::vector<std::unique_ptr<comm::LocalKeyValue>> kvs_;
};

TEST_P(CommConformance, LivesThroughManyRebuilds) {
  for (int i = 0; i < 4; ++i) {
    UpAll("incarnation-" + std::to_string(i));
    ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
    ExpectAllOk([&](uint32_t r) { return ranks_[r]->Quiesce(Soon()); });
    DownAll();
  }
}

TEST_P(CommConformance, DownIsIdempotentAlsoBeforeTheFirstUp) {
  DownAll();
  UpAll("only");
  DownAll();
  DownAll();
}

TEST_P(CommConformance, VerifyMissesAPeerThatIsNotThere) {
  UpAll("verify");
  const auto statuses = OnAll([&](uint32_t r) { return ranks_[r]->Verify(Short()); }, 1);
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_FALSE(statuses[2].ok());
  DownAll();
}

TEST_P(CommConformance, VerifyFailsWhileDown) { EXPECT_FALSE(ranks_[0]->Verify(Short()).ok()); }

TEST_P(CommConformance, UpEndsAtTheDeadlineIfAPeerStaysAway) {
  comm::LocalKeyValue kv;
  const auto statuses = OnAll([&](uint32_t r) { return ranks_[r]->Up("lonely", &kv, Short()); }, 1);
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_FALSE(statuses[2].ok());
  DownAll();
  UpAll("again");
  ExpectAllOk([&](uint32_t r) { return ranks_[r]->Verify(Soon()); });
}

// A rank that goes down frees those that wait for it, and itself needs none of them.
TEST_P(CommConformance, DownNeedsNoPeer) {
  UpAll("abort");
  std::thread waiting([&] { EXPECT_FALSE(ranks_[1]->Verify(Soon()).ok()); });
  EXPECT_TRUE(ranks_[0]->Down(Soon()).ok());
  waiting.join();
  DownAll();
}

}  // namespace ckpt::testing
