// What each verb says when it cannot: every error names the thing and the way out, and its exit
// code is the documented one.
#include "tests/cli/transcript.h"

namespace ckpt::ckptd {
namespace {

class Errors : public Transcript {
 protected:
  // The job file as `text`, submitted.
  std::string File(const std::string& text) {
    std::ofstream(dir_ + "/job.yaml", std::ios::binary) << text;
    return Type("submit " + dir_ + "/job.yaml");
  }
  static std::string Two(const std::string& message) {
    return "ckptctl: " + message + "\nexit 2\n";
  }
};

TEST_F(Errors, AnUnknownJobIsNamedByEveryVerb) {
  const std::string unknown =
      "ckptctl: no job is named nobody; `ckptctl jobs` lists them\nexit 1\n";
  for (const std::string words :
       {"job nobody", "job nobody --watch", "why nobody", "logs nobody", "logs nobody -f",
        "quote nobody", "suspend nobody", "suspend nobody --durable", "resume nobody",
        "checkpoint nobody", "cancel nobody", "migrate nobody --from a --to b"}) {
    EXPECT_EQ(Type(words), unknown) << words;
  }
  EXPECT_EQ(Type("operation 42"),
            "ckptctl: no operation 42 is on record (they are kept for 7 days)\nexit 1\n");
  EXPECT_EQ(Type("apply p9-9"),
            "ckptctl: no plan p9-9 is known (plans do not outlive the coordinator): quote "
            "again\nexit 1\n");
}

TEST_F(Errors, WithoutACoordinatorEveryVerbExitsWith3) {
  const std::string none = "unix:" + dir_ + "/none";
  const std::string message =
      "ckptctl: no coordinator answers at unix:DIR/none: start `ckptd --listen unix:DIR/none`, or "
      "name another with --server or CKPT_SERVER\nexit 3\n";
  for (const std::string words :
       {"jobs", "jobs --watch", "job x", "nodes", "events", "why x", "logs x", "logs x -f",
        "quote x", "apply p1", "suspend x --wait", "resume x", "checkpoint x", "cancel x",
        "migrate x --from a --to b", "operation 1", "submit --name x --ranks 1 -- true"}) {
    EXPECT_EQ(Type(words, none), message) << words;
  }
}

TEST_F(Errors, WrongStatesSayWhichStateWouldDo) {
  AddNode("alpha");
  Type("submit --name train --ranks 1 -- true");
  Until("jobs", "train  running");
  EXPECT_EQ(Type("resume train"),
            "ckptctl: job train is running already: there is nothing to resume\nexit 1\n");
  EXPECT_EQ(Type("quote train"),
            "ckptctl: job train is running and waits for no capacity: there is nothing to "
            "quote\nexit 1\n");
  EXPECT_EQ(Type("suspend train --epoch 7"),
            "ckptctl: job train is at epoch 1, not 7: it has been launched since\nexit 1\n");
  EXPECT_EQ(Type("migrate train --from beta --to alpha"),
            "ckptctl: job train has no rank on node beta; `ckptctl job train` shows where it "
            "runs\nexit 1\n");
  EXPECT_EQ(Type("logs train --rank 9"), "ckptctl: job train has no rank 9\nexit 1\n");
  EXPECT_EQ(Type("logs train -f --rank 9"), "ckptctl: job train has no rank 9\nexit 1\n");
  Type("suspend train --wait");
  EXPECT_EQ(Type("checkpoint train"),
            "ckptctl: job train is suspended; only one that runs can be asked for a "
            "checkpoint\nexit 1\n");
  EXPECT_EQ(Type("resume train --nodes nowhere"),
            "ckptctl: node nowhere is not connected; `ckptctl nodes` lists them\nexit 1\n");
  Type("cancel train --wait");
  EXPECT_EQ(Type("resume train"),
            "ckptctl: job train is cancelled and cannot be resumed\nexit 1\n");
  EXPECT_EQ(Type("suspend train"),
            "ckptctl: job train is cancelled; only one that runs or waits can be suspended\nexit "
            "1\n");
}

TEST_F(Errors, FlagsAndVerbsThatAreWrongExitWith2) {
  EXPECT_EQ(Type("no-such-verb"),
            "ckptctl: there is no command \"no-such-verb\"; `ckptctl --help` lists them\nexit 2\n");
  EXPECT_EQ(Type("suspend x --deadline soon"), Two("\"soon\" is no duration, like 30s"));
  EXPECT_EQ(Type("suspend x --deadline -5s"), Two("\"-5s\" is no duration, like 30s"));
  EXPECT_EQ(Type("operation last"),
            Two("\"last\" is no number of an operation; the commands that begin one print it, "
                "`ckptctl job NAME` the one in progress"));
  EXPECT_EQ(Type("submit --name x --ranks many -- true"),
            Two("--ranks: \"many\" is no whole number"));
  EXPECT_EQ(Type("submit --name x --ranks 0 -- true"),
            Two("--ranks: 0 is out of range: 1 to 65536"));
  EXPECT_EQ(Type("submit --name x --ranks=-1 -- true"),
            Two("--ranks: -1 is out of range: 1 to 65536"));
  EXPECT_EQ(Type("submit --name x --ranks 1000000000 -- true"),
            Two("--ranks: 1000000000 is out of range: 1 to 65536"));
  EXPECT_EQ(Type("submit --name x --ranks 1 --class urgent -- true"),
            Two("--class: \"urgent\" is no class; known are realtime, evaluation, training, "
                "batch"));
  EXPECT_EQ(Type("submit --name x --ranks 1 --env A -- true"), Two("--env A: expected NAME=VALUE"));
  EXPECT_EQ(Type("submit --name x --ranks 1 --state-bytes-per-rank lots -- true"),
            Two("\"lots\" is no size, like 64MiB"));
  EXPECT_EQ(Type("submit --name x -- true"),
            Two("submit: the job has no ranks: `ranks:` in the file, or --ranks"));
  EXPECT_EQ(Type("submit --name x --ranks 1"),
            Two("submit: the job has no command: `command:` in the file, or -- WORDS"));
  for (const std::string words :
       {"", "job", "jobs -o xml", "jobs extra", "suspend", "migrate x", "migrate x --from a",
        "completion fish", "completion", "operation", "logs x --rank first", "events --since then",
        "suspend x --no-such-flag", "resume x --wait=maybe", "ls", "inspect", "verify"}) {
    Type(words);
    EXPECT_EQ(code_, 2) << words;
  }
}

TEST_F(Errors, AJobFileIsRefusedWithItsLine) {
  EXPECT_EQ(File("name: y\nranks: 1\ncommand: [a]\ncolour: red\n"),
            Two("DIR/job.yaml:4: unknown key \"colour\"; known are class, command, env, "
                "max_price, min_runtime, name, preemptible, priority, ranks, restarts_max, "
                "save_every, state_bytes_per_rank, store, workdir"));
  const std::string begin = "name: y\n";
  const struct {
    const char* text;
    const char* message;
  } kBad[] = {
      {"ranks: few\n", "2: ranks: \"few\" is no whole number"},
      {"ranks: 0\n", "2: ranks: 0 is out of range: 1 to 65536"},
      {"ranks: -1\n", "2: ranks: -1 is out of range: 1 to 65536"},
      {"ranks: 1e9\n", "2: ranks: \"1e9\" is no whole number"},
      {"ranks: 1000000000\n", "2: ranks: 1000000000 is out of range: 1 to 65536"},
      {"ranks: 99999999999999999999999\n",
       "2: ranks: 99999999999999999999999 is out of range: 1 to 65536"},
      {"ranks: [1]\n", "2: ranks: expected one value"},
      {"ranks:\n", "2: ranks: has no value"},
      {"priority: 3000000000\n",
       "2: priority: 3000000000 is out of range: -2147483648 to 2147483647"},
      {"class: urgent\n",
       "2: class: \"urgent\" is no class; known are realtime, evaluation, training, batch"},
      {"preemptible: perhaps\n", "2: preemptible: \"perhaps\" is neither true nor false"},
      {"max_price: .nan\n", "2: max_price: \".nan\" is no number of GPU-seconds"},
      {"max_price: -1\n", "2: max_price: \"-1\" is no number of GPU-seconds"},
      {"state_bytes_per_rank: -1\n", "2: state_bytes_per_rank: \"-1\" is no size, like 64MiB"},
      {"min_runtime: inf\n", "2: min_runtime: \"inf\" is no duration, like 30s"},
      {"save_every: -1\n", "2: save_every: -1 is out of range: 0 to 4294967295"},
      {"command: []\n", "2: command: has no words"},
      {"command:\n", "2: command: has no value"},
      {"command: [a, [b]]\n", "2: command: word 2: expected one value"},
      {"command: [a, ~]\n", "2: command: word 2: has no value"},
      {"command: {a: b}\n", "2: command: expected one value"},
      {"command: [\"a\\0b\"]\n", "2: command: word 1: holds a NUL byte"},
      {"env: [A]\n", "2: env: expected NAME: value pairs"},
      {"env: {\"A=B\": c}\n", "2: env: \"A=B\" is no name of a variable"},
      {"env: {A: [c]}\n", "2: env: A: expected one value"},
      {"name: z\n", "2: name is given a second time"},
      {"---\nname: z\n", "2: a second document begins: one job a file"},
      {"[a, b]: c\n", "2: a key: expected one value"},
      {"<<: {ranks: 1}\n",
       "2: unknown key \"<<\"; known are class, command, env, max_price, min_runtime, name, "
       "preemptible, priority, ranks, restarts_max, save_every, state_bytes_per_rank, store, "
       "workdir"},
  };
  for (const auto& bad : kBad) {
    EXPECT_EQ(File(begin + bad.text), Two(std::string("DIR/job.yaml:") + bad.message)) << bad.text;
  }
  EXPECT_EQ(File("name: ../etc\n").substr(0, 31), "ckptctl: DIR/job.yaml:1: name: ");
  EXPECT_EQ(code_, 2);
  EXPECT_EQ(File("- a\n"), Two("DIR/job.yaml:1: expected `key: value` lines"));
  EXPECT_EQ(File(""), Two("DIR/job.yaml:1: the file is empty"));
  EXPECT_EQ(File("ranks: 1\ncommand: [a]\n"),
            Two("DIR/job.yaml: the job has no name: `name:` in the file, or --name"));
  EXPECT_EQ(File("name: y\nranks: 1\n"),
            Two("DIR/job.yaml: the job has no command: `command:` in the file, or -- WORDS"));
  const std::string broken = File("name: y\ncommand: [\n");
  EXPECT_NE(broken.find("DIR/job.yaml:"), std::string::npos) << broken;
  EXPECT_EQ(code_, 2);
}

TEST_F(Errors, AFileThatIsNoJobFileIsRefusedQuickly) {
  EXPECT_EQ(File(std::string(10 << 20, 'x')),
            Two("DIR/job.yaml: a job file has 1.0 MiB at most: this is something else"));
  std::string binary = "name: y\n";
  binary += '\x7f';
  binary += '\x01';
  EXPECT_EQ(File(binary),
            Two("DIR/job.yaml:2: a byte of value 1: this is no text, and so no job file"));
  EXPECT_EQ(File(","), Two("DIR/job.yaml:1: expected `key: value` lines"));
  EXPECT_EQ(File("name: \x82"),
            Two("DIR/job.yaml: not UTF-8, and so no job file; save it as UTF-8"));
  EXPECT_EQ(File(std::string(500'000, '[')).substr(0, 25), "ckptctl: DIR/job.yaml:1: ");
  EXPECT_EQ(code_, 2);
  // Aliases: of lists of lists, and of one long word many times over.
  std::string bomb = "command: &a [x, x]\nenv: {A: &b [*a, *a], B: &c [*b, *b], C: [*c, *c]}\n";
  EXPECT_EQ(File(bomb), Two("DIR/job.yaml:2: env: A: expected one value"));
  bomb = "name: y\nstore: &s " + std::string(300'000, 's') + "\ncommand: [";
  for (int i = 0; i < 100'000; ++i) bomb += "*s, ";
  EXPECT_EQ(File(bomb + "x]\n"),
            Two("DIR/job.yaml:3: command: takes more than 1.0 MiB: put it into a file that the "
                "command reads"));
  Type("submit " + dir_);
  EXPECT_EQ(code_, 2);
  EXPECT_EQ(Type("submit " + dir_ + "/none.yaml"),
            Two("opening DIR/none.yaml: No such file or directory (ENOENT)"));
}

}  // namespace
}  // namespace ckpt::ckptd
