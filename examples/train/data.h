// Where the batches come from: a text file, and a position of this rank in it that is part of its
// state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/train/random.h"

namespace train {

class Batches {
 public:
  // `text` is the whole file; `context` + 1 bytes are one sample.
  Batches(std::vector<uint8_t> text, int context, int batch, uint64_t seed, int rank);

  // Fills contexts() and targets() with the next batch and moves on.
  void Next();
  const std::vector<uint8_t>& contexts() const { return contexts_; }
  const std::vector<uint8_t>& targets() const { return targets_; }

  // This rank's position: what it must get back to see the same batches again.
  uint64_t random_state() const { return random_.state(); }
  int64_t samples_seen() const { return samples_seen_; }
  void Restore(uint64_t random_state, int64_t samples_seen) {
    random_.set_state(random_state);
    samples_seen_ = samples_seen;
  }
  // How often this rank has been asked to predict each byte; 256 numbers, part of its state.
  std::vector<uint64_t>& histogram() { return histogram_; }

 private:
  std::vector<uint8_t> text_;
  int context_;
  int batch_;
  Random random_;
  int64_t samples_seen_ = 0;
  std::vector<uint64_t> histogram_;
  std::vector<uint8_t> contexts_, targets_;
};

// The whole file, or an error that says what is wrong with it: absent, unreadable, or too short to
// train on.
bool ReadText(const std::string& path, int context, std::vector<uint8_t>* text, std::string* error);

}  // namespace train
