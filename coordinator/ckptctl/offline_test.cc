// The verbs that need no coordinator, as transcripts; and one damaged byte anywhere, named exactly.
#include "coordinator/ckptctl/offline_world.h"

namespace ckpt::ckptctl {
namespace {

TEST_F(Offline, LsListsNewestFirst) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  Save(Id(1, 300), false);
  EXPECT_EQ(Out(ListCheckpoints, Options(path_)),
            "CHECKPOINT  STEP  EPOCH  RANKS  SIZE      STATE\n"
            "s200.e1.a1  200   1      2      24.8 KiB  visible\n"
            "s100.e1.a1  100   1      2      24.8 KiB  visible\n"
            "(1 more not visible: unfinished, or of a run that was overtaken; --all shows them)\n");
  OfflineOptions all = Options(path_, true);
  all.all = true;
  const auto json = nlohmann::json::parse(Out(ListCheckpoints, all));
  EXPECT_EQ(json["job"], "00112233445566778899aabbccddeeff");
  ASSERT_EQ(json["checkpoints"].size(), 3u);
  EXPECT_EQ(json["checkpoints"][0]["name"], "s300.e1.a1");
  EXPECT_EQ(json["checkpoints"][0]["state"], "incomplete");
  EXPECT_EQ(json["checkpoints"][1]["step"], 200);
  EXPECT_EQ(json["checkpoints"][1]["visible"], true);
}

TEST_F(Offline, LsOfAStoreNamesItsJobs) {
  Save(Id(1, 100));
  Out(ListCheckpoints, Options(root_), Code::kNotFound);
  EXPECT_NE(last_.message().find("jobs in it: train"), std::string::npos) << last_.message();
  Out(ListCheckpoints, Options(root_ + "/nowhere"), Code::kNotFound);
  EXPECT_NE(last_.message().find(root_ + "/nowhere"), std::string::npos) << last_.message();
  EXPECT_EQ(OfflineExitCode(last_), 1);
}

TEST_F(Offline, InspectShowsWhatIsInIt) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  const std::string text = Out(Inspect, Options(path_));
  for (const char* part :
       {"checkpoint  s200.e1.a1\n", "job         00112233445566778899aabbccddeeff\n",
        "TENSOR        DTYPE  SHAPE      PLACEMENT      RANKS  SIZE\n",
        "bias          F32    [16]       replicated     2      64 B\n",
        "layer.weight  BF16   [128, 64]  sharded 2 x 1  2      16.0 KiB\n",
        "VALUE  RANK  CONTENT\n", "shard-00000.safetensors", "shard-00001.index"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nnot in\n" << text;
  }
  OfflineOptions older = Options(path_, true);
  older.checkpoint = "s100.e1.a1";
  const auto json = nlohmann::json::parse(Out(Inspect, older));
  EXPECT_EQ(json["step"], 100);
  EXPECT_EQ(json["tensors"][1]["name"], "layer.weight");
  EXPECT_EQ(json["tensors"][1]["shape"], (std::vector<int>{128, 64}));
  EXPECT_EQ(json["tensors"][1]["cut"]["parts"], (std::vector<int>{2, 1}));
  EXPECT_EQ(json["tensors"][1]["cut"]["copies"], 1);
  EXPECT_TRUE(json["tensors"][0]["cut"].is_null());
  older.checkpoint = "s7.e1.a1";
  Out(Inspect, older, Code::kNotFound);
  older.checkpoint = "nonsense";
  Out(Inspect, older, Code::kInvalidArgument);
  EXPECT_EQ(OfflineExitCode(last_), 2);
}

TEST_F(Offline, InspectAndVerifyOfAnUnfinishedOneSaySo) {
  Save(Id(1, 100), false);
  OfflineOptions options = Options(path_);
  options.checkpoint = "s100.e1.a1";
  Out(Inspect, options, Code::kFailedPrecondition);
  EXPECT_NE(last_.message().find("not committed"), std::string::npos) << last_.message();
  Out(Verify, Options(path_), Code::kNotFound);
  const std::string text = Out(Verify, options, Code::kDataLoss);
  EXPECT_NE(text.find("COMMIT: is missing"), std::string::npos) << text;
}

TEST_F(Offline, VerifyOfWholeOnes) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  const std::string text = Out(Verify, Options(path_));
  EXPECT_EQ(text.find("s200.e1.a1: ok, 2 shards, "), 0u) << text;
  EXPECT_NE(text.find("\ns100.e1.a1: ok, 2 shards, "), std::string::npos) << text;
  const auto json = nlohmann::json::parse(Out(Verify, Options(PathOf(Id(1, 100)), true)));
  EXPECT_EQ(json["checkpoints"][0]["ok"], true);
}

TEST_F(Offline, VerifyNamesTensorShardChunkAndRange) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  const std::string name = "shard-00001.safetensors";
  FlipByte(PathOf(Id(1, 200), name), 4096 + 4096 + 17);
  const std::string text = Out(Verify, Options(path_), Code::kDataLoss);
  EXPECT_EQ(text.find("s200.e1.a1: DAMAGED\n"
                      "  shard-00001.safetensors, shard 1, chunk 2, bytes 8192 to 12288, "
                      "tensor 'layer.weight': does not have its digest\n"
                      "s100.e1.a1: ok, "),
            0u)
      << text;
  EXPECT_EQ(OfflineExitCode(last_), 4);
  EXPECT_NE(last_.message().find("1 of 2 checkpoints damaged"), std::string::npos);
  const auto json =
      nlohmann::json::parse(Out(Verify, Options(path_, true), Code::kDataLoss))["checkpoints"][0];
  EXPECT_EQ(json["damage"][0]["chunk"], 2);
  EXPECT_EQ(json["damage"][0]["tensors"][0], "layer.weight");
}

// Every 97th byte of every file, one at a time.
TEST_F(Offline, OneDamagedByteAnywhereIsNamed) {
  const AttemptId id = Id(1, 100);
  Save(id);
  for (const char* name : {"shard-00000.safetensors", "shard-00001.safetensors",
                           "shard-00000.index", "shard-00001.index", "MANIFEST", "COMMIT"}) {
    const uint64_t bytes = Slurp(PathOf(id, name)).size();
    ASSERT_GT(bytes, 0u);
    for (uint64_t at = 0; at < bytes; at += (bytes > 2000 ? 97 : 13)) {
      SCOPED_TRACE(std::string(name) + " at " + std::to_string(at));
      const std::vector<Damage> damage = DamageOf(id, name, at);
      ASSERT_EQ(damage.size(), 1u) << damage[0].ToString();
      EXPECT_EQ(damage[0].file, name) << damage[0].ToString();
      if (std::string_view(name) == "COMMIT") continue;
      EXPECT_LE(damage[0].begin, at) << damage[0].ToString();
      EXPECT_GT(damage[0].end, at) << damage[0].ToString();
      EXPECT_FALSE(damage[0].tensors.empty()) << damage[0].ToString();
    }
  }
}

// Headers and indexes are functions of what else is known: the very byte is found.
TEST_F(Offline, DamageOfHeaderAndIndexIsFoundToTheByte) {
  const AttemptId id = Id(1, 100);
  Save(id);
  const std::string shard = "shard-00000.safetensors", index = "shard-00000.index";
  const std::string header = Slurp(PathOf(id, shard));
  const uint64_t key = header.find("layer.weight");
  std::vector<Damage> damage = DamageOf(id, shard, key + 2);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].begin, key + 2);
  EXPECT_EQ(damage[0].end, key + 3);
  EXPECT_EQ(*damage[0].chunk, 0u);
  EXPECT_EQ(damage[0].tensors, std::vector<std::string>{"layer.weight"});

  const std::string bytes = Slurp(PathOf(id, index));
  const uint64_t last_chunk = bytes.size() - 16 - 48;
  damage = DamageOf(id, index, last_chunk + 40);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].begin, last_chunk + 40);
  EXPECT_EQ(damage[0].end, last_chunk + 41);
  EXPECT_EQ(damage[0].tensors, std::vector<std::string>{"layer.weight"});
  EXPECT_NE(damage[0].what.find("data are whole"), std::string::npos) << damage[0].what;

  damage = DamageOf(id, index, bytes.find("bias"));
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_EQ(damage[0].tensors, std::vector<std::string>{"bias"});
}

TEST_F(Offline, MissingAndShortFilesAreNamed) {
  const AttemptId id = Id(1, 100);
  Save(id);
  auto& fs = os::PosixFileSystem();
  ASSERT_TRUE(fs.Unlink(PathOf(id, "shard-00000.index")).ok());
  {
    const auto file = fs.Open(PathOf(id, "shard-00001.safetensors"), os::OpenOptions::ReadWrite());
    ASSERT_TRUE((*file)->Truncate(5000).ok());
  }
  const std::string text = Out(Verify, Options(PathOf(id)), Code::kDataLoss);
  EXPECT_NE(text.find("shard-00000.index, shard 0"), std::string::npos) << text;
  EXPECT_NE(text.find("is missing"), std::string::npos) << text;
  EXPECT_NE(text.find("shard-00001.safetensors, shard 1, bytes 5000 to 12288, tensors 'bias', "
                      "'layer.weight': has 5000 bytes instead of 12288"),
            std::string::npos)
      << text;
}

TEST_F(Offline, ADamagedListIsDamage) {
  Save(Id(1, 100));
  FlipByte(path_ + "/EPOCH.1", 20);
  Out(Verify, Options(path_), Code::kDataLoss);
  EXPECT_NE(last_.message().find("EPOCH.1"), std::string::npos) << last_.message();
  EXPECT_EQ(OfflineExitCode(last_), 4);
  // The way out that the message names.
  Out(Verify, Options(PathOf(Id(1, 100))));
}

}  // namespace
}  // namespace ckpt::ckptctl
