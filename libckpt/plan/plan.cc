#include "libckpt/plan/plan.h"

#include <algorithm>
#include <iterator>
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

// What pieces are sorted by, before their boxes: falling element size, rising name.
uint64_t KeyOf(uint32_t element_bytes, uint32_t name_order) {
  return uint64_t{UINT32_MAX - element_bytes} << 32 | name_order;
}

// Pieces of a rank with their keys; they mostly come in order.
class Drafts {
 public:
  void Reserve(size_t count) {
    pieces_.reserve(count);
    keys_.reserve(count);
  }
  void Add(uint64_t key, Piece piece) {
    if (!pieces_.empty() && Before(key, piece, keys_.back(), pieces_.back())) {
      ++breaks_;
      last_run_ = pieces_.size();
    }
    keys_.push_back(key);
    pieces_.push_back(std::move(piece));
  }
  size_t size() const { return pieces_.size(); }
  // In order; nothing is left here.
  std::vector<Piece> Take() {
    if (breaks_ == 0) return std::move(pieces_);
    std::vector<uint32_t> order(pieces_.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto before = [&](uint32_t a, uint32_t b) {
      return Before(keys_[a], pieces_[a], keys_[b], pieces_[b]);
    };
    // Sharded tensors, then what replicas share: two runs.
    if (breaks_ == 1)
      std::inplace_merge(order.begin(), order.begin() + static_cast<ptrdiff_t>(last_run_),
                         order.end(), before);
    else
      std::sort(order.begin(), order.end(), before);
    std::vector<Piece> sorted;
    sorted.reserve(order.size());
    for (const uint32_t i : order) sorted.push_back(std::move(pieces_[i]));
    return sorted;
  }

 private:
  static bool Before(uint64_t a_key, const Piece& a, uint64_t b_key, const Piece& b) {
    if (a_key != b_key) return a_key < b_key;
    return std::tie(a.box().offset, a.box().shape) < std::tie(b.box().offset, b.box().shape);
  }
  std::vector<Piece> pieces_;
  std::vector<uint64_t> keys_;
  uint32_t breaks_ = 0;  // in their order
  size_t last_run_ = 0;  // begins there
};

struct DraftRank {
  Drafts write, hold;
  Piece::Box last;  // most tensors of a rank are cut alike
};

class Planner {
 public:
  Planner(const std::vector<RankLayout>& layouts, const std::vector<uint32_t>& node_of)
      : layouts_(layouts), node_of_(node_of), ranks_(layouts.size()), stage_bytes_(layouts.size()) {
    for (size_t r = 0; r < layouts.size(); ++r) ranks_[r].write.Reserve(layouts[r].tensors.size());
  }

  Status Plan() {
    CKPT_ASSIGN_OR_RETURN(domains_, CollectClaims(layouts_));
    // In the order of a shard's file, so that little is left to sort.
    std::vector<const Domain*> order;
    for (const Domain& domain : domains_) order.push_back(&domain);
    std::sort(order.begin(), order.end(), [](const Domain* a, const Domain* b) {
      return KeyOf(format::ElementBytes(a->meta->dtype), a->name_order) <
             KeyOf(format::ElementBytes(b->meta->dtype), b->name_order);
    });
    for (const Domain* domain : order) CKPT_RETURN_IF_ERROR(Place(*domain));
    for (ReplicaSet& set : sets_) SplitSet(&set);
    for (const auto& [set, part] : parts_) HoldElsewhere(sets_[set], part);
    return OkStatus();
  }

  std::vector<RankPlan> Take() {
    std::vector<RankPlan> plans(ranks_.size());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      plans[r].write_count = static_cast<uint32_t>(ranks_[r].write.size());
      plans[r].pieces = ranks_[r].write.Take();
      std::vector<Piece> held = ranks_[r].hold.Take();
      plans[r].pieces.insert(plans[r].pieces.end(), std::make_move_iterator(held.begin()),
                             std::make_move_iterator(held.end()));
      ranks_[r] = DraftRank();
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

  // How a sharded tensor is cut. Most are cut like the one before them, on the same ranks: then
  // only their boxes are compared.
  struct Cut {
    std::vector<uint64_t> shape;
    std::vector<uint32_t> ranks;                // by claim
    std::vector<Piece::Box> boxes;              // by claim
    std::vector<uint64_t> elements;             // by claim
    std::vector<std::vector<uint32_t>> groups;  // claims of one box, none of it empty
  };

  const Box& BoxOf(const Claim& claim) const { return MetaOf(layouts_, claim).local; }

  Status PlaceSharded(const Domain& domain) {
    if (Box{{}, domain.meta->global_shape}.Empty()) {
      AddShared(domain, {domain.claims[0]}, domain.meta->local);
      return OkStatus();
    }
    if (!IsCutAsBefore(domain)) CKPT_RETURN_IF_ERROR(MakeCut(domain));
    const uint32_t element_bytes = format::ElementBytes(domain.meta->dtype);
    const uint64_t key = KeyOf(element_bytes, domain.name_order);
    std::vector<Claim> claims;
    for (const std::vector<uint32_t>& group : cut_.groups) {
      const uint32_t first = group[0];
      if (group.size() == 1) {
        const uint32_t rank = cut_.ranks[first];
        stage_bytes_[rank] += cut_.elements[first] * element_bytes;
        ranks_[rank].write.Add(
            key, Piece(domain.claims[first].tensor_index, cut_.boxes[first], /*writes=*/true));
        continue;
      }
      claims.clear();
      for (const uint32_t member : group) claims.push_back(domain.claims[member]);
      AddShared(domain, claims, BoxOf(claims[0]));
    }
    return OkStatus();
  }

  bool IsCutAsBefore(const Domain& domain) const {
    if (domain.meta->global_shape != cut_.shape || domain.claims.size() != cut_.ranks.size())
      return false;
    for (size_t i = 0; i < domain.claims.size(); ++i) {
      const Claim& claim = domain.claims[i];
      if (claim.rank != cut_.ranks[i] || BoxOf(claim) != *cut_.boxes[i]) return false;
    }
    return true;
  }

  Status MakeCut(const Domain& domain) {
    Cut cut;
    cut.shape = domain.meta->global_shape;
    std::vector<uint32_t> order;  // claims by box, then rank
    for (uint32_t i = 0; i < domain.claims.size(); ++i) {
      const Box& box = BoxOf(domain.claims[i]);
      cut.ranks.push_back(domain.claims[i].rank);
      cut.boxes.push_back(std::make_shared<const Box>(box));
      cut.elements.push_back(box.ElementCount());
      if (!box.Empty()) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::tie(cut.boxes[a]->offset, cut.boxes[a]->shape, cut.ranks[a]) <
             std::tie(cut.boxes[b]->offset, cut.boxes[b]->shape, cut.ranks[b]);
    });
    for (const uint32_t i : order) {
      if (cut.groups.empty() || *cut.boxes[cut.groups.back()[0]] != *cut.boxes[i])
        cut.groups.emplace_back();
      cut.groups.back().push_back(i);
    }
    CKPT_RETURN_IF_ERROR(CheckTiled(domain, cut));
    cut_ = std::move(cut);
    return OkStatus();
  }

  static Status CheckTiled(const Domain& domain, const Cut& cut) {
    std::vector<const Box*> boxes;
    for (const auto& group : cut.groups) boxes.push_back(cut.boxes[group[0]].get());
    const Box whole{std::vector<uint64_t>(cut.shape.size(), 0), cut.shape};
    const auto fault = CheckTiling(whole, boxes);
    if (!fault) return OkStatus();
    if (fault->overlap) {
      return InvalidArgument(
          "tensor " + Quoted(domain.meta->name) + ": the boxes of rank " +
          std::to_string(cut.ranks[cut.groups[fault->overlap->first][0]]) + " and rank " +
          std::to_string(cut.ranks[cut.groups[fault->overlap->second][0]]) +
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
    const auto box = std::make_shared<const Box>(part.box);
    const uint32_t element_bytes = format::ElementBytes(shared.domain->meta->dtype);
    const uint64_t bytes = box->ElementCount() * element_bytes;
    const uint64_t key = KeyOf(element_bytes, shared.domain->name_order);
    for (const auto& members : MembersByNode(set)) {
      if (node_of_[set.ranks[members[0]]] == writer_node) continue;
      const uint32_t member =
          *std::min_element(members.begin(), members.end(), [&](uint32_t a, uint32_t b) {
            return stage_bytes_[set.ranks[a]] < stage_bytes_[set.ranks[b]];
          });
      const uint32_t rank = set.ranks[member];
      stage_bytes_[rank] += bytes;
      ranks_[rank].hold.Add(key, Piece(shared.tensor_index[member], box, /*writes=*/false));
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
    stage_bytes_[claim.rank] += box.ElementCount() * element_bytes;
    if (rank.last == nullptr || *rank.last != box) rank.last = std::make_shared<const Box>(box);
    (write ? rank.write : rank.hold)
        .Add(KeyOf(element_bytes, domain.name_order), Piece(claim.tensor_index, rank.last, write));
  }

  const std::vector<RankLayout>& layouts_;
  const std::vector<uint32_t>& node_of_;
  std::vector<Domain> domains_;
  std::vector<ReplicaSet> sets_;
  std::map<std::vector<uint32_t>, size_t> set_index_;
  size_t last_set_ = 0;
  std::vector<std::pair<uint32_t, SplitPart>> parts_;  // set, part
  std::vector<DraftRank> ranks_;
  std::vector<uint64_t> stage_bytes_;  // by rank
  Cut cut_;                            // of the sharded tensor before
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
  std::vector<uint64_t> hashes;
  for (const RankLayout& layout : layouts) hashes.push_back(layout.Hash());
  return MakePlan(layouts, node_of, hashes);
}

Result<GangPlan> MakePlan(const std::vector<RankLayout>& layouts,
                          const std::vector<uint32_t>& node_of,
                          const std::vector<uint64_t>& layout_hashes) {
  if (layouts.empty() || layouts.size() != node_of.size()) {
    return InvalidArgument(
        "a plan needs at least one rank and the node of each: " + std::to_string(layouts.size()) +
        " layouts, " + std::to_string(node_of.size()) + " nodes");
  }
  for (uint32_t r = 0; r < layouts.size(); ++r) {
    if (layouts[r].rank != Rank(r)) {
      return InvalidArgument("layout " + std::to_string(r) + " is of rank " +
                             std::to_string(layouts[r].rank.value()));
    }
  }
  Planner planner(layouts, node_of);
  CKPT_RETURN_IF_ERROR(planner.Plan());
  return GangPlan{planner.Take(), PlanHash(layout_hashes, node_of)};
}

}  // namespace ckpt::plan
