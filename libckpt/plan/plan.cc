#include "libckpt/plan/plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "libckpt/base/digest.h"
#include "libckpt/plan/claims.h"
#include "libckpt/plan/split.h"
#include "libckpt/plan/tiling.h"

namespace ckpt::plan {
namespace {

using format::Box;
using format::Placement;
using format::RankLayout;
using format::TensorMeta;

// A box that several ranks hold; they write it once between them.
struct SharedBox {
  const Domain* domain = nullptr;
  const Box* box = nullptr;
  std::vector<uint32_t> tensor_index;  // by member of the set
};

// The ranks that hold the same boxes.
struct ReplicaSet {
  std::vector<uint32_t> ranks;
  std::vector<SharedBox> boxes;
};

// A piece with what it is sorted by.
struct Draft {
  uint32_t element_bytes = 0;
  uint32_t name_order = 0;
  Piece piece;
  bool operator<(const Draft& other) const {
    return std::tie(other.element_bytes, name_order, piece.box.offset, piece.box.shape) <
           std::tie(element_bytes, other.name_order, other.piece.box.offset, other.piece.box.shape);
  }
};

struct DraftRank {
  std::vector<Draft> write, hold;
  uint64_t stage_bytes = 0;
};

class Planner {
 public:
  Planner(const std::vector<RankLayout>& layouts, const std::vector<uint32_t>& node_of)
      : layouts_(layouts), node_of_(node_of), ranks_(layouts.size()) {}

  Status Plan() {
    CKPT_ASSIGN_OR_RETURN(domains_, CollectClaims(layouts_));
    for (const Domain& domain : domains_) CKPT_RETURN_IF_ERROR(Place(domain));
    for (ReplicaSet& set : sets_) SplitSet(&set);
    for (const auto& [set, part] : parts_) HoldElsewhere(sets_[set], part);
    return OkStatus();
  }

  std::vector<RankPlan> Take() {
    std::vector<RankPlan> plans(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      DraftRank& draft = ranks_[r];
      std::sort(draft.write.begin(), draft.write.end());
      std::sort(draft.hold.begin(), draft.hold.end());
      plans[r].write_count = static_cast<uint32_t>(draft.write.size());
      plans[r].pieces.reserve(draft.write.size() + draft.hold.size());
      for (Draft& d : draft.write) plans[r].pieces.push_back(std::move(d.piece));
      for (Draft& d : draft.hold) plans[r].pieces.push_back(std::move(d.piece));
    }
    return plans;
  }

 private:
  Status Place(const Domain& domain) {
    switch (domain.meta->placement) {
      case Placement::kUnsharded:
      case Placement::kPerRank:
        for (const Claim& claim : domain.claims) {
          Give(domain, claim, MetaOf(layouts_, claim).local, /*write=*/true);
        }
        return OkStatus();
      case Placement::kReplicated:
        AddShared(domain, domain.claims, domain.meta->local);
        return OkStatus();
      case Placement::kSharded:
        return PlaceSharded(domain);
    }
    return Internal("placement of " + Quoted(domain.meta->name));
  }

  Status PlaceSharded(const Domain& domain) {
    const auto box_of = [&](const Claim& claim) -> const Box& {
      return MetaOf(layouts_, claim).local;
    };
    if (Box{{}, domain.meta->global_shape}.Empty()) {
      AddShared(domain, {domain.claims[0]}, domain.meta->local);
      return OkStatus();
    }
    std::vector<Claim> claims;  // by box, then rank
    for (const Claim& claim : domain.claims) {
      if (!box_of(claim).Empty()) claims.push_back(claim);
    }
    const auto before = [&](const Claim& a, const Claim& b) {
      return std::tie(box_of(a).offset, box_of(a).shape, a.rank) <
             std::tie(box_of(b).offset, box_of(b).shape, b.rank);
    };
    if (!std::is_sorted(claims.begin(), claims.end(), before)) {
      std::sort(claims.begin(), claims.end(), before);
    }
    std::vector<std::vector<Claim>> groups;
    for (const Claim& claim : claims) {
      if (groups.empty() || box_of(groups.back()[0]) != box_of(claim)) groups.emplace_back();
      groups.back().push_back(claim);
    }
    CKPT_RETURN_IF_ERROR(CheckTiled(domain, groups));
    for (const auto& group : groups) AddShared(domain, group, box_of(group[0]));
    return OkStatus();
  }

  Status CheckTiled(const Domain& domain, const std::vector<std::vector<Claim>>& groups) {
    std::vector<const Box*> boxes;
    for (const auto& group : groups) boxes.push_back(&MetaOf(layouts_, group[0]).local);
    // Most tensors are cut like the one before them.
    const bool same = domain.meta->global_shape == tiled_shape_ &&
                      std::equal(boxes.begin(), boxes.end(), tiled_.begin(), tiled_.end(),
                                 [](const Box* a, const Box* b) { return *a == *b; });
    if (same) return OkStatus();
    const Box whole{std::vector<uint64_t>(domain.meta->global_shape.size(), 0),
                    domain.meta->global_shape};
    const auto fault = CheckTiling(whole, boxes);
    if (!fault) {
      tiled_shape_ = domain.meta->global_shape;
      tiled_ = std::move(boxes);
      return OkStatus();
    }
    if (fault->overlap) {
      return InvalidArgument(
          "tensor " + Quoted(domain.meta->name) + ": the boxes of rank " +
          std::to_string(groups[fault->overlap->first][0].rank) + " and rank " +
          std::to_string(groups[fault->overlap->second][0].rank) +
          " overlap without being equal; make them equal (replicas) or disjoint");
    }
    return InvalidArgument(
        "tensor " + Quoted(domain.meta->name) + ": " + std::to_string(fault->missing_elements) +
        " of " + std::to_string(whole.ElementCount()) + " elements are in no rank's box (" +
        std::to_string(domain.claims.size()) + " ranks hold a part)");
  }

  void AddShared(const Domain& domain, const std::vector<Claim>& claims, const Box& box) {
    if (claims.size() == 1) return Give(domain, claims[0], box, /*write=*/true);
    SharedBox shared{&domain, &box, {}};
    std::vector<uint32_t> members;
    for (const Claim& claim : claims) {
      members.push_back(claim.rank);
      shared.tensor_index.push_back(claim.tensor_index);
    }
    SetOf(std::move(members)).boxes.push_back(std::move(shared));
  }

  ReplicaSet& SetOf(std::vector<uint32_t> members) {
    if (last_set_ < sets_.size() && sets_[last_set_].ranks == members) return sets_[last_set_];
    const auto [it, inserted] = set_index_.try_emplace(members, sets_.size());
    if (inserted) sets_.push_back(ReplicaSet{std::move(members), {}});
    last_set_ = it->second;
    return sets_[last_set_];
  }

  void SplitSet(ReplicaSet* set) {
    std::sort(set->boxes.begin(), set->boxes.end(), [](const SharedBox& a, const SharedBox& b) {
      const auto key = [](const SharedBox& s) {
        return std::tuple(-static_cast<int64_t>(format::ElementBytes(s.domain->meta->dtype)),
                          s.domain->name_order, std::cref(s.box->offset).get());
      };
      return key(a) < key(b);
    });
    std::vector<SplitItem> items;
    for (const SharedBox& shared : set->boxes) {
      items.push_back({shared.box, format::ElementBytes(shared.domain->meta->dtype)});
    }
    const auto set_index = static_cast<uint32_t>(set - sets_.data());
    for (SplitPart& part : SplitOverMembers(items, static_cast<uint32_t>(set->ranks.size()))) {
      const SharedBox& shared = set->boxes[part.item];
      Give(*shared.domain, Claim{set->ranks[part.member], shared.tensor_index[part.member]},
           part.box, /*write=*/true);
      parts_.emplace_back(set_index, std::move(part));
    }
  }

  // I3: nodes of the set where the writer is not.
  void HoldElsewhere(const ReplicaSet& set, const SplitPart& part) {
    const SharedBox& shared = set.boxes[part.item];
    const uint32_t writer_node = node_of_[set.ranks[part.member]];
    for (const auto& members : MembersByNode(set)) {
      if (node_of_[set.ranks[members[0]]] == writer_node) continue;
      const uint32_t member =
          *std::min_element(members.begin(), members.end(), [&](uint32_t a, uint32_t b) {
            return ranks_[set.ranks[a]].stage_bytes < ranks_[set.ranks[b]].stage_bytes;
          });
      Give(*shared.domain, Claim{set.ranks[member], shared.tensor_index[member]}, part.box,
           /*write=*/false);
    }
  }

  // Members of the set grouped by node, nodes in rising order; kept for the set that comes next
  // too.
  const std::vector<std::vector<uint32_t>>& MembersByNode(const ReplicaSet& set) {
    if (grouped_ == &set) return by_node_;
    std::map<uint32_t, std::vector<uint32_t>> by_node;
    for (uint32_t m = 0; m < set.ranks.size(); ++m) by_node[node_of_[set.ranks[m]]].push_back(m);
    by_node_.clear();
    for (auto& [node, members] : by_node) by_node_.push_back(std::move(members));
    grouped_ = &set;
    return by_node_;
  }

  void Give(const Domain& domain, const Claim& claim, const Box& box, bool write) {
    DraftRank& rank = ranks_[claim.rank];
    // Per-rank tensors of one name may differ in dtype, hence the claim's own.
    const uint32_t element_bytes = format::ElementBytes(MetaOf(layouts_, claim).dtype);
    rank.stage_bytes += box.ElementCount() * element_bytes;
    (write ? rank.write : rank.hold)
        .push_back(Draft{element_bytes, domain.name_order, Piece{claim.tensor_index, box, write}});
  }

  const std::vector<RankLayout>& layouts_;
  const std::vector<uint32_t>& node_of_;
  std::vector<Domain> domains_;
  std::vector<ReplicaSet> sets_;
  std::map<std::vector<uint32_t>, size_t> set_index_;
  size_t last_set_ = 0;
  std::vector<std::pair<uint32_t, SplitPart>> parts_;  // set, part
  std::vector<DraftRank> ranks_;
  std::vector<uint64_t> tiled_shape_;
  std::vector<const Box*> tiled_;
  const ReplicaSet* grouped_ = nullptr;
  std::vector<std::vector<uint32_t>> by_node_;
};

}  // namespace

uint64_t PlanHash(const std::vector<uint64_t>& layout_hashes,
                  const std::vector<uint32_t>& node_of) {
  ByteWriter writer;
  writer.PutRaw("ckpt.plan.v1");
  writer.PutArray<uint64_t>(layout_hashes).PutArray<uint32_t>(node_of);
  return Hash64(AsBytes(writer.str()));
}

Result<GangPlan> MakePlan(const std::vector<RankLayout>& layouts,
                          const std::vector<uint32_t>& node_of) {
  if (layouts.empty() || layouts.size() != node_of.size()) {
    return InvalidArgument(
        "a plan needs at least one rank and the node of each: " + std::to_string(layouts.size()) +
        " layouts, " + std::to_string(node_of.size()) + " nodes");
  }
  std::vector<uint64_t> hashes;
  for (uint32_t r = 0; r < layouts.size(); ++r) {
    if (layouts[r].rank != Rank(r)) {
      return InvalidArgument("layout " + std::to_string(r) + " is of rank " +
                             std::to_string(layouts[r].rank.value()));
    }
    hashes.push_back(layouts[r].Hash());
  }
  Planner planner(layouts, node_of);
  CKPT_RETURN_IF_ERROR(planner.Plan());
  return GangPlan{planner.Take(), PlanHash(hashes, node_of)};
}

}  // namespace ckpt::plan
