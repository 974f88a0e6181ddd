// Bugs that a test plants, to see that the tests find them: one line in the code that would be
// wrong, nothing at all in a release build (CKPT_FAULTS off). Each is an order of steps or a rule
// of docs/format/commit.md left out.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::storage {

#if defined(CKPT_FAULTS)
// Whether this bug is planted now.
bool Planted(std::string_view bug);

// Plants one for as long as it lives; one at a time.
class PlantedBug {
 public:
  explicit PlantedBug(std::string bug);
  ~PlantedBug();
  PlantedBug(const PlantedBug&) = delete;
  PlantedBug& operator=(const PlantedBug&) = delete;
};
#else
constexpr bool Planted(std::string_view) { return false; }
#endif

}  // namespace ckpt::storage
