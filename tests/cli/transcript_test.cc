// The main verbs, word for word.
#include "tests/cli/transcript.h"

namespace ckpt::ckptd {
namespace {

TEST_F(Transcript, APreemptionFromSubmitToGrant) {
  AddNode("alpha");
  AddNode("beta");
  EXPECT_EQ(Type("nodes"),
            "NAME   STATE  SLOTS  FREE  STAGING    USED  MEMCPY    JOBS  HELD\n"
            "alpha  up     2      2     512.0 MiB  0 B   8.0 GB/s  -     -\n"
            "beta   up     2      2     512.0 MiB  0 B   8.0 GB/s  -     -\n");
  std::ofstream(dir_ + "/train.yaml") << "name: train\nranks: 4\npriority: 10\nclass: training\n"
                                         "command: [./train, --steps, 1000]\n";
  EXPECT_EQ(Type("submit " + dir_ + "/train.yaml"),
            "submitted train: starting on alpha (ranks 0-1), beta (ranks 2-3)\n");
  Until("jobs", "train  running");
  EXPECT_EQ(Type("submit --name urgent --ranks 2 --priority 100 --class realtime -- ./go -o json"),
            "submitted urgent: pending: needs 2 slots, 0 of 4 free; `ckptctl quote urgent` shows "
            "what it would cost to make room\n");
  const std::string quote = Type("quote urgent");
  EXPECT_EQ(
      quote,
      "plan p1-1: urgent on alpha (ranks 0-1)\n"
      "  VICTIM  SLOTS  PRICE  LOST    STAGE   EXIT    RESTORE  REQUEUE  PREEMPTED  NODES       "
      "TIMES\n"
      "  train   4      626.1  0.00 s  0.27 s  0.00 s  1.27 s   5.00 s   0 x        alpha,beta  "
      "assumed\n"
      "  price 626.1 GPU-seconds; granted in about 0.4 s\n"
      "  `ckptctl apply p1-1` carries it out; nothing has been changed\n");
  EXPECT_EQ(Type("jobs -o json").find("\"preempted\""), std::string::npos);
  const std::string apply = Type("apply p1-1 --wait");
  EXPECT_EQ(code_, 0) << apply;
  EXPECT_NE(apply.find("train RELEASED: cut 2.0 ms, staged 7.0 ms, released 19.0 ms after the "
                       "notice; 64.0 MiB staged"),
            std::string::npos)
      << apply;
  EXPECT_NE(apply.find("granted T ms after the request"), std::string::npos) << apply;
  const std::string job = Type("job train");
  EXPECT_NE(job.find("train: preempted"), std::string::npos) << job;
  EXPECT_NE(job.find("    step 100 (epoch 1, attempt 1), 64.0 MiB: in RAM of alpha beta, not "
                     "durable yet (32.0 MiB of 64.0 MiB written)\n"),
            std::string::npos)
      << job;
  for (auto& [name, agent] : agents_) agent->MakeDurable();
  Until("job train", "MiB: durable, and in RAM of alpha beta");
  agents_["alpha"]->Finish("urgent");
  Until("jobs", "train +running +4 +10 +training +2");
  EXPECT_EQ(Type("logs train"), "step 1\nstep 2\n");
  EXPECT_EQ(Type("logs train --rank 1"), "ckptctl: rank 1 has written nothing\nexit 1\n");
  const std::string events = Type("events --job urgent");
  EXPECT_NE(events.find("  TIME  granted         urgent  2 slots\n"), std::string::npos) << events;
}

TEST_F(Transcript, SuspendMigrateResumeCancel) {
  AddNode("alpha");
  AddNode("beta");
  Type("submit --name train --ranks 2 -- ./train");
  Until("jobs", "train  running");
  const std::string suspended = Type("suspend train --wait");
  EXPECT_NE(
      suspended.find("done, RELEASED: resumes from step 100, in RAM of alpha only, not durable"),
      std::string::npos)
      << suspended;
  EXPECT_NE(Type("suspend train").find("done, DONE: already suspended"), std::string::npos);
  Until("jobs", "train  suspended");
  EXPECT_EQ(Type("migrate train --from alpha --to beta"),
            "ckptctl: job train is suspended; only one that runs can be migrated\nexit 1\n");
  EXPECT_NE(Type("resume train --wait").find("runs as epoch 2"), std::string::npos);
  EXPECT_EQ(Type("resume train"),
            "ckptctl: job train is running already: there is nothing to resume\nexit 1\n");
  const std::string moved = Type("migrate train --from alpha --to beta --wait");
  EXPECT_NE(moved.find("alpha -> beta; fetched 32.0 MiB of 32.0 MiB to beta"), std::string::npos)
      << moved;
  EXPECT_EQ(code_, 0);
  EXPECT_NE(Type("job train").find("place: beta (ranks 0-1)"), std::string::npos);
  const std::string cancelled = Type("cancel train --wait");
  EXPECT_NE(cancelled.find("done, RELEASED: train is cancelled"), std::string::npos) << cancelled;
}

TEST_F(Transcript, RefusalsSayWhatWouldWork) {
  EXPECT_EQ(Type("submit --name x --ranks 1 -- true"),
            "ckptctl: no agent has connected to this coordinator yet: start `ckpt-agent` on each "
            "node, see `ckptctl nodes`\nexit 1\n");
  AddNode("alpha");
  EXPECT_EQ(Type("submit --name x --ranks 9 -- true"),
            "ckptctl: job x needs 9 slots; the whole cluster has 2 on 1 node\nexit 1\n");
  EXPECT_EQ(Type("submit --name x --ranks 1 --state-bytes-per-rank 1GiB -- true"),
            "ckptctl: job x declares 1.00 GiB of state a rank; within the staging budgets (alpha 2 "
            "slots 512.0 MiB) only 0 of its 1 ranks could be staged: raise --staging-budget of the "
            "agents\nexit 1\n");
  EXPECT_EQ(Type("job nobody"),
            "ckptctl: no job is named nobody; `ckptctl jobs` lists them\nexit 1\n");
  EXPECT_EQ(Type("apply p9-9"),
            "ckptctl: no plan p9-9 is known (plans do not outlive the coordinator): quote "
            "again\nexit 1\n");
  Type("submit --name taken --ranks 1 -- true");
  Until("jobs", "taken  running");
  EXPECT_EQ(Type("submit --name taken --ranks 1 -- true"),
            "ckptctl: the name taken is in use by a job that is running: choose another name "
            "(`ckptctl job taken` shows it)\nexit 1\n");
  EXPECT_EQ(Type("quote taken"),
            "ckptctl: job taken is running and waits for no capacity: there is nothing to "
            "quote\nexit 1\n");
  EXPECT_EQ(Type("migrate taken --from alpha --to nowhere"),
            "ckptctl: no agent of a node nowhere is connected; `ckptctl nodes` lists them\nexit "
            "1\n");
}

TEST_F(Transcript, JsonHasEveryFieldUnderItsName) {
  AddNode("alpha");
  const std::string nodes = Type("nodes -o json");
  EXPECT_NE(nodes.find("\"staging_budget_bytes\": 536870912"), std::string::npos) << nodes;
  EXPECT_NE(nodes.find("\"connected\": true"), std::string::npos);
  EXPECT_EQ(Type("jobs -o json"), "{\n  \"jobs\": []\n}\n");
  EXPECT_NE(Type("-o json submit --name j --ranks 1 --env A=b -- true").find("\"A\": \"b\""),
            std::string::npos);
  EXPECT_NE(Type("events -o json").find("{\"events\": [\n  {\"revision\":1,"), std::string::npos);
}

}  // namespace
}  // namespace ckpt::ckptd
