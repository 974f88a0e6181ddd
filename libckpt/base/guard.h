// Where code runs that may throw (the standard library, callbacks of the program) and nobody above
// would catch it: on our own threads an exception would end the program that we are a guest of.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "libckpt/base/status.h"

namespace ckpt {

// Runs `body`, which returns a Status. What it throws becomes kResourceExhausted (bad_alloc) or
// kInternal, maybe applied: nobody knows how far it came.
template <typename Body>
Status NoThrow(std::string_view what, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(std::string(what) + ": out of memory").MaybeApplied();
  } catch (const std::exception& error) {
    return Internal(std::string(what) + " threw: " + error.what()).MaybeApplied();
  } catch (...) {
    return Internal(std::string(what) + " threw something").MaybeApplied();
  }
}

}  // namespace ckpt
