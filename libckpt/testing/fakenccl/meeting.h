// Where the ranks of one communicator of the double meet: a file in shared memory, named by the id.
// Each rank has a slot in each lane; in one round everyone fills its own, waits for all, and reads
// them. Its name goes when the last rank has come.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ckpt::fakenccl {

inline constexpr uint64_t kSlotBytes = 64 * 1024;
enum Lane { kStreamLane = 0, kControlLane = 1 };

// What a round is about: all ranks must mean the same.
struct About {
  int32_t kind = 0, type = 0;
  uint64_t bytes = 0;
  bool operator==(const About&) const = default;
};

class Meeting {
 public:
  // True: whoever waits shall give up.
  using GiveUp = std::function<bool()>;

  // Null if the file cannot be made or is of another world.
  static Meeting* Open(const std::string& name, int world, int rank);
  ~Meeting();

  // Until all ranks have come; false if it was given up.
  bool Attach(const GiveUp& give_up);
  // One round; parts by rank. Ranks that mean something else wait for ever. False: given up.
  bool Exchange(Lane lane, const About& about, const void* mine, uint64_t bytes,
                std::vector<std::vector<std::byte>>* out, const GiveUp& give_up);

  // Whether some rank has said so; who waits may want to know.
  void MarkAborted();
  int aborted_by() const;  // -1 none

 private:
  struct Slot;
  struct Head;
  Meeting() = default;
  Slot* SlotOf(Lane lane, int rank) const;

  std::string path_;
  Head* head_ = nullptr;
  uint64_t bytes_ = 0;
  int world_ = 0, rank_ = 0;
  bool complete_ = false;
  uint64_t rounds_[2] = {0, 0};
};

}  // namespace ckpt::fakenccl
