// Who stages and who writes which bytes: a pure function of all ranks' layouts and of which rank is
// on which node.
//
// The unit is a *piece*: a box of one tensor that moves as a whole. Every piece has one writer, the
// rank whose shard holds it. A periodic save stages only what a rank writes. A suspend keeps each
// node's full local state in RAM: a piece held on a node without its writer there is staged by one
// of the node's ranks that hold it.
//
// I1  Every element of every tensor is in exactly one piece of each placement domain (one domain;
// per rank for kPerRank;
//     per claiming rank for kUnsharded, whose claims are compared by digest at commit).
// I2  A piece lies within the local box of its writer and of each of its stagers.
// I3  On every node the staged pieces cover the local boxes of all ranks of that node.
// I4  Replicas are written once: N ranks of one replica set write 1/N each, within one row of the
// tensor that is split. I5  The same input gives the same plan on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/format/types.h"

namespace ckpt::plan {

// One piece as its stager sees it: which of its own tensors, which box, whether it also writes it.
// Pieces of many tensors and ranks share one box: thousands of ranks have millions of pieces.
class Piece {
 public:
  using Box = std::shared_ptr<const format::Box>;
  Piece(uint32_t tensor, format::Box box, bool writes)
      : Piece(tensor, std::make_shared<const format::Box>(std::move(box)), writes) {}
  Piece(uint32_t tensor, Box box, bool writes)
      : tensor_index(tensor), write(writes), box_(std::move(box)) {}

  uint32_t tensor_index;  // into the stager's RankLayout::tensors
  bool write;             // part of this rank's shard
  // Global coordinates, within that tensor's local box.
  const format::Box& box() const { return *box_; }
  bool operator==(const Piece& other) const {
    return tensor_index == other.tensor_index && write == other.write && *box_ == *other.box_;
  }

 private:
  Box box_;
};

// What one rank stages: first the `write_count` pieces of its own shard in file order (falling
// element size, then name, then box), then what it holds for its node at a suspend.
struct RankPlan {
  std::vector<Piece> pieces;
  uint32_t write_count = 0;
  bool operator==(const RankPlan&) const = default;
  std::string Encode() const;
  static Result<RankPlan> Decode(std::string_view bytes, const format::RankLayout& layout);
  uint64_t WriteBytes(const format::RankLayout& layout) const;
  uint64_t StageBytes(const format::RankLayout& layout) const;  // of all pieces
};

struct GangPlan {
  std::vector<RankPlan> ranks;  // by rank
  uint64_t hash = 0;  // over the layouts' hashes and node_of: the key under which a plan is cached
};

// `node_of[r]` is the node of rank r. Errors: kInvalidArgument naming tensor and ranks if layouts
// contradict each other (dtype, global shape or placement differ; sharded boxes overlap without
// being equal, or leave elements to nobody; a replicated tensor with different boxes).
Result<GangPlan> MakePlan(const std::vector<format::RankLayout>& layouts,
                          const std::vector<uint32_t>& node_of);
// The same for who has the layouts' hashes, of their encoded bytes, already.
Result<GangPlan> MakePlan(const std::vector<format::RankLayout>& layouts,
                          const std::vector<uint32_t>& node_of,
                          const std::vector<uint64_t>& layout_hashes);
uint64_t PlanHash(const std::vector<uint64_t>& layout_hashes, const std::vector<uint32_t>& node_of);

}  // namespace ckpt::plan
