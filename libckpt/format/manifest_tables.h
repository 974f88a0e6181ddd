// The tables of a MANIFEST: what is equal on many ranks, once; inside this layer only.
//
// Between a Manifest (ranks spelled out) and its JSON stands this form, so that checks run once per
// distinct thing, and nothing is spelled out before its size is known.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "libckpt/format/manifest.h"

namespace ckpt::format {

inline constexpr uint64_t kLayoutEntriesMax = uint64_t{1} << 23;      // all ranks' tensors
inline constexpr uint64_t kManifestItemBytesMax = uint64_t{1} << 30;  // all ranks' values and blobs

// How a tensor is cut: which box each rank holds. Tensors of one shape are mostly cut alike, and
// share it.
struct Cut {
  std::vector<Box> boxes;
  std::vector<int32_t> boxes_of;  // by rank, -1 for none
  bool operator==(const Cut&) const = default;
};

// A tensor as all ranks that hold it describe it; meta.local is the whole box.
struct TensorRow {
  TensorMeta meta;
  std::shared_ptr<const Cut> cut;  // null: every holder holds the whole
};

using Item = std::variant<NamedValue, NamedBlob>;

// Who uses which rows: a few lists, and for each rank the number of its list.
struct RowLists {
  std::vector<std::vector<uint32_t>> lists;
  std::vector<uint32_t> of;  // by rank
};

struct ManifestTables {
  std::vector<TensorRow> tensors;
  std::vector<Item> items;  // of one rank: its values, then its blobs
  RowLists rank_tensors;
  RowLists rank_items;

  static Result<ManifestTables> Build(const Manifest& manifest);
  // Everything that Manifest::Encode promises about tensors and values; kInvalidArgument or
  // kResourceExhausted.
  Status Check() const;
  // Spells the ranks out. Pre: Check() is OK.
  void Expand(Manifest* manifest) const;
};

}  // namespace ckpt::format
