// Checkpoints that hold only what has changed: a copy and an export hold everything, also when what
// was referred to is gone; and when it is gone beforehand, that is said, and nothing is made.
#include <sys/wait.h>

#include <filesystem>

#include "coordinator/ckptctl/tools_world.h"
#include "libckpt/base/fault.h"
#include "libckpt/testing/test_gang.h"

namespace ckpt::ckptctl {
namespace {

namespace fs = std::filesystem;
namespace gangs = engine::testing;

constexpr uint64_t kRows = 4000;

std::vector<gangs::TestRank> Ranks() {
  std::vector<gangs::TestRank> ranks(2);
  for (uint32_t r = 0; r < 2; ++r) {
    ranks[r].tensors.emplace_back(
        gangs::Shard("weights", DType::kF32, {2 * kRows}, {{r * kRows}, {kRows}}), r);
    ranks[r].tensors.emplace_back(
        gangs::Meta("shared", DType::kBF16, Placement::kReplicated, {3000}), r);
    ranks[r].tensors.emplace_back(gangs::Meta("own", DType::kI64, Placement::kPerRank, {700}), r);
  }
  return ranks;
}

class References : public Tools {
 protected:
  void SetUp() override {
    Tools::SetUp();
    gang_.MakeRegions(job_);
    gang_.Fill(1);
    SaveStep(100);
    Change("weights");
    SaveStep(200);
    Change("shared");
    SaveStep(300);
  }
  // Some elements of one tensor, as a training that has frozen the others.
  void Change(const std::string& name) {
    for (gangs::TestRank& rank : gang_.ranks()) {
      for (gangs::TestTensor& tensor : rank.tensors) {
        auto* const bytes = static_cast<uint8_t*>(tensor.live().data);
        if (tensor.live().meta.name != name) continue;
        for (uint64_t at = 0; at < tensor.live().meta.LocalBytes() / 2; at += 8) bytes[at] ^= 0x11;
      }
    }
  }
  void SaveStep(int64_t step) {
    engine::WriteOptions options;
    options.chunk_bytes = kChunkBytes;
    options.references = true;
    ASSERT_CKPT_OK(gang_.Save(store_.get(), job_, Id(1, step), false, options));
  }
  void ExpectContents(const std::string& path) {
    const Result<Target> target = OpenTarget(path);
    ASSERT_TRUE(target.ok()) << target.status().ToString();
    const auto reader = engine::OpenCheckpoint(target->store.get(), Id(1, 300));
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    gangs::TestGang loaded(Ranks());
    loaded.Clear();
    ASSERT_CKPT_OK(loaded.LoadAll(reader->get()));
    for (size_t r = 0; r < 2; ++r) {
      for (size_t t = 0; t < loaded.ranks()[r].tensors.size(); ++t) {
        const engine::LiveTensor& a = gang_.ranks()[r].tensors[t].live();
        const engine::LiveTensor& b = loaded.ranks()[r].tensors[t].live();
        EXPECT_EQ(std::memcmp(a.data, b.data, a.meta.LocalBytes()), 0) << a.meta.name;
      }
    }
  }
  void RemoveOrigins() {
    fs::remove_all(PathOf(Id(1, 100)));
    fs::remove_all(PathOf(Id(1, 200)));
  }

  gangs::TestGang gang_{Ranks()};
};

TEST_F(References, ACopyAndAnExportAreWholeWhenTheOriginsAreGone) {
  const std::string newest = PathOf(Id(1, 300));
  const format::Manifest manifest = ReadManifestOf(*store_, Id(1, 300)).value();
  ASSERT_EQ(manifest.origins.size(), 2u) << "of both older ones";
  // From the job, and from the checkpoint's own path.
  Verb({"cp", path_, root_ + "/a"});
  ASSERT_EQ(code_, 0);
  Verb({"cp", newest, root_ + "/b"});
  ASSERT_EQ(code_, 0);
  Verb({"export", path_, root_ + "/out"});
  ASSERT_EQ(code_, 0);
  RemoveOrigins();
  for (const std::string& copy : {root_ + "/a", root_ + "/b"}) {
    SCOPED_TRACE(copy);
    const std::string said = Verb({"verify", copy});
    EXPECT_EQ(code_, 0) << said;
    EXPECT_NE(said.find("s300.e1.a1: ok"), std::string::npos) << said;
    ExpectContents(copy);
    EXPECT_TRUE(ReadManifestOf(*OpenTarget(copy)->store, Id(1, 300))->origins.empty());
  }
  fs::remove_all(path_);
  Verb({"import", root_ + "/out", root_ + "/back"});
  EXPECT_EQ(code_, 0);
  Verb({"diff", root_ + "/a", root_ + "/back"});
  EXPECT_EQ(code_, 0) << "what was exported is what was saved";
}

TEST_F(References, WithoutItsOriginsNothingIsMadeAndTheWayOutIsSaid) {
  RemoveOrigins();
  for (const std::string& from : {path_, PathOf(Id(1, 300))}) {
    for (const char* verb : {"cp", "export"}) {
      SCOPED_TRACE(verb + (" " + from));
      const std::string said = Verb({verb, from, root_ + "/to"});
      EXPECT_EQ(code_, 4) << said;
      for (const char* words :
           {"'weights'", "refers to shard-0000", " of checkpoint s100.e1.a1 (uid ",
            "which is not there whole", "bring that checkpoint back to where it was"}) {
        EXPECT_NE(said.find(words), std::string::npos) << words << "\n" << said;
      }
      EXPECT_FALSE(fs::exists(root_ + "/to"));
      EXPECT_FALSE(fs::exists(root_ + "/to.part"));
    }
    const std::string said = Verb({"verify", from});
    EXPECT_EQ(code_, 4) << said;
    EXPECT_NE(said.find("refers to shard-00000.safetensors of checkpoint s100.e1.a1 (uid "),
              std::string::npos)
        << said;
    EXPECT_NE(said.find("refers to shard-00001.safetensors of checkpoint"), std::string::npos)
        << "both shards are named:\n"
        << said;
  }
}

TEST_F(References, OnlyWhatAnOriginHeldIsNamed) {
  fs::remove_all(PathOf(Id(1, 200)));  // it holds the changed half of the weights, and no more
  const std::string said = Verb({"cp", path_, root_ + "/to"});
  EXPECT_EQ(code_, 4) << said;
  EXPECT_NE(said.find("shard-00000.safetensors, tensor 'weights': refers to"), std::string::npos)
      << said;
}

// A removal that was interrupted has them under another name.
TEST_F(References, OriginsInTheTrashAreFoundByEitherPath) {
  for (const int64_t step : {100, 200})
    fs::rename(PathOf(Id(1, step)), path_ + "/.trash-1-" + Id(1, step).ToString());
  for (const std::string& from : {path_, PathOf(Id(1, 300))}) {
    const std::string said = Verb({"verify", "--checkpoint", "s300.e1.a1", from});
    EXPECT_EQ(code_, 0) << said;
  }
  Verb({"cp", PathOf(Id(1, 300)), root_ + "/a"});
  EXPECT_EQ(code_, 0);
  RemoveOrigins();
  ExpectContents(root_ + "/a");
}

TEST_F(Tools, EveryDTypeThatWeHaveComesBackFromAnExport) {
  std::vector<gangs::TestRank> ranks(1);
  for (uint8_t number = 1; number <= static_cast<uint8_t>(DType::kF4x2); ++number) {
    const auto dtype = static_cast<DType>(number);
    const std::string name(format::DTypeName(dtype));
    ranks[0].tensors.emplace_back(gangs::Meta(name, dtype, Placement::kReplicated, {3, 5}), 0);
    ranks[0].tensors.emplace_back(gangs::Meta("0" + name, dtype, Placement::kReplicated, {}), 0);
    ranks[0].tensors.emplace_back(gangs::Meta("e" + name, dtype, Placement::kReplicated, {0}), 0);
  }
  gangs::TestGang gang(std::move(ranks));
  gang.MakeRegions(job_);
  gang.Fill(1);
  ASSERT_CKPT_OK(gang.Save(store_.get(), job_, Id(1, 1)));
  Verb({"export", path_, root_ + "/out", "--file-size", "300"});
  ASSERT_EQ(code_, 0);
  Verb({"import", root_ + "/out", root_ + "/back"});
  ASSERT_EQ(code_, 0);
  const std::string said = Verb({"diff", path_, root_ + "/back"});
  EXPECT_EQ(code_, 0) << said;
  EXPECT_NE(said.find("54 tensors are the same, 0 differences"), std::string::npos) << said;
}

// Two tensors that an export would give one name: neither is left out without a word.
TEST_F(Tools, NamesThatAnExportCannotTellApartAreRefused) {
  const auto exported = [&](const std::string& job, gangs::TestRank rank) {
    const auto store = storage::OpenFileStore(root_ + "/" + job);
    const JobId id = store->OpenJob(JobId{}).value();
    EXPECT_TRUE(store->ClaimEpoch(Epoch(1), {}, {}).ok());
    std::vector<gangs::TestRank> ranks;
    ranks.push_back(std::move(rank));
    gangs::TestGang gang(std::move(ranks));
    gang.MakeRegions(id);
    EXPECT_CKPT_OK(gang.Save(store.get(), id, Id(1, 1)));
    return Verb({"export", root_ + "/" + job, root_ + "/out"});
  };
  gangs::TestRank alike;
  alike.tensors.emplace_back(gangs::Meta("w", DType::kU8, Placement::kPerRank, {3}), 0);
  alike.tensors.emplace_back(gangs::Meta("w.rank0", DType::kU8, Placement::kReplicated, {3}), 0);
  std::string said = exported("alike", std::move(alike));
  EXPECT_EQ(code_, 1);
  EXPECT_NE(said.find("tensor 'w.rank0' and that of a rank"), std::string::npos) << said;
  gangs::TestRank reserved;
  reserved.tensors.emplace_back(
      gangs::Meta("__metadata__", DType::kU8, Placement::kReplicated, {3}), 0);
  said = exported("reserved", std::move(reserved));
  EXPECT_EQ(code_, 1);
  EXPECT_NE(said.find("'__metadata__' cannot be in a safetensors file"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(root_ + "/out"));
}

#if defined(CKPT_FAULTS)
// Two that make the same directory at once: whoever comes second leaves the other's alone.
TEST_F(References, WhatSomebodyElseMakesMeanwhileIsNotRemoved) {
  Verb({"export", path_, root_ + "/out"});
  ASSERT_EQ(code_, 0);
  struct Case {
    const char* point;
    std::vector<std::string> words;
  };
  const std::string to = root_ + "/to";
  for (const Case& c : std::vector<Case>{{"engine.open.manifest", {"cp", path_, to}},
                                         {"engine.import.begin", {"import", root_ + "/out", to}}}) {
    SCOPED_TRACE(c.words[0]);
    FaultHook hook(c.point, [&] {
      fs::create_directory(to);
      std::ofstream(to + "/shard-00000.safetensors") << "of another one";
    });
    const std::string said = Verb(c.words);
    EXPECT_TRUE(hook.fired());
    EXPECT_EQ(code_, 1) << said;
    EXPECT_NE(said.find("DIR/to: File exists"), std::string::npos) << said;
    EXPECT_EQ(Slurp(to + "/shard-00000.safetensors"), "of another one") << said;
    fs::remove_all(to);
  }
}

// What is left of a copy that was killed looks like no checkpoint, and says so.
TEST_F(References, ACopyThatIsKilledNeverLooksWhole) {
  for (const char* point : {"store.file.write", "store.file.before_sync", "engine.copy.commit",
                            "store.copy.after_manifest"}) {
    SCOPED_TRACE(point);
    const std::string to = root_ + "/to";
    const pid_t pid = ::fork();
    if (pid == 0) {
      FaultHook hook(point, [] { ::kill(::getpid(), SIGKILL); });
      Quietly({"cp", path_, to});
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it came to its end";
    ASSERT_TRUE(fs::exists(to));
    for (const char* verb : {"verify", "inspect"}) {
      const std::string said = Verb({verb, to});
      EXPECT_NE(code_, 0) << said;
    }
    const std::string again = Verb({"cp", path_, to});
    EXPECT_EQ(code_, 1);
    EXPECT_NE(again.find("exists already"), std::string::npos) << again;
    fs::remove_all(to);
    Verb({"cp", path_, to});
    EXPECT_EQ(code_, 0);
    fs::remove_all(to);
  }
}
#endif

}  // namespace
}  // namespace ckpt::ckptctl
