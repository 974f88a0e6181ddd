// What a checkpoint holds, by tensor name, whichever files or regions it lies in: the strict checks
// of a load, and which stored boxes make up a wanted one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "libckpt/engine/chunk_source.h"
#include "libckpt/engine/engine.h"

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
  Catalog(const std::vector<format::RankLayout>& layouts,
          const std::vector<std::unique_ptr<ChunkSource>>& sources);

  // The strict checks: one kInvalidArgument that lists every problem. Tied tensors and those
  // without elements are not among what is returned.
  Result<std::vector<Wanted>> Match(Rank rank, const std::vector<LiveTensor>& targets,
                                    const LoadOptions& options) const;

  // Stored boxes that together hold `box` of `tensor` once, those of `rank` itself first.
  // kDataLoss naming the tensor if they do not.
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

  const std::vector<format::RankLayout>& layouts_;
  const std::vector<std::unique_ptr<ChunkSource>>& sources_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::vector<StoredBox>, std::less<>> stored_;
};

}  // namespace ckpt::engine
