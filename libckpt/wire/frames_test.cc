#include "libckpt/wire/frames.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "libckpt/base/limits.h"
#include "libckpt/base/rng.h"
#include "libckpt/wire/agent_frames.h"

namespace ckpt::wire {
namespace {

const AttemptId kAttempt{Epoch(3), Step(-120), Attempt(2)};

JobId SampleJob() {
  JobId id;
  for (size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = static_cast<uint8_t>(0xa0 + i);
  return id;
}

// One of each, no two fields of a frame alike, so that swapped fields show.
std::vector<Frame> SampleFrames() {
  return {
      {1, Hello{"token", "job", 3, 8, 1, 2, {{"suspend", true, ""}, {"park", false, "no arena"}}}},
      {2, Layout{0x1122334455667788, 0x99aabbccddeeff00}},
      {3, StagingGet{7, 2, true, 123456789}},
      {4, Sealed{5, 1, 2, -9}},
      {5, StageFailed{5, 2, 8, "no memory"}},
      {6, CommsDown{0x0102030405060708, 4, 4, "nccl hangs"}},
      {7, CommsUp{11, 13, "checksum differs"}},
      {0, Notice{15}},
      {9, KvSet{"scope", "key", std::string("va\0lue", 6)}},
      {10, KvWait{"scope", "key", -1}},
      {11, SaveQuery{6}},
      {12, RestoreOpen{}},
      {13, Restored{120, 0, ""}},
      {14, Finished{}},
      {15, Bye{}},
      {16, Describe{}},
      {1, Welcome{1, 3, SampleJob(), ResumeKind::kRam, kAttempt, "/data/ckpt/gpt", 77}},
      {3, Staging{1, 5, 2, 1 << 30}},
      {0, BarrierReleased{9, 4, 3}},
      {0, RolledBack{9, 4, true, 21, "rank 2 timed out"}},
      {10, KvValue{"value"}},
      {11, SaveState{2, 3, 100, 200, 0, ""}},
      {12, ReadMap{3, 4096, true}},
      {3, Failed{8, true, "one slot, it drains"}},
      {16, Description{"{\"job\":\"gpt\"}"}},
  };
}

std::vector<AgentFrame> SampleAgentFrames() {
  return {
      {1, Attach{"job",
                 SampleJob(),
                 3,
                 1,
                 4242,
                 "token",
                 {{AttachedKind::kStaging, 5, 1, 1 << 20, 0},
                  {AttachedKind::kPage, 6, 0, 4096, 0},
                  {AttachedKind::kRankPidfd, 7, 0, 0, 777}},
                 false}},
      {0, Detach{"job", 3, 5, 1}},
      {0, Report{"report bytes"}},
      {2, Command{"command bytes"}},
      {0, Adopt{"job", {{5, 1, 1 << 20, kAttempt}}, true}},
  };
}

// Both kinds of frame, as what the tests need of them: the bytes, and decoding into bytes again.
struct Sample {
  std::string name;
  std::string bytes;
  std::function<Status(std::string_view, std::string*)> decode;
};

Status Recode(std::string_view bytes, std::string* out) {
  CKPT_ASSIGN_OR_RETURN(const Frame frame, DecodeFrame(bytes));
  CKPT_ASSIGN_OR_RETURN(*out, EncodeFrame(frame));
  return OkStatus();
}
Status RecodeAgent(std::string_view bytes, std::string* out) {
  CKPT_ASSIGN_OR_RETURN(const AgentFrame frame, DecodeAgentFrame(bytes));
  CKPT_ASSIGN_OR_RETURN(*out, EncodeAgentFrame(frame));
  return OkStatus();
}

std::vector<Sample> AllSamples() {
  std::vector<Sample> samples;
  for (const Frame& frame : SampleFrames()) {
    samples.push_back({std::string(FrameName(frame.body)), EncodeFrame(frame).value(), Recode});
  }
  for (const AgentFrame& frame : SampleAgentFrames()) {
    samples.push_back(
        {std::string(AgentFrameName(frame.body)), EncodeAgentFrame(frame).value(), RecodeAgent});
  }
  return samples;
}

std::string ToHex(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) {
    hex += "0123456789abcdef"[static_cast<uint8_t>(c) >> 4];
    hex += "0123456789abcdef"[static_cast<uint8_t>(c) & 15];
  }
  return hex;
}

TEST(Frames, EachTypeHasASample) {
  EXPECT_EQ(SampleFrames().size(), std::variant_size_v<Body>);
  for (size_t i = 0; i < SampleFrames().size(); ++i) EXPECT_EQ(SampleFrames()[i].body.index(), i);
  EXPECT_EQ(SampleAgentFrames().size(), std::variant_size_v<AgentBody>);
  for (size_t i = 0; i < SampleAgentFrames().size(); ++i) {
    EXPECT_EQ(SampleAgentFrames()[i].body.index(), i);
  }
}

TEST(Frames, RoundTrip) {
  for (const Sample& sample : AllSamples()) {
    std::string again;
    const Status status = sample.decode(sample.bytes, &again);
    EXPECT_TRUE(status.ok()) << sample.name << " " << status.ToString();
    EXPECT_EQ(ToHex(again), ToHex(sample.bytes)) << sample.name;
  }
}

TEST(Frames, FieldsArriveWhereTheyWereSent) {
  const Frame frame = DecodeFrame(EncodeFrame(SampleFrames()[0]).value()).value();
  EXPECT_EQ(frame.request, 1u);
  const Hello& hello = std::get<Hello>(frame.body);
  EXPECT_EQ(hello.token, "token");
  EXPECT_EQ(hello.job, "job");
  EXPECT_EQ(hello.rank, 3u);
  EXPECT_EQ(hello.world, 8u);
  EXPECT_EQ(hello.methods, std::get<Hello>(SampleFrames()[0].body).methods);
  const Frame second = DecodeFrame(EncodeFrame(SampleFrames()[16]).value()).value();
  const Welcome& welcome = std::get<Welcome>(second.body);
  EXPECT_EQ(welcome.job_id, SampleJob());
  EXPECT_EQ(welcome.resume, ResumeKind::kRam);
  EXPECT_EQ(welcome.resume_from, kAttempt);
  EXPECT_EQ(welcome.store, "/data/ckpt/gpt");
  const AgentFrame third =
      DecodeAgentFrame(EncodeAgentFrame(SampleAgentFrames()[0]).value()).value();
  EXPECT_EQ(std::get<Attach>(third.body).fds, std::get<Attach>(SampleAgentFrames()[0].body).fds);
  EXPECT_FALSE(std::get<Attach>(third.body).last);
  EXPECT_EQ(AgentFrameFdCount(third.body), 3u);
}

// Frozen bytes: a difference here is an incompatible protocol. docs/protocol.md says the same.
TEST(Frames, GoldenBytes) {
  std::ifstream file(CKPT_WIRE_TESTDATA "/frames_v1.hex");
  ASSERT_TRUE(file.is_open());
  std::map<std::string, std::string> golden;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string name, hex;
    fields >> name >> hex;
    golden[name] = hex;
  }
  const std::vector<Sample> samples = AllSamples();
  EXPECT_EQ(golden.size(), samples.size());
  for (const Sample& sample : samples) {
    EXPECT_EQ(golden[sample.name], ToHex(sample.bytes)) << sample.name;
  }
}

TEST(Frames, EveryShorterOrLongerDatagramFails) {
  for (const Sample& sample : AllSamples()) {
    std::string unused;
    for (size_t size = 0; size < sample.bytes.size(); ++size) {
      EXPECT_EQ(sample.decode(sample.bytes.substr(0, size), &unused).code(), Code::kDataLoss)
          << sample.name << " cut to " << size;
    }
    EXPECT_EQ(sample.decode(sample.bytes + '\0', &unused).code(), Code::kDataLoss) << sample.name;
    EXPECT_EQ(sample.decode(sample.bytes + sample.bytes, &unused).code(), Code::kDataLoss)
        << sample.name;
  }
}

// Nothing crashes, and what is accepted is canonical: it encodes to the very same bytes.
TEST(Frames, DamagedDatagramsAreRefusedOrCanonical) {
  uint64_t accepted = 0, refused = 0;
  Rng rng(20260901);
  for (const Sample& sample : AllSamples()) {
    for (int i = 0; i < 3000; ++i) {
      std::string bytes = sample.bytes;
      const uint64_t changes = rng.Between(1, 4);
      for (uint64_t k = 0; k < changes; ++k) {
        bytes[rng.Below(bytes.size())] = static_cast<char>(rng.Next());
      }
      std::string again;
      if (sample.decode(bytes, &again).ok()) {
        ++accepted;
        EXPECT_EQ(ToHex(again), ToHex(bytes)) << sample.name;
      } else {
        ++refused;
      }
    }
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(refused, 1000u);
}

TEST(Frames, RandomBytesAreRefusedOrCanonical) {
  Rng rng(7);
  for (int i = 0; i < 50000; ++i) {
    std::string bytes(rng.Below(200), '\0');
    for (char& c : bytes) c = static_cast<char>(rng.Next());
    if (bytes.size() >= 4 && rng.Chance(90)) {  // a header that passes
      bytes[0] = static_cast<char>(rng.Between(1, 25));
      bytes[1] = static_cast<char>(rng.Below(2));
      bytes[2] = 1;
      bytes[3] = 0;
    }
    std::string again;
    for (const auto& recode : {Recode, RecodeAgent}) {
      if (recode(bytes, &again).ok()) {
        EXPECT_EQ(ToHex(again), ToHex(bytes));
      }
    }
  }
}

TEST(Frames, UnknownTypesAndVersionsAreRefused) {
  std::string bytes = EncodeFrame({0, Bye{}}).value();
  const auto with = [&](size_t at, char value) {
    std::string changed = bytes;
    changed[at] = value;
    return DecodeFrame(changed).status();
  };
  EXPECT_EQ(with(0, 0).code(), Code::kDataLoss);
  EXPECT_EQ(with(0, 26).code(), Code::kDataLoss);
  EXPECT_EQ(with(1, 1).code(), Code::kDataLoss) << "an agent's frame";
  EXPECT_NE(with(2, 2).message().find("version 2"), std::string::npos);
  EXPECT_EQ(DecodeAgentFrame(bytes).status().code(), Code::kDataLoss) << "a rank's frame";
}

TEST(Frames, OutOfRangeFieldsAreNeitherSentNorAccepted) {
  const auto refused = [](Body body) {
    return EncodeFrame({1, std::move(body)}).status().code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused(Hello{.rank = kRanksMax, .world = 1}));
  EXPECT_TRUE(refused(Hello{.world = kRanksMax + 1}));
  EXPECT_TRUE(refused(Hello{.token = std::string(257, 't')}));
  EXPECT_TRUE(refused(Hello{.methods = std::vector<Capability>(17)}));
  EXPECT_TRUE(refused(Sealed{.slot = kStagingSlotsMax}));
  EXPECT_TRUE(refused(Notice{65}));
  EXPECT_TRUE(refused(Failed{.code = 17}));
  EXPECT_TRUE(refused(SaveState{.level = 4}));
  EXPECT_TRUE(refused(BarrierReleased{.barrier = 4}));
  EXPECT_TRUE(refused(Welcome{.resume = static_cast<ResumeKind>(3)}));
  EXPECT_TRUE(refused(KvSet{.value = std::string(48 * 1024 + 1, 'v')}));
  EXPECT_TRUE(refused(Description{std::string(kFrameBytesMax, 'j')}));
  EXPECT_FALSE(refused(KvSet{.value = std::string(48 * 1024, 'v')}));

  const auto agent_refused = [](AgentBody body) {
    return EncodeAgentFrame({1, std::move(body)}).status().code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(agent_refused(Attach{.fds = std::vector<AttachedFd>(kFrameFdsMax + 1)}));
  EXPECT_TRUE(agent_refused(Attach{.fds = {{static_cast<AttachedKind>(0)}}}));
  EXPECT_TRUE(agent_refused(Attach{.fds = {{static_cast<AttachedKind>(4)}}}));
  EXPECT_TRUE(agent_refused(Attach{.pid = -1}));
  EXPECT_TRUE(agent_refused(Attach{.node_rank = kMembersMax}));
  EXPECT_TRUE(agent_refused(Report{std::string(60 * 1024 + 1, 'r')}));

  // The same on the way in: a bool that is neither, a length beyond the end, a rank beyond the max.
  std::string bytes = EncodeFrame({1, ReadMap{3, 4096, true}}).value();
  bytes.back() = 2;
  EXPECT_EQ(DecodeFrame(bytes).status().code(), Code::kDataLoss);
  bytes.back() = 1;
  bytes[10] = 1;  // rank 0x10003
  EXPECT_EQ(DecodeFrame(bytes).status().code(), Code::kDataLoss);
  bytes = EncodeFrame({1, KvValue{"value"}}).value();
  bytes[11] = static_cast<char>(0xff);
  EXPECT_EQ(DecodeFrame(bytes).status().code(), Code::kDataLoss);
}

TEST(Frames, NamesAreDistinct) {
  std::map<std::string, int> names;
  for (const Sample& sample : AllSamples()) ++names[sample.name];
  EXPECT_EQ(names.size(), AllSamples().size());
}

}  // namespace
}  // namespace ckpt::wire
