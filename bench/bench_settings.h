// What every benchmark is asked for on its command line, and how it gives up.
//
//   NAME_bench [--mib N] [--rounds N] [--dir DIR]      DIR: where checkpoints are written (".")
#pragma once

#include <errno.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "libckpt/base/status.h"

namespace ckpt::bench {

struct Settings {
  uint64_t bytes = 0;
  int rounds = 7;
  std::string dir = ".";
};

[[noreturn]] inline void Die(const std::string& what) {
  const char* why = errno != 0 ? std::strerror(errno) : "no error of the system";
  std::fprintf(stderr, "%s: %s (%s)\n", program_invocation_short_name, what.c_str(), why);
  std::exit(1);
}
inline void Check(const Status& status) {
  if (!status.ok()) Die(status.ToString());
}
template <typename T>
T Get(Result<T> result) {
  if (!result.ok()) Die(result.status().ToString());
  return std::move(result).value();
}

inline Settings ParseSettings(int argc, char** argv, uint64_t mib, uint64_t mib_min) {
  Settings settings;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 >= argc) Die(flag + " needs a value (--mib N, --rounds N, --dir DIR)");
    const char* value = argv[i + 1];
    if (flag == "--mib") {
      mib = std::strtoull(value, nullptr, 10);
    } else if (flag == "--rounds") {
      settings.rounds = std::max(1, std::atoi(value));
    } else if (flag == "--dir") {
      settings.dir = value;
    } else {
      Die("unknown flag " + flag + " (--mib N, --rounds N, --dir DIR)");
    }
  }
  if (mib < mib_min) Die("--mib must be at least " + std::to_string(mib_min));
  settings.bytes = mib << 20;
  return settings;
}

}  // namespace ckpt::bench
