// What a run leaves behind for comparison: the loss of every step by its bits, and a digest of the
// final state.
#pragma once

#include <cstdint>
#include <cstdio>

#include "examples/train/data.h"
#include "examples/train/model.h"
#include "examples/train/options.h"

namespace train {

class Report {
 public:
  explicit Report(const Options& options);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // Rank 0: one line "step bits loss", flushed. A step that was computed again after a crash
  // appears twice.
  void Loss(int64_t step, float loss);
  // Every rank: the digest of weights, moments, histogram and data position.
  void Final(Model& model, Batches& batches);

 private:
  const Options& options_;
  FILE* losses_ = nullptr;
};

}  // namespace train
