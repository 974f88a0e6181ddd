// A small store in a directory, and any verb that needs no coordinator as it is typed.
#pragma once

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "coordinator/ckptctl/offline_world.h"

namespace ckpt::ckptctl {

class Tools : public Offline {
 protected:
  // What a verb prints; its exit code is left in code_.
  std::string Verb(std::vector<std::string> words) {
    CLI::App app("", "ckptctl");
    Globals globals;
    ckptctl::Run run;
    app.add_option("-o", globals.output);
    RegisterOfflineVerbs(app, globals, &run);
    std::reverse(words.begin(), words.end());
    app.parse(words);
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    code_ = run();
    const std::string out = ::testing::internal::GetCapturedStdout();
    const std::string text = out + ::testing::internal::GetCapturedStderr();
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const bool root = text.compare(at, root_.size(), root_) == 0;
      shown += root ? "DIR" : text.substr(at, 1);
      at += root ? root_.size() : 1;
    }
    return shown;
  }
  // The same in a process of its own, whose standard output is not looked at.
  static void Quietly(std::vector<std::string> words) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(9);
    CLI::App app("", "ckptctl");
    Globals globals;
    ckptctl::Run run;
    RegisterOfflineVerbs(app, globals, &run);
    std::reverse(words.begin(), words.end());
    app.parse(words);
    run();
  }
  int code_ = -1;
};

}  // namespace ckpt::ckptctl
