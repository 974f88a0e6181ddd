// The verbs that change a store or write files, and diff.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <regex>

#include "coordinator/ckptctl/compare.h"
#include "coordinator/ckptctl/completion.h"
#include "coordinator/ckptctl/tools_world.h"

namespace ckpt::ckptctl {
namespace {

namespace fs = std::filesystem;

TEST_F(Tools, PruneSaysWhatAndKeepsWhatIsWhole) {
  for (const int64_t step : {100, 200, 300, 400}) Save(Id(1, step));
  FlipByte(PathOf(Id(1, 300), "shard-00000.safetensors"), 2000);
  const std::string dry = Verb({"prune", path_, "--keep-last", "2", "--dry-run"});
  EXPECT_EQ(code_, 0) << dry;
  EXPECT_NE(dry.find("s400.e1.a1  keep"), std::string::npos) << dry;
  EXPECT_NE(dry.find("s200.e1.a1  keep"), std::string::npos) << "300 is damaged:\n" << dry;
  EXPECT_NE(dry.find("s100.e1.a1  remove  26.0 KiB"), std::string::npos) << dry;
  EXPECT_NE(dry.find("would remove 1, 26.0 KiB; nothing was changed\n"), std::string::npos) << dry;
  EXPECT_TRUE(fs::exists(PathOf(Id(1, 100))));
  std::ofstream(PathOf(Id(1, 100), "PINNED"));
  Verb({"prune", path_, "--keep-last", "2"});
  EXPECT_TRUE(fs::exists(PathOf(Id(1, 100)))) << "it is pinned";
  fs::remove(PathOf(Id(1, 100), "PINNED"));
  const auto json = nlohmann::json::parse(Verb({"-o", "json", "prune", path_, "--keep-last", "2"}));
  EXPECT_EQ(json["removed"][0], "s100.e1.a1");
  EXPECT_FALSE(fs::exists(PathOf(Id(1, 100))));
  EXPECT_TRUE(fs::exists(PathOf(Id(1, 200))));
  const std::string one = Verb({"prune", PathOf(Id(1, 400)), "--keep-last", "1"});
  EXPECT_EQ(code_, 2);
  EXPECT_NE(one.find("is one checkpoint; name the job's directory"), std::string::npos) << one;
  EXPECT_THROW(Verb({"prune", path_, "--keep-last", "0"}), CLI::ParseError);
}

TEST_F(Tools, DuTellsStoredFromHeld) {
  Save(Id(1, 100));
  Save(Id(1, 200), false);
  const std::string text = Verb({"du", path_});
  EXPECT_EQ(code_, 0) << text;
  EXPECT_NE(text.find("s100.e1.a1  visible"), std::string::npos) << text;
  EXPECT_NE(text.find("16.1 KiB"), std::string::npos) << "16 floats and 128 x 64 bf16:\n" << text;
  EXPECT_NE(text.find("stored in 2 directories"), std::string::npos) << text;
}

TEST_F(Tools, RepairSaysFirstAndSweepsWhenTold) {
  Save(Id(1, 100));
  Save(Id(1, 200), false);
  EXPECT_EQ(Verb({"repair", path_}).find("sweep"), std::string::npos) << "its epoch goes on";
  ASSERT_TRUE(store_->ClaimEpoch(Epoch(2), {}, {}).ok());
  const std::string said = Verb({"repair", path_});
  EXPECT_NE(said.find("sweep  s200.e1.a1"), std::string::npos) << said;
  EXPECT_NE(said.find("nothing was changed; `ckptctl repair DIR/train --yes` does it"),
            std::string::npos)
      << said;
  EXPECT_TRUE(fs::exists(PathOf(Id(1, 200))));
  Verb({"repair", path_, "--yes"});
  EXPECT_EQ(code_, 0);
  EXPECT_FALSE(fs::exists(PathOf(Id(1, 200))));
  EXPECT_TRUE(fs::exists(PathOf(Id(1, 100))));
  EXPECT_EQ(Verb({"repair", path_}), "nothing to repair in DIR/train\n");
}

TEST_F(Tools, CpIsWholeOrNotThere) {
  Save(Id(1, 100));
  const std::string copy = root_ + "/copy";
  EXPECT_EQ(Verb({"cp", path_, copy}),
            "s100.e1.a1 is whole and by itself in DIR/copy, every chunk checked\n");
  fs::remove_all(path_);
  EXPECT_NE(Verb({"verify", copy}).find("s100.e1.a1: ok"), std::string::npos);
  EXPECT_EQ(code_, 0);
  EXPECT_NE(Verb({"cp", copy, copy}).find("DIR/copy exists already"), std::string::npos);
  EXPECT_EQ(code_, 1);
  FlipByte(copy + "/shard-00001.safetensors", 6000);
  const std::string bad = Verb({"cp", copy, root_ + "/second"});
  EXPECT_EQ(code_, 4) << bad;
  EXPECT_NE(bad.find("layer.weight"), std::string::npos) << bad;
  EXPECT_FALSE(fs::exists(root_ + "/second"));
}

TEST_F(Tools, DiffNamesTensorsAndBy) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  const std::string same = Verb({"diff", PathOf(Id(1, 100)), PathOf(Id(1, 100))});
  EXPECT_EQ(code_, 0) << same;
  EXPECT_NE(same.find("2 tensors are the same, 0 differences\n"), std::string::npos) << same;
  const auto json =
      nlohmann::json::parse(Verb({"-o", "json", "diff", PathOf(Id(1, 100)), PathOf(Id(1, 200))}));
  EXPECT_EQ(code_, 1);
  ASSERT_EQ(json["differences"].size(), 3u) << json.dump();
  EXPECT_EQ(json["differences"][0]["name"], "bias");
  EXPECT_EQ(json["differences"][0]["elements"], 16);
  EXPECT_EQ(json["differences"][1]["elements"], 128 * 64) << "of both ranks";
  EXPECT_EQ(json["differences"][2]["what"], "value differs");
  EXPECT_EQ(json["differences"][2]["name"], "step");
  FlipByte(PathOf(Id(1, 200), "shard-00001.safetensors"), 6000);
  Verb({"diff", PathOf(Id(1, 100)), PathOf(Id(1, 200))});
  EXPECT_EQ(code_, 4);
}

TEST_F(Tools, ExportIsSafetensorsWithAnIndexWhenItIsLarge) {
  Save(Id(1, 100));
  const std::string to = root_ + "/hf";
  EXPECT_EQ(Verb({"export", path_, to, "--file-size", "100"}),
            "s100.e1.a1: 2 tensors, 16.1 KiB, in 2 files in DIR/hf\n");
  const auto index = nlohmann::json::parse(Slurp(to + "/model.safetensors.index.json"));
  EXPECT_EQ(index["weight_map"]["layer.weight"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(index["metadata"]["total_size"], 64 + 128 * 64 * 2);
  const std::string file = Slurp(to + "/model-00002-of-00002.safetensors");
  const auto header = nlohmann::json::parse(file.substr(8, static_cast<uint8_t>(file[0])));
  EXPECT_EQ(header["layer.weight"]["shape"], (std::vector<int>{128, 64}));
  EXPECT_EQ(header["layer.weight"]["dtype"], "BF16");
  EXPECT_EQ(file.size(), 8u + static_cast<uint8_t>(file[0]) + 128 * 64 * 2);
  // Rank 1's rows are the second half, as they lie in its shard.
  const std::string shard = Slurp(PathOf(Id(1, 100), "shard-00001.safetensors"));
  EXPECT_EQ(file.substr(file.size() - 8192), shard.substr(shard.size() - 8192));
  EXPECT_NE(Verb({"export", path_, to}).find("exists already"), std::string::npos);
  FlipByte(PathOf(Id(1, 100), "shard-00001.safetensors"), 6000);
  Verb({"export", path_, root_ + "/second"});
  EXPECT_EQ(code_, 4);
  EXPECT_FALSE(fs::exists(root_ + "/second"));
  EXPECT_FALSE(fs::exists(root_ + "/second.part"));
}

// What `work` writes to a terminal of its own, which is its standard error.
std::string OnTerminal(const std::function<void()>& work) {
  int fd = -1;
  winsize size{40, 160, 0, 0};
  const pid_t pid = ::forkpty(&fd, nullptr, nullptr, &size);
  if (pid == 0) {
    work();
    ::_exit(0);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(fd, buffer, sizeof buffer)) > 0;)  // EIO: it has ended
    text.append(buffer, static_cast<size_t>(n));
  ::waitpid(pid, nullptr, 0);
  ::close(fd);
  return text;
}

TEST_F(Tools, OnATerminalABarSaysHowFarTheyAreAndNowhereElse) {
  Save(Id(1, 100));
  Save(Id(1, 200));
  struct Case {
    std::vector<std::string> words;
    std::string pattern;  // among what is drawn
  };
  const std::string out = root_ + "/out";
  for (const Case& c : std::vector<Case>{
           {{"verify", path_},
            "\\[[#-]{20}\\] s200\\.e1\\.a1 \\(1 of 2\\): verified [0-9.]+ (B|KiB)"},
           {{"verify", path_}, "\\[#{20}\\] s100\\.e1\\.a1 \\(2 of 2\\): verified [0-9.]+ KiB"},
           {{"cp", path_, out + "1"}, "\\[#{20}\\] copied [0-9.]+ KiB"},
           {{"export", path_, out + "2"}, "\\[#{20}\\] exported [0-9.]+ KiB"},
           {{"import", out + "2", out + "5"}, "\\[#{20}\\] imported [0-9.]+ KiB"},
           {{"import", out + "2", out + "6"}, "\\[#{20}\\] verified [0-9.]+ KiB"}}) {
    const std::string drawn = OnTerminal([&] { Quietly(c.words); });
    EXPECT_TRUE(std::regex_search(drawn, std::regex(c.pattern))) << c.words[0] << ":\n" << drawn;
    EXPECT_TRUE(drawn.ends_with("\x1b[J")) << "what was drawn is cleared:\n" << drawn;
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"verify", path_},
                                             {"cp", path_, out + "3"},
                                             {"export", path_, out + "4"},
                                             {"import", out + "4", out + "7"}}) {
    const std::string said = Verb(words);
    EXPECT_EQ(code_, 0);
    EXPECT_EQ(said.find_first_of("\x1b#"), std::string::npos) << said;
  }
}

TEST(CompletionTest, EveryPathOfAVerbIsCompleted) {
  CLI::App app("", "ckptctl");
  Globals globals;
  ckptctl::Run run;
  RegisterOfflineVerbs(app, globals, &run);
  const auto completed = [&](std::vector<std::string> words) {
    std::ostringstream out;
    words.emplace_back();
    Complete(app, globals, words, out);
    return out.str().substr(0, 6);
  };
  for (const char* verb : {"ls", "cp", "diff", "export", "import"})
    EXPECT_EQ(completed({verb}), ":files") << verb;
  for (const char* verb : {"cp", "diff", "export", "import"})
    EXPECT_EQ(completed({verb, "a"}), ":files") << verb;
  EXPECT_EQ(completed({"import", "a", "b", "c"}), ":files");
  EXPECT_EQ(completed({"cp", "a", "b"}), "") << "there is no third";
}

template <typename T>
Difference Compared(DType dtype, std::vector<T> a, std::vector<T> b) {
  return Compare(dtype, std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

TEST(CompareTest, NumbersOfEveryKind) {
  Difference d = Compared<float>(DType::kF32, {1, 2, 4}, {1, 3, 2});
  EXPECT_EQ(d.count, 2u);
  EXPECT_EQ(d.first, 1u);
  EXPECT_EQ(d.max_abs, 2);
  EXPECT_EQ(d.max_rel, 0.5);
  d = Compared<float>(DType::kF32, {0.0f}, {-0.0f});
  EXPECT_EQ(d.count, 1u) << "other bits";
  EXPECT_EQ(d.max_abs, 0);
  d = Compared<float>(DType::kF32, {NAN}, {1});
  EXPECT_TRUE(std::isinf(d.max_abs));
  EXPECT_EQ(Compared<uint16_t>(DType::kBF16, {0x3f80}, {0x4000}).max_abs, 1);
  EXPECT_EQ(Compared<uint16_t>(DType::kF16, {0x3c00}, {0x4000}).max_abs, 1);
  EXPECT_EQ(Compared<uint8_t>(DType::kF8E4M3, {0x38}, {0x40}).max_abs, 1);
  EXPECT_EQ(Compared<uint8_t>(DType::kF8E5M2, {0x3c}, {0x40}).max_abs, 1);
  EXPECT_EQ(Compared<int8_t>(DType::kI8, {-3}, {3}).max_abs, 6);
  d = Compared<float>(DType::kC64, {1, 1, 2, 2}, {1, 1, 2, 5});
  EXPECT_EQ(d.count, 1u);
  EXPECT_EQ(d.first, 1u) << "a pair is one element";
  EXPECT_EQ(d.max_abs, 3);
}

}  // namespace
}  // namespace ckpt::ckptctl
