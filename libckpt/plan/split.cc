#include "libckpt/plan/split.h"

#include <algorithm>

namespace ckpt::plan {
namespace {

using format::Box;

void AppendRange(Box box, size_t dim, uint64_t begin, uint64_t end, std::vector<Box>* out) {
  if (begin >= end) return;
  if (dim == box.shape.size()) return out->push_back(std::move(box));
  uint64_t row = 1;
  for (size_t d = dim + 1; d < box.shape.size(); ++d) row *= box.shape[d];
  const uint64_t first_full = (begin + row - 1) / row;
  const uint64_t last_full = end / row;
  const auto one_row = [&](uint64_t index, uint64_t from, uint64_t to) {
    Box inner = box;
    inner.offset[dim] += index;
    inner.shape[dim] = 1;
    AppendRange(std::move(inner), dim + 1, from, to, out);
  };
  if (first_full > last_full)
    return one_row(last_full, begin - last_full * row, end - last_full * row);
  if (begin % row != 0) one_row(begin / row, begin % row, row);
  if (first_full < last_full) {
    Box full = box;
    full.offset[dim] += first_full;
    full.shape[dim] = last_full - first_full;
    out->push_back(std::move(full));
  }
  if (end % row != 0) one_row(last_full, 0, end % row);
}

// Elements between two allowed cuts of the item: a row of the outermost dimension whose rows are
// small against one member's share.
uint64_t CutUnit(const SplitItem& item, uint64_t share_bytes) {
  const uint64_t elements = item.box->ElementCount();
  if (elements * item.element_bytes < kSplitBytesMin) return std::max<uint64_t>(elements, 1);
  const uint64_t row_bytes_max = std::max(share_bytes / 64, kSplitBytesMin);
  uint64_t unit = elements;
  for (const uint64_t size : item.box->shape) {
    if (unit < elements && unit * item.element_bytes <= row_bytes_max) break;
    unit /= size;
  }
  return unit;
}

}  // namespace

std::vector<Box> RangeToBoxes(const Box& box, uint64_t begin, uint64_t end) {
  std::vector<Box> out;
  AppendRange(box, 0, begin, end, &out);
  return out;
}

std::vector<SplitPart> SplitOverMembers(const std::vector<SplitItem>& items, uint32_t members) {
  unsigned __int128 total = 0;
  for (const SplitItem& item : items) total += item.box->ElementCount() * item.element_bytes;
  const auto share_bytes = static_cast<uint64_t>(total / members);
  const auto cut_at = [&](uint32_t i) { return static_cast<uint64_t>(total * i / members); };
  std::vector<SplitPart> parts;
  uint64_t start = 0;  // of the item in the stream
  uint32_t member = 0;
  for (uint32_t i = 0; i < items.size(); ++i) {
    const uint64_t elements = items[i].box->ElementCount();
    const uint64_t unit = CutUnit(items[i], share_bytes);
    const uint64_t unit_bytes = unit * items[i].element_bytes;
    if (elements == 0) parts.push_back(SplitPart{i, member, *items[i].box});
    uint64_t done = 0;  // elements of this item given away
    while (done < elements) {
      // The nearest allowed cut to where this member's share ends.
      uint64_t end = elements;
      if (member + 1 < members) {
        const uint64_t ideal = cut_at(member + 1);
        const uint64_t units = ideal <= start ? 0 : (ideal - start + unit_bytes / 2) / unit_bytes;
        end = std::min(elements, units * unit);
      }
      for (Box& box : RangeToBoxes(*items[i].box, done, end)) {
        parts.push_back(SplitPart{i, member, std::move(box)});
      }
      done = std::max(done, end);
      if (done < elements) ++member;
    }
    start += elements * items[i].element_bytes;
  }
  return parts;
}

}  // namespace ckpt::plan
