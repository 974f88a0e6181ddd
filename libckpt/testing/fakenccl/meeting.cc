#include "libckpt/testing/fakenccl/meeting.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace ckpt::fakenccl {

struct Meeting::Slot {
  std::atomic<uint64_t> posted, taken;  // rounds
  About about;
  uint64_t bytes;
  std::byte data[kSlotBytes];
};
struct Meeting::Head {
  std::atomic<int32_t> world, attached, aborted_by;  // aborted_by: rank + 1
};

namespace {

constexpr uint64_t kHeadBytes = 4096;

template <typename Condition>
bool WaitFor(const Condition& condition, const Meeting::GiveUp& give_up) {
  for (int turn = 0; !condition(); ++turn) {
    if (give_up()) return false;
    if (turn < 100) {
      ::sched_yield();
    } else {
      ::poll(nullptr, 0, 1);
    }
  }
  return true;
}

}  // namespace

Meeting* Meeting::Open(const std::string& name, int world, int rank) {
  const std::string path = "/ckpt-fakenccl-" + name;
  const uint64_t bytes = kHeadBytes + 2 * static_cast<uint64_t>(world) * sizeof(Slot);
  const int fd = ::shm_open(path.c_str(), O_RDWR | O_CREAT, 0600);
  if (fd < 0) return nullptr;
  // Fresh bytes are zeros, which is what everything begins with.
  const bool sized = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  void* const memory =
      sized ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return nullptr;
  auto* const meeting = new Meeting;
  meeting->path_ = path;
  meeting->head_ = static_cast<Head*>(memory);
  meeting->bytes_ = bytes;
  meeting->world_ = world;
  meeting->rank_ = rank;
  int32_t none = 0;
  if (meeting->head_->world.compare_exchange_strong(none, world) || none == world) return meeting;
  delete meeting;
  return nullptr;
}

Meeting::~Meeting() {
  if (!complete_) ::shm_unlink(path_.c_str());  // nobody can complete it any more
  ::munmap(head_, bytes_);
}

Meeting::Slot* Meeting::SlotOf(Lane lane, int rank) const {
  auto* const slots = reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(head_) + kHeadBytes);
  return slots + lane * world_ + rank;
}

bool Meeting::Attach(const GiveUp& give_up) {
  if (head_->attached.fetch_add(1) + 1 == world_) ::shm_unlink(path_.c_str());
  complete_ = WaitFor([&] { return head_->attached.load() == world_; }, give_up);
  return complete_;
}

bool Meeting::Exchange(Lane lane, const About& about, const void* mine, uint64_t bytes,
                       std::vector<std::vector<std::byte>>* out, const GiveUp& give_up) {
  const uint64_t round = ++rounds_[lane];
  for (int r = 0; r < world_; ++r) {  // what I wrote last is read
    if (!WaitFor([&] { return SlotOf(lane, r)->taken.load() + 1 >= round; }, give_up)) return false;
  }
  Slot* const own = SlotOf(lane, rank_);
  own->about = about;
  own->bytes = bytes;
  if (bytes > 0) std::memcpy(own->data, mine, bytes);
  own->posted.store(round);
  out->assign(static_cast<size_t>(world_), {});
  for (int r = 0; r < world_; ++r) {
    Slot* const slot = SlotOf(lane, r);
    if (!WaitFor([&] { return slot->posted.load() >= round; }, give_up)) return false;
    if (slot->about != about) {
      std::fprintf(stderr,
                   "fakenccl: rank %d calls %d of %llu bytes where rank %d calls %d of %llu\n", r,
                   slot->about.kind, static_cast<unsigned long long>(slot->about.bytes), rank_,
                   about.kind, static_cast<unsigned long long>(about.bytes));
      return WaitFor([] { return false; }, give_up);
    }
    (*out)[static_cast<size_t>(r)].assign(slot->data, slot->data + slot->bytes);
  }
  own->taken.store(round);
  return true;
}

void Meeting::MarkAborted() {
  int32_t none = 0;
  head_->aborted_by.compare_exchange_strong(none, rank_ + 1);
}
int Meeting::aborted_by() const { return head_->aborted_by.load() - 1; }

}  // namespace ckpt::fakenccl
