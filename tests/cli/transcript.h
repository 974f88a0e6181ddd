// ckptctl as a person types it: the real program against ckptd in this process and agents that
// pretend. What varies from run to run (operation numbers, times of day) is replaced by words.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "coordinator/ckptd/agent_fake.h"
#include "coordinator/ckptd/server.h"
#include "libckpt/base/log.h"

namespace ckpt::ckptd {

inline std::string NewDirectory() {
  std::string path = testing::TempDir() + "cli.XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

// A program on a terminal of its own.
class OnTerminal {
 public:
  explicit OnTerminal(const std::string& command) {
    winsize size{40, 160, 0, 0};
    pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
      ::_exit(127);
    }
  }
  ~OnTerminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    Wait();
    ::close(fd_);
  }

  void Type(const std::string& keys) {
    EXPECT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // True once what was written matches `pattern`; the rest is read until the program ends.
  bool Shows(const std::string& pattern) {
    const Deadline deadline("terminal", std::chrono::seconds(60));
    const std::regex wanted(pattern);
    while (!std::regex_search(text_, wanted)) {
      char buffer[4096];
      pollfd readable{fd_, POLLIN, 0};
      if (::poll(&readable, 1, deadline.LeftMs()) <= 0) return false;
      const ssize_t size = ::read(fd_, buffer, sizeof buffer);  // EIO: it has ended
      over_ = size <= 0;
      if (over_) return std::regex_search(text_, wanted);
      text_.append(buffer, static_cast<size_t>(size));
    }
    return true;
  }
  // The exit code, once it has ended; 128 + signal.
  int Wait() {
    if (pid_ <= 0) return code_;
    Shows("(?!)");  // reads until it has ended, or too long
    if (!over_) ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return code_;
  }
  const std::string& text() const { return text_; }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  int code_ = -1;
  bool over_ = false;
  std::string text_;
};

class Transcript : public testing::Test {
 protected:
  void SetUp() override {
    SetLogSink([](LogLevel, std::string_view) {});
    StartServer();
  }
  void StartServer() {
    ServerOptions options;
    options.listen = "unix:" + dir_ + "/s";
    options.data = dir_ + "/d";
    auto server = Server::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
  }
  void TearDown() override {
    agents_.clear();
    server_.reset();
    SetLogSink({});
    std::filesystem::remove_all(dir_);
  }

  void AddNode(const std::string& name) {
    agents_[name] = std::make_unique<FakeAgent>(server_->address(), name, 2);
    agents_[name]->Welcome();
    Until("nodes", name + "  *up");
  }
  std::string Command(const std::string& words, const std::string& server = "") const {
    return std::string(CKPTCTL) + " --server " + (server.empty() ? server_->address() : server) +
           " " + words;
  }
  // Output, errors and, if it is not 0, the exit code.
  std::string Type(const std::string& words, const std::string& server = "") {
    const std::string command = Command(words, server) + " 2>&1 < /dev/null";
    FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    char buffer[4096];
    size_t size = 0;
    while ((size = fread(buffer, 1, sizeof buffer, pipe)) > 0) text.append(buffer, size);
    const int status = pclose(pipe);
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code_ != 0) text += "exit " + std::to_string(code_) + "\n";
    text = std::regex_replace(text, std::regex("operation [0-9]{10,}"), "operation N");
    text = std::regex_replace(text, std::regex("granted [0-9.]+ ms"), "granted T ms");
    text = std::regex_replace(text, std::regex("[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}"), "TIME");
    return std::regex_replace(text, std::regex(std::regex_replace(dir_, std::regex("\\."), "\\.")),
                              "DIR");
  }
  void Until(const std::string& words, const std::string& pattern) {
    const Deadline deadline("transcript", std::chrono::seconds(90));
    std::string text;
    while (!std::regex_search(text = Type(words), std::regex(pattern))) {
      ASSERT_FALSE(deadline.Expired()) << words << " never shows " << pattern << ":\n" << text;
    }
  }

  const std::string dir_ = NewDirectory();
  std::unique_ptr<Server> server_;
  std::map<std::string, std::unique_ptr<FakeAgent>> agents_;
  int code_ = 0;
};

}  // namespace ckpt::ckptd
