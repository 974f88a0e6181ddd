// What leader and members of a gang say, what the leader has stored, and both state machines under
// any messages at all: they answer, they end, and the numbers they give out only grow.
#include <vector>

#include "coordinator/gang/leader.h"
#include "coordinator/gang/member.h"
#include "libckpt/base/bytes.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;
using namespace ckpt::gang;

namespace {

constexpr int64_t kStartNs = 1'000'000'000'000;
constexpr uint32_t kRanks = 2;  // of each member

LeaderConfig TwoMembers() {
  LeaderConfig config;
  config.members = {{0, Rank(0), kRanks}, {1, Rank(kRanks), kRanks}};
  config.epoch = Epoch(1);
  return config;
}

// Ranks that do what they are asked, at once.
class WillingPages : public Pages {
 public:
  Word Load(Rank rank) override { return words_[rank.value() % kRanks]; }
  bool Cas(Rank rank, Word expected, Word desired) override {
    Word& word = words_[rank.value() % kRanks];
    if (word != expected) return false;
    word = desired;
    return true;
  }
  void StoreOrder(Rank, const RankOrder&) override {}
  void Wake(Rank) override {}
  int64_t StepNs(Rank) override { return 1'000'000; }

 private:
  Word words_[kRanks];
};

// The next message: u16 length and so many bytes; the rest if there are fewer.
std::string_view NextPart(ByteReader* in) {
  const size_t size = in->Get<uint16_t>();
  return in->GetRaw(std::min(size, in->rest().size()));
}

void DriveLeader(std::string_view input) {
  ByteReader in(input);
  auto leader = Leader::Create(TwoMembers(), NextPart(&in));
  if (!leader.ok()) return;
  int64_t now_ns = kStartNs;
  leader->Step(now_ns, MemberJoined{0});
  leader->Step(now_ns, MemberJoined{1});
  uint32_t round = leader->view().round;
  while (!in.failed() && !in.rest().empty()) {
    now_ns += 100'000'000;
    const auto from = in.Get<uint8_t>();
    const Result<Msg> msg = Decode(NextPart(&in));
    LeaderActions actions;
    if (msg.ok()) {
      actions = leader->Step(now_ns, FromMember{from % 3u, *msg});
    } else if (from == 255) {
      actions = leader->Step(now_ns, Command{7, Request::kSuspend, now_ns + 1'000'000'000});
    } else {
      actions = leader->Step(now_ns, LeaderTick{});
    }
    for (const LeaderAction& action : actions) {
      if (const auto* stored = std::get_if<Persist>(&action)) {
        FUZZ_CHECK(Leader::ViewOfRecord(stored->record).ok());
        leader->Step(now_ns, Persisted{stored->id});
      }
    }
    FUZZ_CHECK(leader->view().round >= round);
    round = leader->view().round;
  }
}

void DriveMember(std::string_view input) {
  ByteReader in(input);
  WillingPages pages;
  MemberConfig config;
  config.id = 1;
  config.first_rank = Rank(kRanks);
  config.rank_count = kRanks;
  config.epoch = Epoch(1);
  Member member(config, &pages);
  int64_t now_ns = kStartNs;
  member.Step(now_ns, LeaderBack{});
  while (!in.failed() && !in.rest().empty()) {
    now_ns += 100'000'000;
    const auto what = in.Get<uint8_t>();
    const Result<Msg> msg = Decode(NextPart(&in));
    const Rank rank(kRanks + what % kRanks);
    if (msg.ok()) {
      member.Step(now_ns, FromLeader{*msg});
    } else if (what < 64) {
      member.Step(now_ns, RankPoke{rank});
    } else if (what < 128) {
      member.Step(now_ns, RankSealed{rank, what % 4u, what % 4u, 0});
    } else if (what < 160) {
      member.Step(now_ns, RankWantsSave{rank, what % 8u, (what & 16) != 0, 0, 1});
    } else {
      member.Step(now_ns, Tick{});
    }
    FUZZ_CHECK(!member.phase().empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = fuzz::Text(data, size);
  switch (fuzz::Pick(&input, 4)) {
    case 0:
      if (const Result<Msg> msg = Decode(input); msg.ok()) {
        FUZZ_CHECK(Encode(*msg) == input);
        FUZZ_CHECK(!ToString(*msg).empty());
      }
      break;
    case 1:
      Leader::ViewOfRecord(input).status().IgnoreError();
      break;
    case 2:
      DriveLeader(input);
      break;
    case 3:
      DriveMember(input);
      break;
  }
  return 0;
}
