// fuzz_seeds DIR: writes DIR/TARGET/NAME, a first input for each path of each target, made by the
// encoders.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "coordinator/agent/data_wire.h"
#include "coordinator/core/records.h"
#include "coordinator/gang/leader.h"
#include "libckpt/base/limits.h"
#include "libckpt/codec/codec.h"
#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/records.h"
#include "libckpt/format/test_data_test.h"
#include "libckpt/plan/plan.h"
#include "libckpt/wire/agent_frames.h"
#include "libckpt/wire/frames.h"
#include "libckpt/wire/page.h"

using namespace ckpt;

namespace {

class Folder {
 public:
  Folder(const std::filesystem::path& root, const std::string& target) : folder_(root / target) {
    std::filesystem::create_directories(folder_);
  }
  void Put(std::string_view bytes) {
    std::ofstream file(folder_ / ("seed" + std::to_string(count_++)), std::ios::binary);
    file << bytes;
    if (!file.flush()) {
      std::cerr << "cannot write into " << folder_ << "\n";
      std::exit(1);
    }
  }
  // For a target whose first byte picks a reader.
  void Put(char picked, std::string_view bytes) { Put(std::string(1, picked).append(bytes)); }

 private:
  std::filesystem::path folder_;
  int count_ = 0;
};

std::string WithSize(uint64_t size, std::string_view bytes) {
  return ByteWriter().Put<uint64_t>(size).PutRaw(bytes).str();
}

template <typename Body, size_t kIndex = 0, typename Each>
void EachFrame(Each each) {
  if constexpr (kIndex < std::variant_size_v<Body>) {
    each(Body(std::in_place_index<kIndex>));
    EachFrame<Body, kIndex + 1>(each);
  }
}

void Wire(const std::filesystem::path& root) {
  Folder page(root, "page"), frames(root, "frames"), agent(root, "agent");
  alignas(kPageBytes) static std::byte memory[kPageBytes];
  auto* control = reinterpret_cast<wire::ControlPage*>(memory);
  wire::InitPage(control, 7, 2, 4);
  wire::StoreOrder(control, {.operation = 5, .round = 2, .attempt = 3, .slot = 1});
  page.Put(AsText(ByteSpan(memory).first(448)));

  EachFrame<wire::Body>([&](wire::Body body) {
    frames.Put(wire::EncodeFrame({1, std::move(body)}).value());
  });
  frames.Put(
      wire::EncodeFrame({1, wire::Hello{"token", "job", 3, 8, 1, 1, {{"park", false, "no"}}}})
          .value());
  EachFrame<wire::AgentBody>([&](wire::AgentBody body) {
    agent.Put(0, wire::EncodeAgentFrame({1, std::move(body)}).value());
  });
  wire::Attach attach;
  attach.job = "job";
  attach.fds = {{wire::AttachedKind::kPage, 1, 0, 4096, 0}};
  agent.Put(0, wire::EncodeAgentFrame({1, attach}).value());
  agent.Put(1, agent::EncodeHello("token"));
  agent.Put(2, agent::EncodeStatus(NotFound("why")));
  agent.Put(3, agent::EncodeRequest({agent::DataRequestKind::kRead, "job", 3, 1, 2, 0, 4096}));
  agent.Put(4, agent::EncodeAnswer({OkStatus(), 8192, {Epoch(1), Step(2), Attempt(3)}}));
}

std::string Part(char from, std::string_view bytes) {
  return ByteWriter()
      .Put<uint8_t>(static_cast<uint8_t>(from))
      .Put<uint16_t>(static_cast<uint16_t>(bytes.size()))
      .PutRaw(bytes)
      .str();
}

std::string Say(uint8_t from, gang::MsgType type, const std::function<void(gang::Msg*)>& fill) {
  gang::Msg msg;
  msg.type = type;
  msg.from = from;
  msg.operation = 7;
  msg.round = 1;
  fill(&msg);
  return Part(static_cast<char>(from), gang::Encode(msg));
}

// A suspend of two members, as far as it gets with messages alone.
std::string SuspendTalk() {
  std::string talk = ByteWriter().Put<uint16_t>(0).str() + Part('\xff', "");
  for (const uint8_t from : {0, 1}) {
    talk += Say(from, gang::MsgType::kPlaces, [&](gang::Msg* msg) {
      msg->number = 1'000'000;
      msg->places = {{from * 2u, 10, false}, {from * 2u + 1, 10, false}};
    });
  }
  for (const auto vote : {gang::Vote::kAccepted, gang::Vote::kQuiesced, gang::Vote::kSealed,
                          gang::Vote::kCommsDown, gang::Vote::kReleased}) {
    for (const uint8_t from : {0, 1})
      talk += Say(from, gang::MsgType::kVote, [&](gang::Msg* msg) { msg->vote = vote; });
  }
  return talk;
}

void Gang(const std::filesystem::path& root) {
  Folder gang(root, "gang");
  gang::Msg msg;
  msg.type = gang::MsgType::kVote;
  msg.places = {{1, 2, false}};
  msg.numbers = {5, 6};
  msg.text = "why";
  gang.Put(0, gang::Encode(msg));
  gang::LeaderConfig config;
  config.members = {{0, Rank(0), 2}, {1, Rank(2), 2}};
  config.epoch = Epoch(1);
  auto leader = gang::Leader::Create(config, "").value();
  leader.Step(1, gang::MemberJoined{0});
  leader.Step(1, gang::MemberJoined{1});
  for (const auto& action :
       leader.Step(2, gang::Command{7, gang::Request::kSuspend, 1'000'000'000})) {
    const auto* stored = std::get_if<gang::Persist>(&action);
    if (stored == nullptr) continue;
    gang.Put(1, stored->record);
    gang.Put(2, ByteWriter()
                    .Put<uint16_t>(static_cast<uint16_t>(stored->record.size()))
                    .PutRaw(stored->record)
                    .PutRaw(SuspendTalk().substr(2))
                    .str());
  }
  gang.Put(2, SuspendTalk());
  std::string heard;
  for (const auto type : {gang::MsgType::kAsk, gang::MsgType::kPropose, gang::MsgType::kCommit,
                          gang::MsgType::kDecision, gang::MsgType::kGeneration}) {
    heard += Say(1, type, [](gang::Msg* m) {
      m->cut = 4;
      m->attempt = m->generation = 1;
      m->decision = gang::Decision::kStage;
      m->left_ns = 1'000'000'000;
    });
    heard += Part(1, "") + Part(65, "");
  }
  gang.Put(3, heard);
}

void Format(const std::filesystem::path& root, const std::filesystem::path& golden) {
  Folder manifest(root, "manifest"), index(root, "index"), shard(root, "shard"),
      values(root, "values"), records(root, "records");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(golden)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    const std::string name = entry.path().filename();
    if (name == "MANIFEST") {
      manifest.Put(bytes);
    } else if (name.ends_with(".index")) {
      const auto stream = std::filesystem::path(entry.path()).replace_extension("safetensors");
      index.Put(WithSize(std::filesystem::file_size(stream), bytes));
    } else if (name.ends_with(".safetensors")) {
      shard.Put(0, WithSize(bytes.size(), bytes));
    } else {
      records.Put(0, bytes);
    }
  }
  for (const char* key : {"w", "a%25b", "layer#0:2,4:8"}) shard.Put(1, key);
  for (const char* name : {"EPOCH.7", "EPOCH.7.claim", "s-7.e2.a3"}) records.Put(1, name);
  for (const auto& [value, spelled] : format::SpelledValues()) values.Put(0, spelled);
  const format::Manifest rich = format::RichManifest();
  for (const format::RankValues& rank : rich.values) values.Put(1, rank.Encode());
  for (const format::RankLayout& rank : rich.layouts) values.Put(2, rank.Encode());
  plan::RankPlan plan;
  plan.pieces = {{0, {{0, 0}, {4, 16}}, true}, {1, {{0, 0}, {8, 16}}, false}};
  plan.write_count = 1;
  values.Put(3, plan.Encode());
}

void Stored(const std::filesystem::path& root) {
  Folder records(root, "records");
  core::Job job;
  job.spec.name = "job";
  job.spec.command = {"./train"};
  core::Node node;
  node.info.name = "n0";
  for (const std::string& bytes :
       {core::EncodeJob(job), core::EncodeNode(node), core::EncodeOperation({}),
        core::EncodeEvent({}), core::EncodeMeta({"c", "t", 3})})
    records.Put(2, bytes);
}

void People(const std::filesystem::path& root) {
  Folder staging(root, "staging"), job(root, "job_file"), options(root, "options"),
      rpc(root, "rpc");
  staging.Put("");
  staging.Put(ByteWriter().Put<uint32_t>(UINT32_MAX).Put<uint16_t>(1).PutRaw("\1").str());
  staging.Put(ByteWriter().Put<uint32_t>(1024).Put<uint16_t>(4).Put<uint32_t>(3).str());
  job.Put(
      "name: gpt\nranks: 4\npriority: -1\nclass: batch\npreemptible: true\nstore: /data\n"
      "command: [./train, --lr, \"0.1\"]\nenv:\n  A: b\nstate_bytes_per_rank: 1.5 GiB\n"
      "min_runtime: 5m\nmax_price: 1.5\nsave_every: 10\nrestarts_max: 2\n");
  job.Put("command: ./train --lr 0.1\nenv: {A: \"1\"}\n");
  options.Put(0, "--ranks\n4\n--grace\n30\n--staging-budget\n8GiB\n--\n./train\n--lr\n0.1");
  options.Put(0,
              "--nnodes\n2\n--node-rank\n1\n--rendezvous\n127.0.0.1:7070\n--epoch=3\n"
              "--job\nj\n--job-id\n00112233445566778899aabbccddeeff\n--\ntrue");
  options.Put(0, "--help");
  options.Put(1, "1.5 GiB");
  options.Put(1, "127.0.0.1:7070");
  // A job of two ranks called "j", field by field: name, ranks, command.
  const std::string spec("\x0a\x01j\x10\x02", 5);
  rpc.Put(1, spec);
  rpc.Put(2, std::string("\x00\x00\x05\x00", 4) + spec);
  rpc.Put(0, std::string("\x0a\x0a\x0a\x01j\x12\x01t\x20\x01\x28\x02", 11));
}

// How many bytes of data the file has, then the header.
void Safetensors(const std::filesystem::path& root) {
  Folder headers(root, "safetensors");
  const auto put = [&](uint8_t data_bytes, const std::string& header) {
    headers.Put(std::string(1, static_cast<char>(data_bytes)) + std::string(7, '\0') + header);
  };
  put(0, "{}");
  put(12,
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
      R"("v":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}}  )");
  put(8, R"({"__metadata__":{"ckpt.dtypes":"{\"z\":\"C64\"}"},)"
         R"("z":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})");
  put(3, R"({"four":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]},)"
         R"("none":{"dtype":"I64","shape":[0],"data_offsets":[3,3]}})");
}

// The first byte is the width of an element (as a shift), the second the codec; then raw bytes.
void Codecs(const std::filesystem::path& root) {
  Folder codecs(root, "codec");
  std::string floats;
  for (int i = 0; i < 1024; ++i) {
    const float value = 0.01f * static_cast<float>(i % 37);
    floats.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  for (const bool is_float : {false, true}) {
    const auto encoded = codec::Encode(AsBytes(floats), 4, is_float, 3);
    if (!encoded.ok()) continue;
    const std::string head = {2, static_cast<char>(encoded->codec), 16, 0};
    codecs.Put(head + encoded->bytes);
  }
  codecs.Put(std::string({2, 3, 2}) + floats.substr(0, 256));
  codecs.Put(std::string({1, 4, 2}) + floats.substr(0, 256));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds DIR\n";
    return 2;
  }
  Wire(argv[1]);
  Gang(argv[1]);
  Format(argv[1], CKPT_GOLDEN_DIR);
  Stored(std::filesystem::path(argv[1]));
  People(argv[1]);
  Codecs(argv[1]);
  Safetensors(argv[1]);
  return 0;
}
