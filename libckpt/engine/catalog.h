// What a checkpoint holds, by tensor name, whichever files or regions it lies in: the strict checks
// of a load, and which stored boxes make up a wanted one.
//
// Which shards hold a tensor is not written down anywhere but in the shards' indexes. The plan says
// where a save of today's release would put it; those are looked at first, then the loading rank's
// own, then those of every other rank that holds the tensor, until what was found is enough.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/mutex.h"
#include "libckpt/engine/chunk_source.h"
#include "libckpt/engine/engine.h"
#include "libckpt/plan/plan.h"

namespace ckpt::engine {

// One stored box of a tensor.
struct StoredBox {
  uint32_t source = 0;
  uint32_t tensor = 0;  // into the source's tensors()
  const format::ShardTensor* meta = nullptr;
};

// A tensor of the rank's, and the name under which its content is stored.
struct Wanted {
  const LiveTensor* target = nullptr;
  std::string stored_name;
};

class Catalog {
 public:
  // Both must outlive the catalog and not change. Layouts of ranks that are not known are empty.
  Catalog(const std::vector<format::RankLayout>& layouts, const SourceSet& sources);

  // The strict checks: one kInvalidArgument that lists every problem. Tied tensors and those
  // without elements are not among what is returned.
  Result<std::vector<Wanted>> Match(Rank rank, const std::vector<LiveTensor>& targets,
                                    const LoadOptions& options) const;

  // Opens the sources that most likely hold `wanted`, several at once; Cover opens what is missing.
  // Blocks: on disk.
  Status Prefetch(Rank rank, const std::vector<Wanted>& wanted) const;

  // Stored boxes that together hold `box` of `tensor` once, those of `rank` itself first.
  // kDataLoss naming the tensor if they do not. Blocks: on disk, if sources must be opened.
  Result<std::vector<StoredBox>> Cover(Rank rank, const std::string& stored_name,
                                       const format::TensorMeta& tensor) const;

 private:
  // A name as the checkpoint has it.
  struct Entry {
    const format::TensorMeta* untied = nullptr;  // the first claim that holds its own memory
    const format::TensorMeta* tied = nullptr;    // the first that does not
    uint32_t ranks = 0;
  };
  struct Problems;
  const format::TensorMeta* OfRank(Rank rank, const std::string& name) const;
  void CheckTarget(Rank rank, const LiveTensor& target, Problems* problems,
                   std::vector<Wanted>* wanted) const;
  void CheckExtra(Rank rank, uint32_t world, const std::vector<LiveTensor>& targets,
                  Problems* problems) const;

  using Boxes = std::vector<StoredBox>;
  // What the sources opened so far hold of a tensor.
  Boxes Known(const std::string& stored_name) const;
  Status Open(uint32_t source) const;
  // Sources that may hold some of the tensor's local box and are not open, most likely first.
  std::vector<uint32_t> Candidates(Rank rank, const std::string& stored_name,
                                   const format::TensorMeta& tensor) const;
  std::vector<uint32_t> Planned(const std::string& stored_name,
                                const format::TensorMeta& tensor) const;
  // By name, as a save of today's release would write them.
  using WriteMap = std::multimap<std::string, std::pair<uint32_t, format::Box>, std::less<>>;
  const WriteMap& PlannedWrites() const;
  std::optional<uint32_t> SourceOf(Rank rank) const;

  const std::vector<format::RankLayout>& layouts_;
  const SourceSet& sources_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<Rank, uint32_t> source_of_;
  mutable Mutex mutex_;
  mutable std::vector<bool> open_ CKPT_GUARDED_BY(mutex_);
  mutable std::map<std::string, Boxes, std::less<>> stored_ CKPT_GUARDED_BY(mutex_);
  mutable std::unique_ptr<const WriteMap> planned_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::engine
