// Completion of the command line in bash and zsh: the scripts ask this program, which knows its
// verbs and flags from the parser itself, and jobs and nodes from the coordinator.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "coordinator/ckptctl/verb.h"

namespace ckpt::ckptctl {

// First word of the call that a script makes.
inline constexpr std::string_view kCompleteWord = "__complete";

// `words` as typed after the program's name, the last of them unfinished (it may be empty). Prints
// "WORD<tab>description" lines, and ":files" where a path is wanted. Blocks: on the coordinator, a
// second at most; none in reach is no error.
int Complete(const CLI::App& app, const Globals& globals, const std::vector<std::string>& words,
             std::ostream& out);

}  // namespace ckpt::ckptctl
