// --watch: what a view shows, shown again whenever the coordinator has something new. In place on a
// terminal; elsewhere one block for each change, so that a log of it can be read.
#pragma once

#include <functional>
#include <string>

#include "coordinator/ckptctl/client.h"

namespace ckpt::ckptctl {

struct Shown {
  std::string text;
  bool over = false;  // there will be nothing more to see
  Status outcome;     // then: an error is said and becomes the exit code of a watch
};
// Fetches what is to be seen and puts it into words, or JSON (`indent` as for ToJson).
using View = std::function<Result<Shown>(Client&, int indent)>;

// Once. Returns the exit code.
int ShowOnce(const Globals& globals, const View& view);
// Until Ctrl-C, until it is over, or until no coordinator was in reach for a minute (exit code 3).
// `job` narrows which events count; empty: all.
int Watch(const Globals& globals, const std::string& job, const View& view);

}  // namespace ckpt::ckptctl
