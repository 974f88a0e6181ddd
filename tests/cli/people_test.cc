// What is there for people: watching, waiting with progress, following a log, the reasons of a
// state, the doctor, completion.
#include "libckpt/os/file.h"
#include "tests/cli/transcript.h"

namespace ckpt::ckptd {
namespace {

class People : public Transcript {
 protected:
  void Run(const std::string& name, int ranks, const std::string& flags = "") {
    Type("submit --name " + name + " --ranks " + std::to_string(ranks) + " " + flags +
         " -- ./train");
    Until("jobs", name + " +running");
  }
  // Runs beside the test; its output goes to a file.
  pid_t Begin(const std::string& words, const std::string& file) {
    const std::string command = "exec " + Command(words) + " > " + file + " 2>&1 < /dev/null";
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return pid;
  }
  static int End(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  static std::string Read(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static ::testing::AssertionResult Comes(const std::string& file, const std::string& pattern) {
    const Deadline deadline("output", std::chrono::seconds(90));
    while (!std::regex_search(Read(file), std::regex(pattern))) {
      if (deadline.Expired()) {
        return ::testing::AssertionFailure() << pattern << " never came:\n" << Read(file);
      }
      ::usleep(20'000);
    }
    return ::testing::AssertionSuccess();
  }
};

TEST_F(People, ASuspendShowsBytesOnATerminalAndEndsWhenDurable) {
  AddNode("alpha");
  Run("train", 2);
  agents_["alpha"]->Hold();
  OnTerminal terminal(Command("suspend train --durable"));
  EXPECT_TRUE(terminal.Shows("QUIESCED: staged 32.0 MiB of 64.0 MiB \\(50 %\\)"));
  agents_["alpha"]->Release("train");
  EXPECT_TRUE(terminal.Shows("suspend of train: written 16.0 MiB of 32.0 MiB \\(50 %\\)"));
  agents_["alpha"]->MakeDurable();
  EXPECT_TRUE(terminal.Shows("step 100 of train is durable"));
  EXPECT_NE(Type("job train").find("train: suspended: resumes from step 100 (durable)\n"),
            std::string::npos);
  EXPECT_EQ(terminal.Wait(), 0) << terminal.text();
}

TEST_F(People, CtrlCLeavesTheOperationAndSaysHowToFindIt) {
  AddNode("alpha");
  Run("train", 2);
  agents_["alpha"]->Hold();
  OnTerminal terminal(Command("suspend train --wait"));
  EXPECT_TRUE(terminal.Shows("suspend of train: QUIESCED"));
  terminal.Type("\x03");
  EXPECT_EQ(terminal.Wait(), 130);
  const std::regex message(
      "no longer waiting; the suspend of train goes on \\(operation ([0-9]+)\\):\\s+look: `ckptctl "
      "operation \\1`, with --wait to wait again\\s+take back: `ckptctl withdraw "
      "\\1`, or `ckptctl resume train` once it is suspended");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(terminal.text(), found, message)) << terminal.text();
  const std::string shown = Type("operation " + found[1].str());
  EXPECT_NE(shown.find("suspend of train (operation N): running, QUIESCED"), std::string::npos)
      << shown;
  agents_["alpha"]->Release("train");
  const std::string waited = Type("operation " + found[1].str() + " --wait");
  EXPECT_NE(waited.find("done, RELEASED: resumes from step 100"), std::string::npos) << waited;
}

TEST_F(People, AFailedDrainEndsTheWaitForDurable) {
  AddNode("alpha");
  Run("train", 2);
  const pid_t pid = Begin("suspend train --durable", dir_ + "/out");
  ASSERT_TRUE(Comes(dir_ + "/out", "RELEASED|^$"));
  Until("jobs", "train +suspended");
  agents_["alpha"]->SetCopies([](v1::CopyState* copy) { copy->set_failure("the disk is full"); });
  EXPECT_EQ(End(pid), 1);
  EXPECT_TRUE(Comes(dir_ + "/out",
                    "ckptctl: step 100 of train is in RAM only and will not become durable: the "
                    "disk is full"));
}

TEST_F(People, WatchPrintsABlockForEachChangeAndEndsWithTheJob) {
  AddNode("alpha");
  Run("train", 2);
  const pid_t pid = Begin("job train --watch", dir_ + "/out");
  ASSERT_TRUE(Comes(dir_ + "/out", "-- [0-9:.]+\ntrain: running\n"));
  Type("suspend train --wait");
  EXPECT_TRUE(Comes(dir_ + "/out", "\n-- [0-9:.]+\ntrain: suspended: resumes from step 100"));
  // A restart of the coordinator is no end.
  server_.reset();
  StartServer();
  AddNode("alpha");
  Type("cancel train --wait");
  EXPECT_EQ(End(pid), 1);
  EXPECT_TRUE(Comes(dir_ + "/out", "\ntrain: cancelled"));
  EXPECT_TRUE(Comes(dir_ + "/out", "ckptctl: train cancelled"));
}

TEST_F(People, WatchDrawsInPlaceOnATerminalAndAsLinesOfJson) {
  AddNode("alpha");
  OnTerminal terminal(Command("jobs --watch"));
  EXPECT_TRUE(terminal.Shows("NAME.*STATE"));
  EXPECT_TRUE(terminal.Shows("Ctrl-C ends this and nothing else"));
  const pid_t pid = Begin("nodes --watch -o json", dir_ + "/out");
  ASSERT_TRUE(Comes(dir_ + "/out", "\\{\"nodes\":\\[\\{.*\"slots_free\":2.*\\}\n"));
  Run("train", 2);
  EXPECT_TRUE(terminal.Shows("\x1b\\[[0-9]+A\r.*NAME[^\x1b]*\x1b\\[K\r?\n\rtrain +running"));
  EXPECT_TRUE(Comes(dir_ + "/out", "\"slots_free\":0.*\n"));
  terminal.Type("\x03");
  EXPECT_EQ(terminal.Wait(), 128 + SIGINT);
  ::kill(pid, SIGTERM);
  End(pid);
}

TEST_F(People, LogsAreFollowedOverRestartsUntilTheJobEnds) {
  AddNode("alpha");
  Run("train", 2);
  const pid_t pid = Begin("logs train -f", dir_ + "/out");
  ASSERT_TRUE(Comes(dir_ + "/out", "^step 1\nstep 2\n$"));
  agents_["alpha"]->Write("step 3\n");
  EXPECT_TRUE(Comes(dir_ + "/out", "^step 1\nstep 2\nstep 3\n$"));
  Type("suspend train --wait");
  EXPECT_TRUE(Comes(dir_ + "/out", "-- train: is suspended, waiting: resumes from step 100"));
  Type("resume train --wait");
  EXPECT_TRUE(Comes(dir_ + "/out", "-- train: epoch 2 on alpha \\(ranks 0-1\\)\n"));
  agents_["alpha"]->Write("step 101\n");
  EXPECT_TRUE(Comes(dir_ + "/out", "\nstep 101\n"));
  agents_["alpha"]->Write("the last word\n");
  agents_["alpha"]->Finish("train");
  EXPECT_EQ(End(pid), 0);
  EXPECT_TRUE(Comes(dir_ + "/out", "the last word\n$"));
}

TEST_F(People, WhyTellsWhatBlocksAndWhatToType) {
  AddNode("alpha");
  Run("train", 2, "--priority 10");
  Type("submit --name urgent --ranks 2 --priority 100 --class realtime -- ./go");
  std::string why = Type("why urgent");
  EXPECT_EQ(std::regex_replace(why, std::regex("TIME UTC"), "TIME"),
            "urgent waits for capacity, submitted at TIME. It starts by itself as soon as there is "
            "room. What is in the way: needs 2 slots, 0 of 2 free; `ckptctl quote urgent` shows "
            "what it would cost to make room.\n"
            "what is known:\n"
            "  - it needs 2 slots; 0 of 2 are free\n"
            "  - train has 2 slots: running, training, priority 10\n"
            "  - room could be made by stopping train: 613 GPU-seconds, in about 0.4 s\n"
            "what to type:\n"
            "  - `ckptctl apply p1-1`: stops train and starts it\n"
            "  - `ckptctl cancel urgent`: ends it for good\n");
  Type("apply p1-1 --wait");
  why = Type("why train");
  EXPECT_NE(why.find("train was stopped to make room at TIME UTC. It starts by itself as soon as "
                     "there is room."),
            std::string::npos)
      << why;
  EXPECT_NE(why.find("its newest copy is of step 100: in RAM of alpha, not durable"),
            std::string::npos)
      << why;
  agents_["alpha"]->Fail("urgent", "rank 1 killed by signal 9 (SIGKILL)");
  Until("jobs", "urgent +running");
  why = Type("why urgent");
  EXPECT_NE(why.find("It was restarted after crashes 1 time."), std::string::npos) << why;
  EXPECT_NE(why.find("failed (epoch 1): "), std::string::npos) << why;
  EXPECT_NE(why.find("SIGKILL"), std::string::npos) << why;
  agents_["alpha"]->Close();
  Until("jobs", "urgent +unknown");
  why = Type("why urgent");
  EXPECT_NE(why.find("node alpha is out of reach"), std::string::npos) << why;
  EXPECT_NE(Type("why urgent -o json").find("\"summary\": \"urgent is unknown as epoch 2"),
            std::string::npos);
}

TEST_F(People, TheDoctorNamesWhatIsWrongAndTheWayOut) {
  AddNode("alpha");
  v1::AgentMsg health;
  health.mutable_health()->set_version("0.0.9");
  health.mutable_health()->set_wall_ns(WallNs());
  v1::Finding* finding = health.mutable_health()->add_findings();
  finding->set_name("store root");
  finding->set_level(v1::FINDING_FAIL);
  finding->set_message("/data cannot be written: Read-only file system (EROFS)");
  finding->set_remedy("make it writable for this user, or name another folder");
  agents_["alpha"]->Send(health);
  Until("doctor", "store root");
  std::string text = Type("doctor --store " + dir_);
  EXPECT_NE(text.find("OK    coordinator "), std::string::npos) << text;
  EXPECT_NE(text.find("WARN  node alpha: version"), std::string::npos) << text;
  EXPECT_NE(text.find("FAIL  node alpha: store root"), std::string::npos) << text;
  EXPECT_NE(text.find("-> make it writable for this user"), std::string::npos) << text;
  EXPECT_NE(text.find("OK    kernel: memfd"), std::string::npos) << text;
  EXPECT_NE(text.find("OK    store "), std::string::npos) << text;
  EXPECT_NE(text.find("kernel: io_uring"), std::string::npos) << text;
  EXPECT_NE(text.find("store: direct I/O"), std::string::npos) << text;
  EXPECT_EQ(code_, 1);
  agents_["alpha"]->Close();
  Until("nodes", "alpha +lost");
  text = Type("doctor");
  EXPECT_NE(text.find("FAIL  node alpha "), std::string::npos) << text;
  EXPECT_NE(text.find("-> start ckpt-agent on that machine"), std::string::npos) << text;

  const std::string none = "unix:" + dir_ + "/none";
  text = Type("doctor --store /proc/none", none);
  EXPECT_NE(text.find("FAIL  coordinator "), std::string::npos) << text;
  EXPECT_NE(text.find("FAIL  store "), std::string::npos) << text;
  EXPECT_EQ(code_, 1);
  EXPECT_NE(Type("doctor -o json", none).find("\"level\": \"fail\""), std::string::npos);
  const std::string unnamed = "env -u CKPT_SERVER XDG_RUNTIME_DIR=" + dir_ + " " + CKPTCTL;
  if (::access("/run/ckpt/ckptd.sock", F_OK) == 0) return;
  EXPECT_EQ(::system((unnamed + " doctor > /dev/null").c_str()), 0) << "alone it is only a warning";
}

// A shell draws a line in ways of its own; what it holds is written to a file on Ctrl-X.
class Completion : public People {
 protected:
  void Completes(OnTerminal& shell, const std::string& typed, const std::string& line) {
    shell.Type(typed + "\t\x18");
    EXPECT_TRUE(Comes(dir_ + "/line", "^" + line)) << typed << " in:\n" << shell.text();
    shell.Type("\x15");  // forgets the line
  }
  void Try(OnTerminal& shell, const std::string& script) {
    AddNode("alpha");
    Run("train-of-thought", 1);
    shell.Type("PS1='> '; PATH=" + os::ParentOf(CKPTCTL) +
               ":$PATH; CKPT_SERVER=" + server_->address() + "; export CKPT_SERVER\n");
    shell.Type("source " + script + "; echo rea''dy\n");
    ASSERT_TRUE(shell.Shows("ready")) << shell.text();
    Completes(shell, "ckptctl susp", "ckptctl suspend ");
    Completes(shell, "ckptctl suspend tr", "ckptctl suspend train-of-thought");
    Completes(shell, "ckptctl -o json why trai", "ckptctl -o json why train-of-thought");
    Completes(shell, "ckptctl checkpoint --dead", "ckptctl checkpoint --deadline");
    Completes(shell, "ckptctl migrate x --from al", "ckptctl migrate x --from alpha");
    Completes(shell, "ckptctl jobs -o js", "ckptctl jobs -o json");
    Completes(shell, "ckptctl verify " + dir_ + "/scri", "ckptctl verify " + dir_ + "/script");
    shell.Type("exit\n");
    EXPECT_EQ(shell.Wait(), 0);
  }
  std::string Script(const std::string& shell) {
    Type("completion " + shell + " > " + dir_ + "/script");
    return dir_ + "/script";
  }
};

TEST_F(Completion, InBash) {
  const std::string script = Script("bash");
  OnTerminal shell("env TERM=dumb bash --norc --noprofile -i");
  shell.Type("show() { printf %s \"$READLINE_LINE\" > " + dir_ + "/line; }\n");
  shell.Type("bind -x '\"\\C-x\": show'\n");
  Try(shell, script);
}

TEST_F(Completion, InZsh) {
  if (::system("command -v zsh > /dev/null") != 0) GTEST_SKIP() << "no zsh here";
  const std::string script = Script("zsh");
  OnTerminal shell("env TERM=dumb zsh -f -i");
  shell.Type("autoload -Uz compinit && compinit -D -u\n");
  shell.Type("show() { print -rn -- \"$BUFFER\" > " + dir_ + "/line }; zle -N show\n");
  shell.Type("bindkey -e; bindkey '^X' show\n");
  Try(shell, script);
}

}  // namespace
}  // namespace ckpt::ckptd
