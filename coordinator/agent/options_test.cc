#include "coordinator/agent/options.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/agent/launch_command.h"
#include "libckpt/os/process.h"

namespace ckpt::agent {
namespace {

AgentOptions Good() {
  AgentOptions options;
  options.name = "node-a";
  options.coordinator = "unix:/tmp/ckptd.sock";
  options.slots = 4;
  options.state_dir = "/tmp/agent";
  options.ckpt_run = "/bin/sh";
  return options;
}

TEST(Options, BytesHaveBinaryUnits) {
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_EQ(*ParseBytes("1KiB"), 1024u);
  EXPECT_EQ(*ParseBytes("512MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("1.5 GiB"), uint64_t{3} << 29);
  EXPECT_EQ(*ParseBytes("8G"), uint64_t{8} << 30);
  EXPECT_EQ(*ParseBytes("2TB"), uint64_t{2} << 40);
  for (const char* bad : {"", "MiB", "-1", "12x", "1 MMiB", "nan", "1e30"}) {
    EXPECT_EQ(ParseBytes(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(Options, DefaultsAreFilledIn) {
  AgentOptions options = Good();
  ASSERT_TRUE(CheckOptions(&options).ok());
  EXPECT_GT(options.staging_budget_bytes, 0u);
  EXPECT_EQ(options.store_root, "/tmp/agent/store");
}

TEST(Options, WhatCannotWorkIsRefusedByName) {
  const auto refusal = [](auto change) {
    AgentOptions options = Good();
    change(&options);
    return CheckOptions(&options);
  };
  EXPECT_EQ(refusal([](auto* o) { o->name = "a/b"; }).code(), Code::kInvalidArgument);
  EXPECT_EQ(refusal([](auto* o) { o->coordinator = ""; }).code(), Code::kInvalidArgument);
  EXPECT_EQ(refusal([](auto* o) { o->coordinator = "nonsense"; }).code(), Code::kInvalidArgument);
  EXPECT_EQ(refusal([](auto* o) { o->slots = 0; }).code(), Code::kInvalidArgument);
  EXPECT_EQ(refusal([](auto* o) { o->state_dir = ""; }).code(), Code::kInvalidArgument);
  EXPECT_EQ(refusal([](auto* o) { o->ckpt_run = "/no/such"; }).code(), Code::kInvalidArgument);
  const Status address = refusal([](auto* o) { o->address = "10.0.0.1"; });
  EXPECT_EQ(address.code(), Code::kUnimplemented);
  EXPECT_NE(address.message().find("TLS"), std::string::npos);
  EXPECT_EQ(refusal([](auto* o) { o->coordinator = "0.0.0.0:80"; }).code(), Code::kUnimplemented);
}

v1::Launch SampleLaunch() {
  v1::Launch launch;
  launch.set_job("gpt");
  launch.set_epoch(7);
  launch.set_op_id(42);
  launch.set_nnodes(2);
  launch.set_rank_count(2);
  launch.set_first_rank(2);
  launch.set_token("secret");
  launch.mutable_spec()->add_command("train");
  launch.mutable_spec()->add_command("--lr=1");
  launch.mutable_spec()->set_workdir("/data");
  (*launch.mutable_spec()->mutable_env())["LR"] = "3";
  return launch;
}

std::string FlagOf(const os::SpawnOptions& spawn, const std::string& flag) {
  const auto end = std::find(spawn.argv.begin(), spawn.argv.end(), "--");
  const auto at = std::find(spawn.argv.begin(), end, flag);
  return at == end ? "(none)" : *(at + 1);
}

TEST(LaunchCommand, SaysAllThatCkptRunMustKnow) {
  v1::Launch launch = SampleLaunch();
  const LaunchPaths paths{"/run/agent.sock", "/logs/gpt"};
  setenv("CKPT_STORE", "/of/the/agent", 1);
  setenv("CKPT_SERVER", "unix:/ckptd.sock", 1);
  os::SpawnOptions spawn = LaunchCommand(launch, Good(), paths, 1000);
  EXPECT_EQ(spawn.argv.front(), "/bin/sh");
  EXPECT_EQ(FlagOf(spawn, "--job"), "gpt");
  EXPECT_EQ(FlagOf(spawn, "--ranks"), "2");
  EXPECT_EQ(FlagOf(spawn, "--nnodes"), "2");
  EXPECT_EQ(FlagOf(spawn, "--first-rank"), "2");
  EXPECT_EQ(FlagOf(spawn, "--epoch"), "7");
  EXPECT_EQ(FlagOf(spawn, "--operation"), "42");
  EXPECT_EQ(FlagOf(spawn, "--staging-budget"), "1000");
  EXPECT_EQ(FlagOf(spawn, "--log-dir"), "/logs/gpt");
  EXPECT_EQ(FlagOf(spawn, "--listen"), "127.0.0.1") << "it leads a gang of two nodes";
  EXPECT_EQ(FlagOf(spawn, "--rendezvous"), "(none)");
  EXPECT_EQ(FlagOf(spawn, "--job-id"), "(none)");
  EXPECT_EQ(FlagOf(spawn, "--expect"), "(none)");
  EXPECT_EQ(std::vector<std::string>(spawn.argv.end() - 3, spawn.argv.end()),
            (std::vector<std::string>{"--", "train", "--lr=1"}));
  EXPECT_EQ(spawn.grouping, os::Grouping::kNewSession);
  EXPECT_EQ(spawn.cwd, "/data");
  const auto has = [&](const std::string& entry) {
    return std::count(spawn.env->begin(), spawn.env->end(), entry) == 1;
  };
  EXPECT_TRUE(has("LR=3"));
  EXPECT_TRUE(has("CKPT_SERVER=unix:/ckptd.sock")) << "a job may ask the coordinator";
  EXPECT_FALSE(has("CKPT_STORE=/of/the/agent"));
  EXPECT_TRUE(has("CKPT_AGENT=/run/agent.sock"));
  EXPECT_TRUE(has("CKPT_GANG_TOKEN=secret"));
  EXPECT_TRUE(has(LaunchMark("gpt", 7, "/run/agent.sock")));
  for (const std::string& arg : spawn.argv) EXPECT_EQ(arg.find("secret"), std::string::npos);

  launch.set_node_rank(1);
  launch.set_leader_address("127.0.0.1:5");
  launch.set_expect("s120.e3.a2");
  launch.set_job_id(std::string(16, '\x0f'));
  spawn = LaunchCommand(launch, Good(), paths, 1000);
  EXPECT_EQ(FlagOf(spawn, "--rendezvous"), "127.0.0.1:5");
  EXPECT_EQ(FlagOf(spawn, "--listen"), "(none)");
  EXPECT_EQ(FlagOf(spawn, "--expect"), "s120.e3.a2");
  EXPECT_EQ(FlagOf(spawn, "--job-id"), "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f");
}

TEST(LaunchCommand, ImpossibleLaunchesAreRefused) {
  const auto refused = [](auto change) {
    v1::Launch launch = SampleLaunch();
    change(&launch);
    return CheckLaunch(launch, Good()).code() == Code::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](auto*) {}));
  EXPECT_TRUE(refused([](auto* l) { l->set_job("../x"); }));
  EXPECT_TRUE(refused([](auto* l) { l->set_epoch(0); }));
  EXPECT_TRUE(refused([](auto* l) { l->mutable_spec()->clear_command(); }));
  EXPECT_TRUE(refused([](auto* l) { l->set_rank_count(0); }));
  EXPECT_TRUE(refused([](auto* l) { l->set_rank_count(5); }));
  EXPECT_TRUE(refused([](auto* l) { l->set_nnodes(0); }));
  EXPECT_TRUE(refused([](auto* l) { l->set_node_rank(2); }));
  EXPECT_TRUE(refused([](auto* l) { l->set_node_rank(1); })) << "a member without a leader";
  EXPECT_TRUE(refused([](auto* l) { l->set_job_id("short"); }));
}

}  // namespace
}  // namespace ckpt::agent
