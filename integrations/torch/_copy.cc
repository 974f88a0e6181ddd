// Copies of host memory for the stager of libckpt.torch.dcp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "integrations/torch/module.h"

namespace nb = nanobind;

namespace {

struct Copy {
  std::byte* to;
  const std::byte* from;
  size_t size;
};

// Pieces are dealt out as threads become free, so that one large tensor is shared by all.
void CopyAll(const std::vector<Copy>& pieces, unsigned threads) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++)
      std::memcpy(pieces[i].to, pieces[i].from, pieces[i].size);
  };
  std::vector<std::jthread> others;
  try {
    while (others.size() + 1 < std::min<size_t>(threads, pieces.size())) others.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads to be had: the others do it
  }
  work();
}

// (to, from, bytes) of host memory, none overlapping. Threads of our own: those of torch collapse
// beside others.
void CopyMemory(const std::vector<std::tuple<uintptr_t, uintptr_t, size_t>>& copies) {
  constexpr size_t kPiece = size_t{4} << 20;
  constexpr unsigned kThreadsMax = 8;
  std::vector<Copy> pieces;
  for (const auto& [to, from, size] : copies) {
    for (size_t at = 0; at < size; at += kPiece) {
      pieces.push_back({reinterpret_cast<std::byte*>(to) + at,          // NOLINT: addresses are
                        reinterpret_cast<const std::byte*>(from) + at,  // NOLINT: what Python has
                        std::min(kPiece, size - at)});
    }
  }
  nb::gil_scoped_release release;
  CopyAll(pieces, std::clamp(std::thread::hardware_concurrency(), 1U, kThreadsMax));
}

}  // namespace

void DefineCopies(nb::module_& m) { m.def("copy_memory", &CopyMemory, nb::arg("copies")); }
