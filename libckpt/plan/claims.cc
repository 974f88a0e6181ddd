#include "libckpt/plan/claims.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ckpt::plan {
namespace {

using format::Placement;
using format::RankLayout;
using format::TensorMeta;

constexpr uint32_t kNoDomain = UINT32_MAX;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d ? "," : "") + std::to_string(shape[d]);
  return text + "]";
}

std::string_view PlacementName(Placement placement) {
  switch (placement) {
    case Placement::kUnsharded:
      return "unsharded";
    case Placement::kReplicated:
      return "replicated";
    case Placement::kSharded:
      return "sharded";
    case Placement::kPerRank:
      return "per rank";
  }
  return "unknown";
}

Status Differs(const TensorMeta& tensor, uint32_t first, uint32_t second, std::string_view what,
               std::string_view a, std::string_view b) {
  return InvalidArgument("tensor " + Quoted(tensor.name) + ": rank " + std::to_string(first) +
                         " and rank " + std::to_string(second) + " disagree on its " +
                         std::string(what) + " (" + std::string(a) + ", " + std::string(b) + ")");
}

Status CheckAgainstFirst(const TensorMeta& first, uint32_t first_rank, const TensorMeta& tensor,
                         uint32_t rank) {
  if (first.placement != tensor.placement) {
    return Differs(tensor, first_rank, rank, "placement", PlacementName(first.placement),
                   PlacementName(tensor.placement));
  }
  if (tensor.placement == Placement::kPerRank) return OkStatus();
  if (first.dtype != tensor.dtype) {
    return Differs(tensor, first_rank, rank, "dtype", format::DTypeName(first.dtype),
                   format::DTypeName(tensor.dtype));
  }
  if (first.global_shape != tensor.global_shape) {
    return Differs(tensor, first_rank, rank, "global shape", ShapeText(first.global_shape),
                   ShapeText(tensor.global_shape));
  }
  return OkStatus();
}

Status CheckHeldBox(const TensorMeta& tensor, uint32_t rank) {
  if (tensor.placement == Placement::kSharded) return OkStatus();
  if (IsWhole(tensor.local, tensor.global_shape)) return OkStatus();
  return InvalidArgument("tensor " + Quoted(tensor.name) + ": rank " + std::to_string(rank) +
                         " holds only a part " + ShapeText(tensor.local.shape) + " of " +
                         ShapeText(tensor.global_shape) + "; a tensor held in parts is declared " +
                         "sharded, this one is " + std::string(PlacementName(tensor.placement)));
}

Status CheckTie(const RankLayout& layout, uint32_t rank, const TensorMeta& tensor) {
  for (const TensorMeta& target : layout.tensors) {
    if (target.name != tensor.tied_to || &target == &tensor) continue;
    if (!target.tied_to.empty()) break;
    if (target.dtype == tensor.dtype && target.local == tensor.local) return OkStatus();
    return InvalidArgument("tensor " + Quoted(tensor.name) + " of rank " + std::to_string(rank) +
                           " is tied to " + Quoted(tensor.tied_to) +
                           ", which has another dtype or shape");
  }
  return InvalidArgument("tensor " + Quoted(tensor.name) + " of rank " + std::to_string(rank) +
                         " is tied to " + Quoted(tensor.tied_to) +
                         ", which is no untied tensor of that rank");
}

class Collector {
 public:
  explicit Collector(const std::vector<RankLayout>& layouts) : layouts_(layouts) {}

  Status AddRank(uint32_t rank) {
    const auto& tensors = layouts_[rank].tensors;
    // Replicas of all they hold: what holds of the rank before holds of this one.
    if (rank > 0 && tensors == layouts_[rank - 1].tensors) {
      for (uint32_t i = 0; i < tensors.size(); ++i) {
        if (previous_[i] != kNoDomain) domains_[previous_[i]].claims.push_back(Claim{rank, i});
      }
      return OkStatus();
    }
    std::vector<uint32_t> ids(tensors.size(), kNoDomain);
    for (uint32_t i = 0; i < tensors.size(); ++i) {
      const TensorMeta& tensor = tensors[i];
      if (!tensor.tied_to.empty()) {
        CKPT_RETURN_IF_ERROR(format::CheckTensor(tensor));
        CKPT_RETURN_IF_ERROR(CheckTie(layouts_[rank], rank, tensor));
        continue;
      }
      ids[i] = DomainId(tensor, i);
      CKPT_RETURN_IF_ERROR(AddClaim(&domains_[ids[i]], Claim{rank, i}));
    }
    previous_ = std::move(ids);
    return OkStatus();
  }

  std::vector<Domain> Take() {
    std::vector<uint32_t> order(domains_.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return domains_[a].meta->name < domains_[b].meta->name;
    });
    for (uint32_t i = 0; i < order.size(); ++i) domains_[order[i]].name_order = i;
    return std::move(domains_);
  }

 private:
  uint32_t DomainId(const TensorMeta& tensor, uint32_t index) {
    if (index < previous_.size() && previous_[index] != kNoDomain &&
        domains_[previous_[index]].meta->name == tensor.name) {
      return previous_[index];
    }
    const auto [it, inserted] =
        by_name_.try_emplace(tensor.name, static_cast<uint32_t>(domains_.size()));
    if (inserted) domains_.push_back(Domain{&tensor, {}, 0});
    return it->second;
  }

  Status AddClaim(Domain* domain, const Claim& claim) {
    const TensorMeta& tensor = MetaOf(layouts_, claim);
    // Most are the tensor of the rank before but for the box.
    const TensorMeta& first = *domain->meta;
    const bool alike = !domain->claims.empty() && tensor.dtype == first.dtype &&
                       tensor.placement == first.placement &&
                       tensor.global_shape == first.global_shape;
    CKPT_RETURN_IF_ERROR(alike ? format::CheckLocalBox(tensor) : format::CheckTensor(tensor));
    CKPT_RETURN_IF_ERROR(CheckHeldBox(tensor, claim.rank));
    if (!domain->claims.empty()) {
      if (domain->claims.back().rank == claim.rank) {
        return InvalidArgument("tensor " + Quoted(tensor.name) + " appears twice on rank " +
                               std::to_string(claim.rank));
      }
      if (!alike) {
        CKPT_RETURN_IF_ERROR(CheckAgainstFirst(first, domain->claims[0].rank, tensor, claim.rank));
      }
    }
    if (domain->claims.empty()) domain->claims.reserve(layouts_.size());
    domain->claims.push_back(claim);
    return OkStatus();
  }

  const std::vector<RankLayout>& layouts_;
  std::vector<Domain> domains_;
  std::unordered_map<std::string_view, uint32_t> by_name_;
  std::vector<uint32_t> previous_;  // domains of the previous rank's tensors
};

}  // namespace

bool IsWhole(const format::Box& box, const std::vector<uint64_t>& global_shape) {
  return box.shape == global_shape &&
         std::all_of(box.offset.begin(), box.offset.end(), [](uint64_t o) { return o == 0; });
}

std::string Quoted(std::string_view name) {
  constexpr size_t kShownMax = 200;
  if (name.size() <= kShownMax) return "'" + std::string(name) + "'";
  return "'" + std::string(name.substr(0, kShownMax)) + "…'";
}

Result<std::vector<Domain>> CollectClaims(const std::vector<RankLayout>& layouts) {
  Collector collector(layouts);
  for (uint32_t rank = 0; rank < layouts.size(); ++rank) {
    CKPT_RETURN_IF_ERROR(collector.AddRank(rank));
  }
  return collector.Take();
}

}  // namespace ckpt::plan
