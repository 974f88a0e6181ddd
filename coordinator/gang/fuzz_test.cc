// Round trips of random messages and records, and what a few thousand damaged ones do.
#include "coordinator/gang/fuzz.h"

#include <gtest/gtest.h>

#include <random>

#include "coordinator/gang/leader_impl.h"

namespace ckpt::gang {
namespace {

class Bytes {
 public:
  explicit Bytes(uint32_t seed) : random_(seed) {}
  template <typename T>
  T Number() {
    return static_cast<T>(random_());
  }
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(random_() % end); }
  std::string Text() {
    std::string text(Below(12), '\0');
    for (char& c : text) c = Number<char>();
    return text;
  }
  // As damage comes: some bytes changed, or cut off, or doubled.
  std::string Damaged(std::string bytes) {
    for (uint32_t i = Below(4); i > 0 && !bytes.empty(); --i) {
      bytes[Below(static_cast<uint32_t>(bytes.size()))] = Number<char>();
    }
    if (Below(4) == 0) bytes.resize(Below(static_cast<uint32_t>(bytes.size()) + 1));
    if (Below(8) == 0) bytes += Text();
    return bytes;
  }

 private:
  std::mt19937_64 random_;
};

Msg RandomMsg(Bytes* from) {
  Msg msg;
  msg.type = static_cast<MsgType>(from->Below(2) == 0 ? 1 + from->Below(9) : 20 + from->Below(4));
  msg.from = from->Number<uint32_t>();
  msg.operation = from->Number<uint64_t>();
  for (uint32_t* field : {&msg.round, &msg.attempt, &msg.generation, &msg.slot, &msg.cut,
                          &msg.boundary, &msg.sequence, &msg.rank, &msg.extension}) {
    *field = from->Number<uint32_t>();
  }
  msg.kind = static_cast<Kind>(from->Below(2));
  msg.request = static_cast<Request>(from->Below(6));
  msg.decision = static_cast<Decision>(from->Below(7));
  msg.vote = static_cast<Vote>(from->Below(11));
  msg.fact = static_cast<FactKind>(from->Below(10));
  msg.step = from->Number<int64_t>();
  msg.left_ns = from->Number<int64_t>() % kLeftNsMax;
  msg.total_ns = from->Number<int64_t>() % kLeftNsMax;
  msg.number = from->Number<uint64_t>();
  msg.code = from->Number<int32_t>();
  msg.text = from->Text();
  msg.payload = from->Text();
  for (uint32_t i = from->Below(4); i > 0; --i) {
    msg.places.push_back({from->Below(64), from->Number<uint32_t>(), from->Below(2) == 1});
  }
  for (uint32_t i = from->Below(4); i > 0; --i) msg.numbers.push_back(from->Number<uint64_t>());
  return msg;
}

Command RandomCommand(Bytes* from) {
  Command command;
  command.operation = from->Number<uint64_t>();
  command.request = static_cast<Request>(from->Below(6));
  command.deadline_ns = from->Number<int64_t>();
  command.hard = from->Below(2) == 1;
  command.source = from->Text();
  for (uint32_t i = from->Below(3); i > 0; --i) command.ranks.push_back(from->Below(64));
  command.noticed_ns = from->Number<int64_t>();
  return command;
}

LeaderRecord RandomRecord(Bytes* from) {
  LeaderRecord r;
  for (uint32_t* field : {&r.incarnation, &r.round, &r.attempt, &r.generation, &r.op_attempt,
                          &r.op_generation, &r.op_slot, &r.cut, &r.rounds, &r.extension}) {
    *field = from->Number<uint32_t>();
  }
  r.operation = from->Number<uint64_t>();
  r.stage = static_cast<Stage>(from->Below(8));
  r.decision = static_cast<Decision>(from->Below(7));
  r.deadline_ns = from->Number<int64_t>();
  r.back_code = static_cast<Code>(from->Below(17));
  r.back_text = from->Text();
  r.void_round = from->Below(2) == 1;
  r.hurry = from->Below(2) == 1;
  r.started_ns = from->Number<int64_t>();
  for (uint32_t i = from->Below(3); i > 0; --i) r.commands.push_back(RandomCommand(from));
  for (uint32_t i = from->Below(3); i > 0; --i) r.queued.push_back(RandomCommand(from));
  for (uint32_t i = from->Below(3); i > 0; --i) {
    LeaderGeneration gen;
    gen.generation = from->Number<uint32_t>();
    gen.state = static_cast<LeaderGeneration::State>(from->Below(4));
    gen.aborted = from->Below(2) == 1;
    gen.boundary = from->Number<uint32_t>();
    gen.captured_ns = from->Number<int64_t>();
    r.generations.push_back(std::move(gen));
  }
  for (uint32_t i = from->Below(3); i > 0; --i) {
    r.answers.push_back(SaveAnswer{{from->Number<uint32_t>(), 1}, 1, 0, 1, 8, from->Text()});
  }
  for (uint32_t i = from->Below(3); i > 0; --i) {
    r.done.push_back(DoneOperation{from->Number<uint64_t>(), Request::kSave, OpPhase::kTooLate,
                                   from->Number<int32_t>(), from->Text(), 1, 2, 3});
  }
  return r;
}

TEST(Fuzz, EveryMessageComesBackAsItWas) {
  Bytes from(1);
  for (int i = 0; i < 2000; ++i) {
    const Msg msg = RandomMsg(&from);
    const Result<Msg> back = Decode(Encode(msg));
    ASSERT_TRUE(back.ok()) << ToString(msg);
    ASSERT_EQ(*back, msg);
  }
}

TEST(Fuzz, EveryRecordComesBackAsItWas) {
  Bytes from(2);
  for (int i = 0; i < 2000; ++i) {
    const std::string bytes = RandomRecord(&from).Encode();
    const Result<LeaderRecord> back = LeaderRecord::Decode(bytes);
    ASSERT_TRUE(back.ok()) << i;
    ASSERT_EQ(back->Encode(), bytes);
  }
}

TEST(Fuzz, WhatIsDamagedIsRefusedOrAnotherWhole) {
  Bytes from(3);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string message = from.Damaged(Encode(RandomMsg(&from)));
    ASSERT_TRUE(FuzzMessage(message)) << "message " << i;
    const std::string record = from.Damaged(RandomRecord(&from).Encode());
    ASSERT_TRUE(FuzzLeaderRecord(record)) << "record " << i;
    refused += Decode(message).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace ckpt::gang
