// The command line of the trainer.
#pragma once

#include <cstdint>
#include <string>

namespace train {

struct Options {
  std::string text;
  int64_t steps = 100;
  int hidden = 1664;  // 5.8 million weights: 66 MiB of state a rank with Adam's moments
  int batch = 32;
  uint64_t seed = 1;
  float learning_rate = 1e-3f;
  std::string loss_file;    // rank 0 appends a line a step
  std::string digest_file;  // every rank writes the digest of its final state to <file>.<rank>
  std::string rendezvous;   // train_plain: an empty directory that all ranks see
  int64_t save_every = 0;   // train: steps between saves
  int64_t pause_ms = 0;     // wait in each step, as a larger model would take
  int rank = 0;             // RANK
  int world = 1;            // WORLD_SIZE
  std::string host;         // TRAIN_HOST: where the other ranks reach this one; 127.0.0.1
};

// False, with a line on stderr, for anything it does not understand.
bool ParseOptions(int argc, char** argv, Options* options);

}  // namespace train
