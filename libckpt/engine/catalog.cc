#include "libckpt/engine/catalog.h"

#include <algorithm>
#include <set>

#include "libckpt/engine/live.h"
#include "libckpt/plan/claims.h"
#include "libckpt/plan/tiling.h"

namespace ckpt::engine {
namespace {

using format::Placement;
using format::TensorMeta;

constexpr size_t kProblemsShownMax = 64;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d ? "," : "") + std::to_string(shape[d]);
  return text + "]";
}

std::string RankText(Rank rank) { return "rank " + std::to_string(rank.value()); }

}  // namespace

struct Catalog::Problems {
  size_t count = 0;
  std::string text;

  void Add(const std::string& name, const std::string& problem) {
    if (++count > kProblemsShownMax) return;
    text += (text.empty() ? "" : "; ") + plan::Quoted(name) + " " + problem;
  }
  Status ToStatus(Rank rank) const {
    if (count == 0) return OkStatus();
    std::string message = RankText(rank) + ": the state does not match the checkpoint: " + text;
    if (count > kProblemsShownMax) {
      message += "; and " + std::to_string(count - kProblemsShownMax) + " more";
    }
    return InvalidArgument(message);
  }
};

Catalog::Catalog(const std::vector<format::RankLayout>& layouts, const SourceSet& sources)
    : layouts_(layouts), sources_(sources), open_(sources.size()) {
  for (const format::RankLayout& layout : layouts) {
    for (const TensorMeta& tensor : layout.tensors) {
      Entry& entry = entries_[tensor.name];
      ++entry.ranks;
      const TensorMeta*& first = tensor.tied_to.empty() ? entry.untied : entry.tied;
      if (first == nullptr) first = &tensor;
    }
  }
  for (uint32_t s = 0; s < sources.size(); ++s) {
    source_of_.emplace(sources.rank(s), s);
    if (!sources.lazy()) Open(s).IgnoreError();  // cannot fail
  }
}

const TensorMeta* Catalog::OfRank(Rank rank, const std::string& name) const {
  if (rank.value() >= layouts_.size()) return nullptr;
  for (const TensorMeta& tensor : layouts_[rank.value()].tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

void Catalog::CheckTarget(Rank rank, const LiveTensor& target, Problems* problems,
                          std::vector<Wanted>* wanted) const {
  const TensorMeta& meta = target.meta;
  Status live = format::CheckTensor(meta);
  if (live.ok()) live = CheckLive(target);
  if (!live.ok()) {
    return problems->Add(meta.name, "cannot be loaded: " + live.message());
  }
  const auto it = entries_.find(meta.name);
  if (it == entries_.end()) return problems->Add(meta.name, "is missing in the checkpoint");
  const Entry& entry = it->second;
  const TensorMeta* stored = entry.untied != nullptr ? entry.untied : entry.tied;
  if ((stored->placement == Placement::kPerRank) != (meta.placement == Placement::kPerRank)) {
    return problems->Add(meta.name, stored->placement == Placement::kPerRank
                                        ? "is per rank in the checkpoint, but not here"
                                        : "is per rank here, but not in the checkpoint");
  }
  if (meta.placement == Placement::kPerRank) {
    stored = OfRank(rank, meta.name);
    if (stored == nullptr) {
      return problems->Add(meta.name, "is per rank, and the checkpoint of " +
                                          std::to_string(layouts_.size()) + " ranks has none of " +
                                          RankText(rank));
    }
  }
  if (stored->dtype != meta.dtype) {
    problems->Add(meta.name, "has dtype " + std::string(format::DTypeName(meta.dtype)) + " here, " +
                                 std::string(format::DTypeName(stored->dtype)) +
                                 " in the checkpoint");
  }
  if (stored->global_shape != meta.global_shape) {
    problems->Add(meta.name, "has global shape " + ShapeText(meta.global_shape) + " here, " +
                                 ShapeText(stored->global_shape) + " in the checkpoint");
  }
  if (!meta.tied_to.empty()) {
    if (entry.tied == nullptr) {
      problems->Add(meta.name, "is tied to " + plan::Quoted(meta.tied_to) +
                                   " here, but stored by itself in the checkpoint");
    }
    return;
  }
  if (meta.local.Empty()) return;
  wanted->push_back(Wanted{&target, stored->tied_to.empty() ? meta.name : stored->tied_to});
}

// What this rank had must be wanted; under another number of ranks, what every rank had.
void Catalog::CheckExtra(Rank rank, uint32_t world, const std::vector<LiveTensor>& targets,
                         Problems* problems) const {
  std::set<std::string_view> names;
  for (const LiveTensor& target : targets) names.insert(target.meta.name);
  const bool same_world = world == 0 || world == layouts_.size();
  if (same_world && rank.value() < layouts_.size()) {
    for (const TensorMeta& tensor : layouts_[rank.value()].tensors) {
      if (!names.count(tensor.name)) {
        problems->Add(tensor.name, "is in the checkpoint, but not in this state");
      }
    }
    return;
  }
  for (const auto& [name, entry] : entries_) {
    const TensorMeta* meta = entry.untied != nullptr ? entry.untied : entry.tied;
    const bool everywhere =
        entry.ranks == layouts_.size() && meta->placement != Placement::kPerRank;
    if (everywhere && !names.count(name)) {
      problems->Add(name, "is in the checkpoint on every rank, but not in this state");
    }
  }
}

Result<std::vector<Wanted>> Catalog::Match(Rank rank, const std::vector<LiveTensor>& targets,
                                           const LoadOptions& options) const {
  Problems problems;
  std::vector<Wanted> wanted;
  for (const LiveTensor& target : targets) CheckTarget(rank, target, &problems, &wanted);
  if (!options.part) CheckExtra(rank, options.world, targets, &problems);
  CKPT_RETURN_IF_ERROR(problems.ToStatus(rank));
  return wanted;
}

std::optional<uint32_t> Catalog::SourceOf(Rank rank) const {
  const auto found = source_of_.find(rank);
  return found == source_of_.end() ? std::nullopt : std::optional(found->second);
}

Status Catalog::Open(uint32_t source) const {
  CKPT_ASSIGN_OR_RETURN(const ChunkSource* opened, sources_.Get(source));
  MutexLock lock(mutex_);
  if (open_[source]) return OkStatus();
  open_[source] = true;
  const auto& tensors = opened->tensors();
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    stored_[tensors[t].name].push_back(StoredBox{source, t, &tensors[t]});
  }
  return OkStatus();
}

Catalog::Boxes Catalog::Known(const std::string& stored_name) const {
  MutexLock lock(mutex_);
  const auto found = stored_.find(stored_name);
  return found == stored_.end() ? Boxes() : found->second;
}

const Catalog::WriteMap& Catalog::PlannedWrites() const {
  {
    MutexLock lock(mutex_);
    if (planned_ != nullptr) return *planned_;
  }
  auto writes = std::make_unique<WriteMap>();
  // Where ranks run says who stages, not who writes. Layouts that make no plan (of one node's
  // staged regions, say) make no hint either.
  const auto plan = plan::MakePlan(layouts_, std::vector<uint32_t>(layouts_.size()));
  for (uint32_t r = 0; plan.ok() && r < plan->ranks.size(); ++r) {
    const plan::RankPlan& of_rank = plan->ranks[r];
    for (uint32_t i = 0; i < of_rank.write_count; ++i) {
      const plan::Piece& piece = of_rank.pieces[i];
      writes->emplace(layouts_[r].tensors[piece.tensor_index].name, std::pair(r, piece.box()));
    }
  }
  MutexLock lock(mutex_);
  if (planned_ == nullptr) planned_ = std::move(writes);
  return *planned_;
}

std::vector<uint32_t> Catalog::Planned(const std::string& stored_name,
                                       const TensorMeta& tensor) const {
  std::vector<uint32_t> sources;
  const auto [begin, end] = PlannedWrites().equal_range(stored_name);
  for (auto at = begin; at != end; ++at) {
    const auto& [rank, box] = at->second;
    const bool touches =
        box.shape.size() == tensor.local.shape.size() && !tensor.local.Intersect(box).Empty();
    const auto source = SourceOf(Rank(rank));
    if (touches && source) sources.push_back(*source);
  }
  return sources;
}

std::vector<uint32_t> Catalog::Candidates(Rank rank, const std::string& stored_name,
                                          const TensorMeta& tensor) const {
  std::vector<uint32_t> sources;
  if (const auto own = SourceOf(rank)) sources.push_back(*own);
  if (tensor.placement == Placement::kPerRank) return sources;
  if (layouts_.size() > 1) {
    const std::vector<uint32_t> planned = Planned(stored_name, tensor);
    sources.insert(sources.end(), planned.begin(), planned.end());
  }
  for (uint32_t s = 0; s < sources_.size(); ++s) sources.push_back(s);
  MutexLock lock(mutex_);
  std::vector<bool> seen = open_;
  std::erase_if(sources, [&](uint32_t s) {
    const bool known = seen[s];
    seen[s] = true;
    return known;
  });
  return sources;
}

Status Catalog::Prefetch(Rank rank, const std::vector<Wanted>& wanted) const {
  if (!sources_.lazy()) return OkStatus();
  std::set<uint32_t> sources;
  if (const auto own = SourceOf(rank)) sources.insert(*own);
  for (const Wanted& want : wanted) {
    if (want.target->meta.placement == Placement::kPerRank || layouts_.size() == 1) continue;
    for (const uint32_t s : Planned(want.stored_name, want.target->meta)) sources.insert(s);
  }
  const std::vector<uint32_t> list(sources.begin(), sources.end());
  if (!list.empty()) CKPT_RETURN_IF_ERROR(sources_.OpenAll(list));
  for (const uint32_t s : list) CKPT_RETURN_IF_ERROR(Open(s));
  return OkStatus();
}

namespace {

// Those that hold some of the wanted box, each box once, those of `rank` first. kDataLoss for one
// that contradicts the layout.
Result<std::vector<StoredBox>> Relevant(std::vector<StoredBox> boxes, Rank rank,
                                        const std::string& stored_name, const TensorMeta& tensor,
                                        const SourceSet& sources) {
  std::erase_if(boxes, [&](const StoredBox& box) {
    const bool same_shape = box.meta->global_shape == tensor.global_shape;
    return (tensor.placement == Placement::kPerRank && sources.rank(box.source) != rank) ||
           (same_shape && tensor.local.Intersect(box.meta->box).Empty());
  });
  for (const StoredBox& box : boxes) {
    if (box.meta->dtype != tensor.dtype || box.meta->global_shape != tensor.global_shape) {
      return DataLoss("tensor " + plan::Quoted(stored_name) + ": its shard of " +
                      RankText(sources.rank(box.source)) + " contradicts the layout");
    }
  }
  std::stable_sort(boxes.begin(), boxes.end(), [&](const StoredBox& a, const StoredBox& b) {
    return sources.rank(a.source) == rank && sources.rank(b.source) != rank;
  });
  std::vector<StoredBox> distinct;
  for (const StoredBox& box : boxes) {
    const bool seen = std::any_of(distinct.begin(), distinct.end(), [&](const StoredBox& other) {
      return other.meta->box == box.meta->box;
    });
    if (!seen) distinct.push_back(box);
  }
  return distinct;
}

uint64_t CommonElements(const std::vector<StoredBox>& boxes, const format::Box& local) {
  uint64_t count = 0;
  for (const StoredBox& box : boxes) count += local.Intersect(box.meta->box).ElementCount();
  return count;
}

}  // namespace

Result<std::vector<StoredBox>> Catalog::Cover(Rank rank, const std::string& stored_name,
                                              const TensorMeta& tensor) const {
  const auto find = [&] {
    return Relevant(Known(stored_name), rank, stored_name, tensor, sources_);
  };
  CKPT_ASSIGN_OR_RETURN(std::vector<StoredBox> boxes, find());
  const uint64_t wanted = tensor.local.ElementCount();
  if (CommonElements(boxes, tensor.local) < wanted) {
    for (const uint32_t source : Candidates(rank, stored_name, tensor)) {
      CKPT_RETURN_IF_ERROR(Open(source));
      CKPT_ASSIGN_OR_RETURN(boxes, find());
      if (CommonElements(boxes, tensor.local) >= wanted) break;
    }
  }
  std::vector<format::Box> parts;
  for (const StoredBox& box : boxes) parts.push_back(tensor.local.Intersect(box.meta->box));
  std::vector<const format::Box*> refs;
  for (const format::Box& part : parts) refs.push_back(&part);
  const auto fault = plan::CheckTiling(tensor.local, refs);
  if (!fault) return boxes;
  return DataLoss("tensor " + plan::Quoted(stored_name) + ": " +
                  (fault->overlap
                       ? "stored boxes overlap"
                       : std::to_string(fault->missing_elements) + " of " + std::to_string(wanted) +
                             " elements are stored nowhere in reach"));
}

}  // namespace ckpt::engine
