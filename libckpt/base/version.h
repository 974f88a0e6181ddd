// The version of everything in this tree.
#pragma once

#include <string_view>

namespace ckpt {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace ckpt
