#include "coordinator/run/options.h"

#include <gtest/gtest.h>

#include <map>

namespace ckpt::run {
namespace {

Result<ParsedOptions> Parse(std::vector<const char*> args,
                            std::map<std::string, std::string> env = {}) {
  args.insert(args.begin(), "ckpt-run");
  return ParseOptions(static_cast<int>(args.size()), args.data(),
                      [env](const char* name) -> std::optional<std::string> {
                        const auto it = env.find(name);
                        return it == env.end() ? std::nullopt : std::optional(it->second);
                      });
}

std::string ErrorOf(std::vector<const char*> args) {
  const Result<ParsedOptions> parsed = Parse(std::move(args));
  return parsed.ok() ? "OK" : parsed.status().message();
}

TEST(Options, TorchrunIsKnownAndSaysHowManyRanksItStarts) {
  using Command = std::vector<const char*>;
  const auto ranks = [](Command command, Command flags = {}) {
    flags.push_back("--");
    flags.insert(flags.end(), command.begin(), command.end());
    const auto parsed = Parse(flags);
    EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
    return parsed.ok() && parsed->options.launcher ? parsed->options.rank_count : 0;
  };
  EXPECT_EQ(ranks({"torchrun", "--nproc-per-node", "4", "train.py"}), 4u);
  EXPECT_EQ(ranks({"/venv/bin/torchrun", "--nproc_per_node=2", "train.py"}), 2u);
  EXPECT_EQ(ranks({"python", "-m", "torch.distributed.run", "--nproc-per-node=3", "train.py"}), 3u);
  EXPECT_EQ(ranks({"torchrun", "train.py"}), 1u);
  EXPECT_EQ(ranks({"torchrun", "--nproc-per-node", "gpu", "train.py"}, {"--ranks", "8"}), 8u);
  EXPECT_EQ(ranks({"mpirun", "-n", "2", "train"}, {"--ranks", "2", "--launcher"}), 2u);
  EXPECT_EQ(ranks({"train", "--nproc-per-node", "4"}), 0u);  // no launcher
  const std::string error = ErrorOf({"--", "torchrun", "--nproc-per-node", "gpu", "train.py"});
  EXPECT_NE(error.find("--nproc-per-node is 'gpu'"), std::string::npos) << error;
  EXPECT_NE(error.find("--ranks"), std::string::npos) << error;
}

TEST(Options, DefaultsComeFromTheCommandAndTheEnvironment) {
  const auto plain = Parse({"--", "/opt/bin/train", "--lr", "0.1", "--"});
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  EXPECT_EQ(plain->options.job, "train");
  EXPECT_EQ(plain->options.store, "./ckpt/train");
  EXPECT_EQ(plain->options.command,
            (std::vector<std::string>{"/opt/bin/train", "--lr", "0.1", "--"}));
  EXPECT_EQ(plain->options.grace, std::chrono::seconds(30));
  EXPECT_TRUE(plain->options.agent_socket.empty());

  const auto env = Parse({"--", "train"}, {{"CKPT_JOB", "gpt"},
                                           {"CKPT_STORE", "/data/gpt"},
                                           {"CKPT_AGENT", "/run/a.sock"},
                                           {"CKPT_GANG_TOKEN", "t"}});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->options.job, "gpt");
  EXPECT_EQ(env->options.store, "/data/gpt");
  EXPECT_EQ(env->options.agent_socket, "/run/a.sock");
  EXPECT_EQ(env->options.gang_token, "t");

  const auto flags = Parse({"--job", "a", "--store", "b", "--", "train"}, {{"CKPT_JOB", "gpt"}});
  ASSERT_TRUE(flags.ok());
  EXPECT_EQ(flags->options.job, "a");
  EXPECT_EQ(flags->options.store, "b");
}

TEST(Options, RulesOfRetention) {
  const auto none = Parse({"--", "t"});
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->options.keep.has_value());
  const auto some =
      Parse({"--keep-last", "3", "--keep-every", "1000", "--keep-hours", "24", "--", "t"});
  ASSERT_TRUE(some.ok() && some->options.keep.has_value());
  EXPECT_EQ(some->options.keep->last, 3u);
  EXPECT_EQ(some->options.keep->every_steps, 1000u);
  EXPECT_EQ(some->options.keep->every_hours, std::chrono::hours(24));
  EXPECT_NE(ErrorOf({"--keep-every", "1000", "--", "t"}).find("--keep-last"), std::string::npos);
}

TEST(Options, FirstRankFollowsTheNode) {
  const auto node1 = Parse({"--ranks", "4", "--nnodes", "2", "--node-rank", "1", "--rendezvous",
                            "127.0.0.1:7000", "--", "t"});
  ASSERT_TRUE(node1.ok()) << node1.status().ToString();
  EXPECT_EQ(node1->options.first_rank, 4u);
  EXPECT_FALSE(node1->options.leads());
  const auto uneven = Parse({"--ranks", "1", "--nnodes", "2", "--node-rank", "1", "--first-rank",
                             "3", "--rendezvous", "[::1]:7000", "--", "t"});
  ASSERT_TRUE(uneven.ok()) << uneven.status().ToString();
  EXPECT_EQ(uneven->options.first_rank, 3u);
}

TEST(Options, BadInputSaysWhatWouldBeRight) {
  EXPECT_NE(ErrorOf({}).find("put it after --"), std::string::npos);
  EXPECT_NE(ErrorOf({"--rank", "2", "--", "t"}).find("--rank"), std::string::npos);
  EXPECT_NE(ErrorOf({"--ranks", "0", "--", "t"}).find("ranks"), std::string::npos);
  EXPECT_NE(ErrorOf({"--ranks", "two", "--", "t"}).find("ranks"), std::string::npos);
  EXPECT_NE(ErrorOf({"stray", "--", "t"}).find("stray"), std::string::npos);
  EXPECT_NE(ErrorOf({"--nnodes", "2", "--", "t"}).find("--rendezvous"), std::string::npos);
  EXPECT_NE(ErrorOf({"--nnodes", "2", "--node-rank", "2", "--rendezvous", "127.0.0.1:1", "--", "t"})
                .find("count from 0"),
            std::string::npos);
  EXPECT_NE(ErrorOf({"--rendezvous", "10.0.0.1:7000", "--", "t"}).find("TLS"), std::string::npos);
  EXPECT_NE(ErrorOf({"--listen", "0.0.0.0", "--", "t"}).find("TLS"), std::string::npos);
  EXPECT_NE(ErrorOf({"--staging-budget", "lots", "--", "t"}).find("512MiB"), std::string::npos);
  EXPECT_NE(ErrorOf({"--job", "a/b", "--", "t"}).find("a/b"), std::string::npos);
  EXPECT_NE(ErrorOf({"--expect", "step 5", "--", "t"}).find("--expect"), std::string::npos);
  for (const char* bad : {"-1", "0", "nan", "inf", "-inf", "1e300"}) {
    EXPECT_NE(ErrorOf({"--grace", bad, "--", "t"}).find("grace"), std::string::npos) << bad;
    EXPECT_NE(ErrorOf({"--join-timeout", bad, "--", "t"}).find("join-timeout"), std::string::npos)
        << bad;
  }
}

TEST(Options, HelpIsNoError) {
  const auto parsed = Parse({"--help"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_NE(parsed->help.find("--ranks"), std::string::npos);
}

TEST(Options, ByteCounts) {
  EXPECT_EQ(*ParseByteCount("1048576"), 1048576u);
  EXPECT_EQ(*ParseByteCount("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseByteCount("4G"), uint64_t{4} << 30);
  for (const char* bad : {"", "G", "-1", "1.5G", "4Gi", "99999999999999999999", "99999999999T"}) {
    EXPECT_FALSE(ParseByteCount(bad).ok()) << bad;
  }
}

TEST(Options, CommandIsSearchedBeforeAnythingStarts) {
  const Environment env = ProcessEnvironment();
  EXPECT_TRUE(FindCommand("sh", env).ok());
  EXPECT_EQ(FindCommand("/bin/sh", env).value(), "/bin/sh");
  EXPECT_EQ(FindCommand("no-such-program-xyz", env).status().code(), Code::kNotFound);
  EXPECT_EQ(FindCommand("/etc/passwd", env).status().code(), Code::kPermissionDenied);
}

}  // namespace
}  // namespace ckpt::run
