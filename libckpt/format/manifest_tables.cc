#include "libckpt/format/manifest_tables.h"

#include <algorithm>
#include <unordered_map>

#include "libckpt/base/bytes.h"
#include "libckpt/format/value_json.h"
#include "libckpt/format/values.h"

namespace ckpt::format {
namespace {

Box WholeBox(const std::vector<uint64_t>& shape) {
  return Box{std::vector<uint64_t>(shape.size(), 0), shape};
}

// Numbers distinct keys in the order of their first use.
class Numbering {
 public:
  // The key's number; `fresh` says whether it is new.
  uint32_t Of(std::string key, bool* fresh) {
    const auto [at, inserted] =
        numbers_.emplace(std::move(key), static_cast<uint32_t>(numbers_.size()));
    *fresh = inserted;
    return at->second;
  }

 private:
  std::unordered_map<std::string, uint32_t> numbers_;
};

// Keys stay in this process: as the numbers lie in memory.
std::string DimsKey(const std::vector<uint64_t>& dims) {
  return std::to_string(dims.size()) + ":" + std::string(AsText(std::as_bytes(std::span(dims))));
}

// Whether both belong in one row.
bool SameRow(const TensorMeta& a, const TensorMeta& b) {
  return a.name == b.name && a.dtype == b.dtype && a.placement == b.placement &&
         a.global_shape == b.global_shape && a.tied_to == b.tied_to && a.frozen == b.frozen;
}

std::string TensorKey(const TensorMeta& meta) {
  ByteWriter writer;
  writer.PutString(meta.name)
      .Put<uint8_t>(static_cast<uint8_t>(meta.dtype))
      .Put<uint8_t>(static_cast<uint8_t>(meta.placement))
      .PutRaw(DimsKey(meta.global_shape))
      .PutString(meta.tied_to)
      .PutBool(meta.frozen);
  return std::move(writer).Take();
}

std::string ItemKey(const NamedValue& value) {
  ByteWriter writer;
  writer.Put<uint8_t>(0).Put<uint8_t>(static_cast<uint8_t>(value.scope)).PutString(value.name);
  return std::move(writer.PutString(value.value.ToJson())).Take();
}
std::string ItemKey(const NamedBlob& blob) {
  ByteWriter writer;
  writer.Put<uint8_t>(1).Put<uint8_t>(static_cast<uint8_t>(blob.scope)).PutString(blob.name);
  return std::move(writer.PutString(blob.media_type).PutString(blob.bytes)).Take();
}

class ListBuilder {
 public:
  explicit ListBuilder(RowLists* out) : out_(out) {}
  void Add(std::vector<uint32_t> list) {
    ByteWriter key;
    key.PutArray<uint32_t>(std::span<const uint32_t>(list));
    bool fresh = false;
    const uint32_t number = numbering_.Of(std::move(key).Take(), &fresh);
    if (fresh) out_->lists.push_back(std::move(list));
    out_->of.push_back(number);
  }

 private:
  RowLists* out_;
  Numbering numbering_;
};

void BuildTensors(const Manifest& manifest, ManifestTables* tables) {
  Numbering numbering;
  std::vector<Numbering> boxes;
  std::vector<Cut> cuts;                                           // by tensor
  std::vector<std::vector<std::pair<uint32_t, int32_t>>> holders;  // rank, its box
  ListBuilder lists(&tables->rank_tensors);
  std::vector<uint32_t> last;  // the list of the rank before, whose tensors are mostly the same
  for (uint32_t r = 0; r < manifest.world(); ++r) {
    std::vector<uint32_t> list;
    const auto& tensors = manifest.layouts[r].tensors;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const TensorMeta& tensor = tensors[t];
      bool fresh = false;
      const bool as_before = t < last.size() && SameRow(manifest.layouts[r - 1].tensors[t], tensor);
      const uint32_t number = as_before ? last[t] : numbering.Of(TensorKey(tensor), &fresh);
      if (fresh) {
        TensorRow& row = tables->tensors.emplace_back();
        row.meta = tensor;
        row.meta.local = WholeBox(tensor.global_shape);
        boxes.emplace_back();
        cuts.emplace_back();
        holders.emplace_back();
      }
      // Of a replicated tensor, the box that the rank before had.
      const int32_t before = holders[number].empty() ? -1 : holders[number].back().second;
      if (before >= 0 && cuts[number].boxes[static_cast<size_t>(before)] == tensor.local) {
        holders[number].emplace_back(r, before);
      } else {
        const std::string key = DimsKey(tensor.local.offset) + DimsKey(tensor.local.shape);
        holders[number].emplace_back(r, static_cast<int32_t>(boxes[number].Of(key, &fresh)));
        if (fresh) cuts[number].boxes.push_back(tensor.local);
      }
      list.push_back(number);
    }
    last = list;
    lists.Add(std::move(list));
  }
  for (size_t i = 0; i < holders.size(); ++i) {
    TensorRow& row = tables->tensors[i];
    Cut& cut = cuts[i];
    if (cut.boxes.size() == 1 && cut.boxes[0] == row.meta.local) continue;
    cut.boxes_of.assign(manifest.world(), -1);
    for (const auto& [rank, box] : holders[i]) cut.boxes_of[rank] = box;
    row.cut = std::make_shared<const Cut>(std::move(cut));
  }
}

void BuildItems(const Manifest& manifest, ManifestTables* tables) {
  Numbering numbering;
  ListBuilder lists(&tables->rank_items);
  for (const RankValues& values : manifest.values) {
    std::vector<uint32_t> list;
    const auto add = [&](const auto& item) {
      bool fresh = false;
      list.push_back(numbering.Of(ItemKey(item), &fresh));
      if (fresh) tables->items.emplace_back(item);
    };
    for (const NamedValue& value : values.values) add(value);
    for (const NamedBlob& blob : values.blobs) add(blob);
    lists.Add(std::move(list));
  }
}

// --- checks ---

Status Bad(std::string_view kind, std::string_view name, const std::string& why) {
  return InvalidArgument(std::string(kind) + " '" + std::string(name.substr(0, 200)) + "' " + why);
}

Status CheckRow(const TensorRow& row, size_t world) {
  TensorMeta meta = row.meta;
  CKPT_RETURN_IF_ERROR(CheckTensor(meta));
  if (row.cut == nullptr) return OkStatus();
  for (const Box& box : row.cut->boxes) {
    meta.local = box;
    CKPT_RETURN_IF_ERROR(CheckTensor(meta));
  }
  if (row.cut->boxes_of.size() != world)
    return Bad("tensor", meta.name, "has boxes for other ranks");
  for (const int32_t number : row.cut->boxes_of) {
    if (number < -1 || number >= static_cast<int64_t>(row.cut->boxes.size())) {
      return Bad("tensor", meta.name, "uses a box that is not there");
    }
  }
  return OkStatus();
}

// A cut that many tensors share is checked for each: there are no more boxes than holders.
Status CheckBoxCount(const std::vector<TensorRow>& tensors) {
  uint64_t boxes = 0;
  for (const TensorRow& row : tensors) {
    boxes += row.cut != nullptr ? row.cut->boxes.size() : 0;
    if (boxes > kLayoutEntriesMax) return Bad("table", "tensors", "has too many boxes");
  }
  return OkStatus();
}

Status CheckLists(const RowLists& lists, size_t rows, size_t world, uint64_t entries_max,
                  const char* what) {
  uint64_t entries = 0;
  for (const auto& list : lists.lists) {
    for (const uint32_t row : list) {
      if (row >= rows) return Bad("table", what, "is used beyond its end");
    }
  }
  if (lists.of.size() != world) return Bad("table", what, "is used by other ranks");
  for (const uint32_t list : lists.of) {
    if (list >= lists.lists.size()) return Bad("table", what, "has too few lists");
    entries += lists.lists[list].size();
  }
  if (entries <= entries_max) return OkStatus();
  return ResourceExhausted("all ranks together have " + std::to_string(entries) + " " + what +
                           ", more than " + std::to_string(entries_max));
}

// Within a rank: names once, and what is tied is tied to something that is stored.
Status CheckTensorList(const std::vector<TensorRow>& rows, const std::vector<uint32_t>& list) {
  std::unordered_map<std::string_view, const TensorMeta*> by_name;
  for (const uint32_t row : list) {
    const TensorMeta& meta = rows[row].meta;
    if (!by_name.emplace(meta.name, &meta).second) {
      return Bad("tensor", meta.name, "comes twice on one rank");
    }
  }
  for (const uint32_t row : list) {
    const TensorMeta& meta = rows[row].meta;
    if (meta.tied_to.empty()) continue;
    const auto target = by_name.find(meta.tied_to);
    if (target == by_name.end() || !target->second->tied_to.empty()) {
      return Bad("tensor", meta.name,
                 "is tied to '" + meta.tied_to +
                     "', which its rank does not hold or which is "
                     "tied itself");
    }
  }
  return OkStatus();
}

// A row with boxes has one for exactly the ranks that hold it.
Status CheckHolders(const ManifestTables& tables) {
  std::vector<uint32_t> holders(tables.tensors.size(), 0);
  const RowLists& lists = tables.rank_tensors;
  for (size_t r = 0; r < lists.of.size(); ++r) {
    for (const uint32_t row : lists.lists[lists.of[r]]) {
      const TensorRow& tensor = tables.tensors[row];
      ++holders[row];
      if (tensor.cut != nullptr && tensor.cut->boxes_of[r] < 0) {
        return Bad("tensor", tensor.meta.name, "has no box for rank " + std::to_string(r));
      }
    }
  }
  std::unordered_map<const Cut*, uint32_t> counted;
  for (size_t row = 0; row < holders.size(); ++row) {
    const TensorRow& tensor = tables.tensors[row];
    if (tensor.cut == nullptr) continue;
    const auto [boxed, fresh] = counted.try_emplace(tensor.cut.get(), 0);
    for (const int32_t box : tensor.cut->boxes_of) boxed->second += fresh && box >= 0 ? 1 : 0;
    if (boxed->second != holders[row]) {
      return Bad("tensor", tensor.meta.name, "has a box for a rank that does not hold it");
    }
  }
  return OkStatus();
}

RankValues Spell(const std::vector<Item>& items, const std::vector<uint32_t>& list) {
  RankValues values;
  for (const uint32_t number : list) {
    if (const auto* value = std::get_if<NamedValue>(&items[number])) {
      values.values.push_back(*value);
    } else {
      values.blobs.push_back(std::get<NamedBlob>(items[number]));
    }
  }
  return values;
}

// Sizes first: nothing is spelled out that is too large.
Status CheckItemSizes(const std::vector<Item>& items, const RowLists& lists) {
  std::vector<uint64_t> bytes;
  for (const Item& item : items) {
    bytes.push_back(std::visit([](const auto& it) { return ItemBytes(it); }, item));
  }
  uint64_t total = 0;
  for (const uint32_t list : lists.of) {
    uint64_t rank_bytes = 0;
    for (const uint32_t item : lists.lists[list]) rank_bytes += bytes[item];
    total += rank_bytes;
    if (rank_bytes > kValueBytesMax || total > kManifestItemBytesMax) {
      return ResourceExhausted("values and blobs are too large: at most " +
                               std::to_string(kValueBytesMax) + " bytes on one rank and " +
                               std::to_string(kManifestItemBytesMax) + " on all");
    }
  }
  return OkStatus();
}

Status CheckItemList(const std::vector<Item>& items, const std::vector<uint32_t>& list) {
  const auto is_blob = [&](uint32_t item) {
    return std::holds_alternative<NamedBlob>(items[item]);
  };
  if (!std::is_partitioned(list.begin(), list.end(), [&](uint32_t i) { return !is_blob(i); })) {
    return InvalidArgument("a rank's blobs come before its values");
  }
  return CheckRankValues(Spell(items, list));
}

// Shared means one content: a name of a shared item is in one row only.
Status CheckShared(const std::vector<Item>& items) {
  std::unordered_map<std::string, Scope> seen;
  for (const Item& item : items) {
    const bool blob = std::holds_alternative<NamedBlob>(item);
    const auto [name, scope] = std::visit(
        [](const auto& it) { return std::pair<std::string, Scope>(it.name, it.scope); }, item);
    const auto [at, fresh] = seen.emplace((blob ? "b" : "v") + name, scope);
    if (!fresh && (scope == Scope::kShared || at->second == Scope::kShared)) {
      return Bad(blob ? "blob" : "value", name,
                 "is shared but differs between ranks: make it equal or per-rank");
    }
  }
  return OkStatus();
}

}  // namespace

Result<ManifestTables> ManifestTables::Build(const Manifest& manifest) {
  const uint32_t world = manifest.world();
  if (world == 0 || world > kRanksMax || manifest.values.size() != world) {
    return InvalidArgument("a manifest needs the layout and the values of 1 to " +
                           std::to_string(kRanksMax) + " ranks, has " + std::to_string(world) +
                           " and " + std::to_string(manifest.values.size()));
  }
  for (uint32_t r = 0; r < world; ++r) {
    if (manifest.layouts[r].rank == Rank(r)) continue;
    return InvalidArgument("layout " + std::to_string(r) + " is that of rank " +
                           std::to_string(manifest.layouts[r].rank.value()));
  }
  ManifestTables tables;
  BuildTensors(manifest, &tables);
  BuildItems(manifest, &tables);
  return tables;
}

Status ManifestTables::Check() const {
  const size_t world = rank_tensors.of.size();
  CKPT_RETURN_IF_ERROR(CheckBoxCount(tensors));
  for (const TensorRow& row : tensors) CKPT_RETURN_IF_ERROR(CheckRow(row, world));
  CKPT_RETURN_IF_ERROR(
      CheckLists(rank_tensors, tensors.size(), world, kLayoutEntriesMax, "tensors"));
  CKPT_RETURN_IF_ERROR(CheckLists(rank_items, items.size(), world, kLayoutEntriesMax, "items"));
  for (const auto& list : rank_tensors.lists) CKPT_RETURN_IF_ERROR(CheckTensorList(tensors, list));
  CKPT_RETURN_IF_ERROR(CheckHolders(*this));
  CKPT_RETURN_IF_ERROR(CheckItemSizes(items, rank_items));
  for (const auto& list : rank_items.lists) CKPT_RETURN_IF_ERROR(CheckItemList(items, list));
  return CheckShared(items);
}

void ManifestTables::Expand(Manifest* manifest) const {
  for (uint32_t r = 0; r < rank_tensors.of.size(); ++r) {
    RankLayout& layout = manifest->layouts.emplace_back();
    layout.rank = Rank(r);
    for (const uint32_t number : rank_tensors.lists[rank_tensors.of[r]]) {
      const TensorRow& row = tensors[number];
      TensorMeta& tensor = layout.tensors.emplace_back(row.meta);
      if (row.cut != nullptr)
        tensor.local = row.cut->boxes[static_cast<size_t>(row.cut->boxes_of[r])];
    }
    manifest->values.push_back(Spell(items, rank_items.lists[rank_items.of[r]]));
  }
}

}  // namespace ckpt::format
