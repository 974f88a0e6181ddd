// What one asks for while something else is under way, word for word; and taking it back.
#include "tests/cli/transcript.h"

namespace ckpt::ckptd {
namespace {

class Operations : public Transcript {
 protected:
  void Run(const std::string& name, const std::string& flags = "--ranks 2") {
    Type("submit --name " + name + " " + flags + " -- ./train");
    Until("jobs", name + " +running");
  }
  // As ckptd numbers it.
  std::string NumberOf(const std::string& job) {
    const std::string text = Type("job " + job + " -o json");
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex("\"op_id\": ([1-9][0-9]*)"))) << text;
    return found[1].str();
  }
  void Says(const std::string& words, int code, const std::string& part) {
    const std::string said = Type(words);
    EXPECT_EQ(code_, code) << words << ": " << said;
    EXPECT_NE(said.find(part), std::string::npos) << words << ": " << said << " lacks " << part;
  }
};

TEST_F(Operations, DuringASuspend) {
  AddNode("alpha");
  Run("train");
  agents_["alpha"]->Hold();
  Says("suspend train", 0, "suspend of train (operation N): running, NOTIFIED");
  Until("job train", "train: suspending");
  Until("operation " + NumberOf("train"), "running, QUIESCED");
  Says("suspend train", 0, "suspend of train (operation N): running, QUIESCED");
  const std::string number = NumberOf("train");
  const std::string busy =
      "train: suspend (operation N) is in progress; wait for it, take it "
      "back with `ckptctl withdraw " +
      number + "`, or `ckptctl cancel train`\nexit 1\n";
  EXPECT_EQ(Type("resume train"), "ckptctl: cannot resume " + busy);
  EXPECT_EQ(Type("checkpoint train"), "ckptctl: cannot checkpoint " + busy);
  EXPECT_EQ(Type("migrate train --from alpha --to beta"), "ckptctl: cannot migrate " + busy);
  Says("cancel train --wait", 0,
       "cancel of train (operation N): done, RELEASED: train is cancelled");
  EXPECT_EQ(Type("operation " + number),
            "ckptctl: suspend of train failed: train is being cancelled\nexit 1\n");
  EXPECT_EQ(Type("withdraw " + number),
            "ckptctl: suspend of train has ended already: train is being cancelled\nexit 1\n");
  EXPECT_EQ(Type("suspend train"),
            "ckptctl: job train is cancelled; only one that runs or waits can be suspended\nexit "
            "1\n");
}

TEST_F(Operations, DuringAResume) {
  AddNode("alpha");
  Run("train");
  Type("suspend train --wait");
  Says("suspend train", 0, "done, DONE: already suspended; resumes from step 100");
  agents_["alpha"]->HoldStart();
  Says("resume train", 0, "resume of train (operation N): running, GRANTED");
  Until("job train", "train: starting");
  Says("resume train", 0, "resume of train (operation N): running, GRANTED");
  const std::string busy =
      "train: resume (operation N) is in progress; wait for it, or `ckptctl cancel train`\nexit "
      "1\n";
  EXPECT_EQ(Type("suspend train"), "ckptctl: cannot suspend " + busy);
  EXPECT_EQ(Type("checkpoint train"), "ckptctl: cannot checkpoint " + busy);
  EXPECT_EQ(Type("withdraw " + NumberOf("train")),
            "ckptctl: resume of train is GRANTED and cannot be withdrawn; `ckptctl cancel train` "
            "ends the job\nexit 1\n");
  agents_["alpha"]->ReleaseStart("train");
  Until("jobs", "train +running");
  EXPECT_EQ(Type("resume train"),
            "ckptctl: job train is running already: there is nothing to resume\nexit 1\n");
  Says("job train", 0, "epoch 2, step 100, resumed from ram s100.e1.a1");
  Type("suspend train --wait");
  agents_["alpha"]->HoldStart();
  Type("resume train");
  Says("cancel train --wait", 0,
       "cancel of train (operation N): done, RELEASED: train is cancelled");
  EXPECT_EQ(Type("resume train"),
            "ckptctl: job train is cancelled and cannot be resumed\nexit 1\n");
}

TEST_F(Operations, ASuspendIsTakenBackInTimeAndTooLate) {
  AddNode("alpha");
  Run("train");
  agents_["alpha"]->Hold();
  Type("suspend train");
  const std::string number = NumberOf("train");
  Until("operation " + number, "running, QUIESCED");
  Says("withdraw " + number, 0, "suspend of train (operation N): failed, ABORTED: withdrawn");
  Until("jobs", "train +running");
  Says("job train", 0, "train: running: runs on: withdrawn by operator\n  epoch 1,");
  Says("withdraw " + number, 0, "failed, ABORTED: withdrawn");  // twice is once
  EXPECT_EQ(Type("operation " + number).find("ckptctl: suspend of train failed: withdrawn"), 0u);
  Says("withdraw " + number + " -o json", 0, "\"state\": \"failed\"");
  agents_["alpha"]->Release("none");
  Type("suspend train --wait");
  const std::string done = Type("events --job train -o json");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      done, found, std::regex("\"op_id\":([0-9]+),\"kind\":\"done\",\"message\":\"suspend")))
      << done;
  Says("withdraw " + found[1].str(), 1,
       "ckptctl: suspend of train has ended already: resumes from");
  EXPECT_EQ(Type("withdraw 12"), "ckptctl: no operation 12 is on record\nexit 1\n");
  EXPECT_EQ(Type("withdraw all").substr(0, 62),
            "ckptctl: \"all\" is no number of an operation; the commands that");
  EXPECT_EQ(code_, 2);
}

TEST_F(Operations, AQuoteKnowsTheDeadlineAndWhatStopsHaveTaken) {
  AddNode("alpha");
  Run("train", "--ranks 2 --priority 1 --state-bytes-per-rank 100MiB");
  Type("submit --name urgent --ranks 1 --priority 9 --class realtime -- ./go");
  const std::string hurried = Type("quote urgent --deadline 10ms");
  EXPECT_NE(hurried.find("assumed"), std::string::npos) << hurried;
  EXPECT_NE(hurried.find("  careful: job train needs about 0.0 s to stop and stage, more than its "
                         "deadline of 10.0 ms: it may be killed then, and no copy of it is known"),
            std::string::npos)
      << hurried;
  EXPECT_EQ(Type("quote urgent").find("careful"), std::string::npos);
  EXPECT_EQ(Type("quote urgent --deadline never"),
            "ckptctl: \"never\" is no duration, like 30s\nexit 2\n");
  Type("suspend train --wait");
  Until("jobs", "urgent +running");
  Type("cancel urgent --wait");
  Type("resume train --wait");
  Says("job train", 0, "  measured: stages 13.42 GB/s a node, exits in 0.01 s");
  Type("submit --name again --ranks 1 --priority 9 --class realtime -- ./go");
  const std::string quote = Type("quote again");
  EXPECT_TRUE(std::regex_search(
      quote, std::regex("VICTIM +SLOTS +PRICE +LOST +STAGE +EXIT +RESTORE +REQUEUE +PREEMPTED +"
                        "NODES +TIMES\n +train +2 .* 0\\.01 s .* alpha +measured\n")))
      << quote;
}

}  // namespace
}  // namespace ckpt::ckptd
