#include "coordinator/gang/messages.h"

#include <gtest/gtest.h>

namespace ckpt::gang {
namespace {

Msg Full() {
  Msg msg;
  msg.type = MsgType::kVote;
  msg.from = 3;
  msg.operation = 0x1122334455667788;
  msg.round = 7;
  msg.attempt = 8;
  msg.generation = 9;
  msg.slot = 1;
  msg.cut = 0xFFFFFFFF;
  msg.boundary = 10;
  msg.rank = 11;
  msg.kind = Kind::kSave;
  msg.request = Request::kMigrate;
  msg.decision = Decision::kBack;
  msg.vote = Vote::kRefused;
  msg.fact = FactKind::kShards;
  msg.step = -5;
  msg.left_ns = 1'000'000'007;
  msg.total_ns = -1;
  msg.number = 99;
  msg.code = -3;
  msg.text = "why, with \n and \0 in it";
  msg.payload = std::string("\0\1\2", 3);
  msg.places = {{1, 2, false}, {3, 4, true}};
  msg.numbers = {5, 6, 0xFFFFFFFFFFFFFFFF};
  return msg;
}

TEST(Messages, ComeBackAsTheyWere) {
  EXPECT_EQ(Decode(Encode(Full())).value(), Full());
  EXPECT_EQ(Decode(Encode(Msg{})).value(), Msg{});
}

TEST(Messages, EveryCutAndEveryTailIsRefused) {
  const std::string bytes = Encode(Full());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(Decode(std::string_view(bytes).substr(0, size)).status().code(), Code::kDataLoss);
  }
  EXPECT_EQ(Decode(bytes + "x").status().code(), Code::kDataLoss);
}

TEST(Messages, TimesAreWithinWhatCanBeAddedToANow) {
  Msg msg = Full();
  msg.left_ns = INT64_MAX;
  msg.total_ns = INT64_MIN;
  const Msg heard = Decode(Encode(msg)).value();
  EXPECT_EQ(heard.left_ns, kLeftNsMax);
  EXPECT_EQ(heard.total_ns, -kLeftNsMax);
  // One byte of it changed in a message of another make.
  msg.left_ns = 0x0102030405060708;
  std::string bytes = Encode(msg);
  const size_t top = bytes.find(std::string("\x08\x07\x06\x05\x04\x03\x02\x01", 8)) + 7;
  bytes[top] = '\x7f';
  EXPECT_EQ(Decode(bytes).status().code(), Code::kDataLoss);
}

// Any byte changed: refused, or another message that encodes to exactly these bytes.
TEST(Messages, DecodingIsStrict) {
  const std::string bytes = Encode(Full());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      const Result<Msg> msg = Decode(damaged);
      if (!msg.ok()) continue;
      EXPECT_EQ(Encode(*msg), damaged) << "byte " << at;
    }
  }
}

TEST(Messages, HaveNamesForPeople) {
  for (int type = 0; type < 256; ++type) {
    const std::string_view name = Name(static_cast<MsgType>(type));
    Msg msg;
    msg.type = static_cast<MsgType>(type);
    EXPECT_EQ(Decode(Encode(msg)).ok(), name != "?") << type;
  }
  EXPECT_EQ(ToString(Full()).substr(0, 17), "vote back refused");
}

TEST(Messages, BoundariesAreARing) {
  EXPECT_TRUE(Later(1, 0));
  EXPECT_TRUE(Later(0, UINT32_MAX));
  EXPECT_FALSE(Later(5, 5));
  EXPECT_FALSE(Later(UINT32_MAX, 0));
}

TEST(Messages, ACodeThatIsNotKnownIsInternal) {
  EXPECT_EQ(CodeOf(static_cast<int32_t>(Code::kUnauthenticated)), Code::kUnauthenticated);
  EXPECT_EQ(CodeOf(static_cast<int32_t>(Code::kUnauthenticated) + 1), Code::kInternal);
  EXPECT_EQ(CodeOf(-1), Code::kInternal);
}

}  // namespace
}  // namespace ckpt::gang
