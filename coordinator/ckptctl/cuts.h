// How a sharded tensor is cut over the ranks, as far as their boxes tell: into how many parts along
// each dimension, and how many ranks hold the same part. That is what axes of a mesh come to; the
// mesh itself is not stored.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libckpt/format/types.h"

namespace ckpt::ckptctl {

struct CutShape {
  std::vector<uint64_t> parts;  // by dimension; empty if the boxes are no grid
  uint64_t boxes = 0;           // different ones
  uint64_t copies = 0;          // ranks that hold each; 0 if not all have as many
  // "4 x 1", "4 x 1, 2 copies", "in 5 boxes".
  std::string ToString() const;
};

// Gathers the boxes of one tensor, rank by rank.
class CutGatherer {
 public:
  void Add(const format::Box& box);
  CutShape Shape() const;

 private:
  std::vector<uint64_t> boxes_;                 // hashes, one a rank
  std::vector<std::vector<uint64_t>> offsets_;  // by dimension, one a rank
};

}  // namespace ckpt::ckptctl
