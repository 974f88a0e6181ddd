// A program that ends without close: what it saved last is brought to an end, or its loss is said.
#pragma once

#include <memory>

namespace ckpt::session {

class Session;

// `session` is told by AtExit() when the process ends by exit() or by returning from main, unless
// it is gone by then.
void TellAtExit(const std::shared_ptr<Session>& session);

}  // namespace ckpt::session
