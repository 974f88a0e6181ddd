// What a double of a library answers in the place of a call: "CALL:NTH:RESULT[:sticky],…" of an
// environment variable, or what a test plans while it runs. Threads: any.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "libckpt/base/mutex.h"

namespace ckpt::testing {

class PlannedFailures {
 public:
  explicit PlannedFailures(const char* variable) {
    const char* text = std::getenv(variable);
    std::string left = text == nullptr ? "" : text;
    while (!left.empty()) {
      const std::string entry = left.substr(0, left.find(','));
      left.erase(0, entry.size() + 1);
      char call[64] = {}, how[16] = {};
      unsigned long long nth = 0;
      int result = 0;
      if (std::sscanf(entry.c_str(), "%63[^:]:%llu:%d:%15s", call, &nth, &result, how) < 3)
        std::abort();  // it would fail nothing
      Plan(call, nth, result, std::string(how) == "sticky");
    }
  }

  // Counts a passage of the call: 0, or what it is planned to answer.
  int Pass(const std::string& call) {
    MutexLock lock(mutex_);
    const uint64_t passage = ++passages_[call];
    const auto it = failures_.find(call);
    if (it == failures_.end()) return 0;
    const bool now = passage == it->second.at || (it->second.sticky && passage > it->second.at);
    return now ? it->second.result : 0;
  }

  // The `nth` passage from now on; `sticky`: and all later ones.
  void Plan(const std::string& call, uint64_t nth, int result, bool sticky) {
    MutexLock lock(mutex_);
    failures_[call] = {passages_[call] + nth, result, sticky};
  }

  uint64_t Passages(const std::string& call) {
    MutexLock lock(mutex_);
    return passages_[call];
  }

 private:
  struct Failure {
    uint64_t at = 0;
    int result = 0;
    bool sticky = false;
  };
  Mutex mutex_;
  std::map<std::string, uint64_t> passages_ CKPT_GUARDED_BY(mutex_);
  std::map<std::string, Failure> failures_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::testing
