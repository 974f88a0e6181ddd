// The control pages of this node's ranks, as coordinator/gang drives them: compare-and-swap on the
// word, the order line, a futex wake. A rank can write what it likes into its page; what is read
// here is taken as a number and compared, never used as an index or a size.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/gang/member.h"
#include "libckpt/os/memfd.h"
#include "libckpt/wire/page.h"

namespace ckpt::run {

class RankPages : public gang::Pages {
 public:
  // A fresh page for each rank.
  static Result<std::unique_ptr<RankPages>> Create(uint64_t epoch, uint32_t first_rank,
                                                   uint32_t rank_count, uint32_t world);

  Word Load(Rank rank) override;
  bool Cas(Rank rank, Word expected, Word desired) override;
  void StoreOrder(Rank rank, const gang::RankOrder& order) override;
  void Wake(Rank rank) override;
  int64_t StepNs(Rank rank) override;

  const wire::ControlPage& page(uint32_t rank) const { return *At(rank); }
  const os::Memfd& memfd(uint32_t rank) const { return pages_[rank - first_rank_].memfd; }
  // When this rank was told to stage (CLOCK_BOOTTIME); 0 never.
  int64_t staging_since_ns(uint32_t rank) const {
    return pages_[rank - first_rank_].staging_since_ns;
  }

 private:
  struct Page {
    os::Memfd memfd;
    os::Mapping mapping;
    int64_t staging_since_ns = 0;
  };
  explicit RankPages(uint32_t first_rank) : first_rank_(first_rank) {}
  wire::ControlPage* At(uint32_t rank) const;

  uint32_t first_rank_;
  std::vector<Page> pages_;
};

}  // namespace ckpt::run
