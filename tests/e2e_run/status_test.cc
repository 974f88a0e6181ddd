// The status line: on a terminal one line below everything else that is printed, nowhere else.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <thread>

#include "libckpt/base/mutex.h"
#include "libckpt/os/fd.h"
#include "tests/e2e_run/harness.h"

namespace ckpt::e2e {
namespace {

// A terminal of 200 columns and all that was ever written to it.
class Terminal {
 public:
  Terminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    EXPECT_TRUE(master_.valid());
    EXPECT_EQ(::grantpt(master_.get()), 0);
    EXPECT_EQ(::unlockpt(master_.get()), 0);
    char name[128];
    EXPECT_EQ(::ptsname_r(master_.get(), name, sizeof name), 0);
    slave_ = os::UniqueFd(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
    EXPECT_TRUE(slave_.valid());
    winsize size{};
    size.ws_col = 200;
    size.ws_row = 50;
    EXPECT_EQ(::ioctl(slave_.get(), TIOCSWINSZ, &size), 0);
    reader_ = std::thread([this] { Read(); });
  }
  ~Terminal() {
    Close();
    reader_.join();
  }
  int fd() const { return slave_.get(); }
  // Ours of the ends that write; it ends when all are closed.
  void Close() { slave_.Reset(); }
  std::string Written() const {
    MutexLock lock(mutex_);
    return text_;
  }
  bool WaitFor(const std::string& text) const {
    const Deadline deadline("a text on the terminal", std::chrono::seconds(kGenerousSeconds));
    while (Written().find(text) == std::string::npos && !deadline.Expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const bool found = Written().find(text) != std::string::npos;
    EXPECT_TRUE(found) << "'" << text << "' was not drawn; but:\n" << Written();
    return found;
  }
  // What a person sees: carriage returns and erased lines done.
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines(1);
    const std::string text = Written();
    size_t column = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      std::string& line = lines.back();
      if (text.compare(i, 3, "\x1b[K") == 0) {
        line.resize(std::min(line.size(), column));
        i += 2;
      } else if (text[i] == '\r') {
        column = 0;
      } else if (text[i] == '\n') {
        lines.emplace_back();
        column = 0;
      } else {
        if (line.size() <= column) line.resize(column + 1, ' ');
        line[column++] = text[i];
      }
    }
    return lines;
  }

 private:
  void Read() {
    char buffer[4096];
    for (;;) {
      const ssize_t n = ::read(master_.get(), buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;  // EIO: nobody writes any more
      MutexLock lock(mutex_);
      text_.append(buffer, static_cast<size_t>(n));
    }
  }

  os::UniqueFd master_, slave_;
  mutable Mutex mutex_;
  std::string text_ CKPT_GUARDED_BY(mutex_);
  std::thread reader_;
};

TEST(Status, OnATerminalOneLineSaysWhatRunsAndTheOthersStayWhole) {
  Job job;
  Terminal terminal;
  job.SetEnv("TERM", "xterm");
  job.HoldAt("engine.capture.begin:2@1");
  job.PrintTo(terminal.fd());
  RunProcess run =
      job.Start({"--ranks", "2", "--grace", "60"}, {"100000", "5", "4096", "--save-at", "10"});
  ASSERT_TRUE(terminal.WaitFor("ckpt-run: durable: s10.e1.a1"));
  ASSERT_TRUE(terminal.WaitFor("ckpt-run t: running, step "));
  ASSERT_TRUE(terminal.WaitFor(" steps/s, durable s10.e1.a1, 2 of 2 ranks up"));
  run.Signal(SIGTERM);
  ASSERT_TRUE(terminal.WaitFor("ckpt-run t: suspend: staging, waits for rank "));
  job.LetGo();
  ASSERT_TRUE(terminal.WaitFor(", staged "));
  EXPECT_EQ(run.Wait(), 75) << terminal.Written();
  ASSERT_TRUE(terminal.WaitFor("durable; run it again to go on\r\n"));
  const std::vector<std::string> lines = terminal.Lines();
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find("ranks up"), std::string::npos) << "left standing: " << line;
    if (line.empty()) continue;
    EXPECT_TRUE(line.starts_with("ckpt-run: ") || line.starts_with("[rank ")) << line;
    EXPECT_TRUE(line.find("ckpt-run: ", 1) == std::string::npos) << line;
  }
  EXPECT_TRUE(lines.back().empty()) << "the shell's prompt comes at the start of a line";
}

TEST(Status, ARestoreShowsItsBytes) {
  Job job;
  Terminal terminal;
  const std::vector<std::string> training = {"600", "5", "400000"};  // several chunks
  RunProcess first = job.Start({"--ranks", "2"}, training);
  ASSERT_TRUE(job.WaitForStep(0, 3));
  first.Signal(SIGTERM);
  ASSERT_EQ(first.Wait(), 75);
  job.SetEnv("TERM", "xterm");
  job.HoldAt("engine.load.chunk:4@1");
  job.PrintTo(terminal.fd());
  RunProcess run = job.Start({"--ranks", "2", "--grace", "60"}, training);
  ASSERT_TRUE(terminal.WaitFor("ckpt-run t: restoring, restored "));
  job.LetGo();
  ASSERT_TRUE(terminal.WaitFor("all 2 ranks have restored"));
  run.Signal(SIGTERM);
  EXPECT_EQ(run.Wait(), 75) << terminal.Written();
}

TEST(Status, NotOnATerminalThatCannotDrawAndNotInAFile) {
  for (const bool file : {true, false}) {
    Job job;
    Terminal terminal;
    job.SetEnv("TERM", file ? "xterm" : "dumb");
    if (!file) job.PrintTo(terminal.fd());
    RunProcess run = job.Start({"--ranks", "1"}, {"60", "20", "64"});
    EXPECT_EQ(run.Wait(), 0);
    if (!file) {
      ASSERT_TRUE(terminal.WaitFor("ckpt-run: finished"));
    }
    const std::string said = file ? run.Output() : terminal.Written();
    EXPECT_NE(said.find("ckpt-run: finished"), std::string::npos);
    EXPECT_EQ(said.find('\x1b'), std::string::npos) << said;
    EXPECT_EQ(said.find("ranks up"), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace ckpt::e2e
