#include "coordinator/ckptctl/cuts.h"

#include <algorithm>
#include <map>
#include <span>

#include "libckpt/base/digest.h"

namespace ckpt::ckptctl {

std::string CutShape::ToString() const {
  std::string text;
  for (const uint64_t part : parts) text += (text.empty() ? "" : " x ") + std::to_string(part);
  if (parts.empty()) text = "in " + std::to_string(boxes) + (boxes == 1 ? " box" : " boxes");
  if (copies == 0) return text + ", some held by more ranks";
  return copies == 1 ? text : text + ", " + std::to_string(copies) + " copies";
}

void CutGatherer::Add(const format::Box& box) {
  if (box.Empty()) return;  // a rank without a part of it
  boxes_.push_back(
      Hash64(std::as_bytes(std::span(box.offset)), Hash64(std::as_bytes(std::span(box.shape)))));
  offsets_.resize(box.offset.size());
  for (size_t d = 0; d < box.offset.size(); ++d) offsets_[d].push_back(box.offset[d]);
}

CutShape CutGatherer::Shape() const {
  CutShape shape;
  std::map<uint64_t, uint64_t> holders;
  for (const uint64_t box : boxes_) ++holders[box];
  shape.boxes = holders.size();
  for (const auto& [box, count] : holders) {
    if (shape.copies == 0) shape.copies = count;
    if (shape.copies != count) {
      shape.copies = 0;
      break;
    }
  }
  uint64_t cells = 1;
  for (std::vector<uint64_t> offsets : offsets_) {
    std::sort(offsets.begin(), offsets.end());
    offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    shape.parts.push_back(offsets.size());
    cells *= offsets.size();
  }
  // Disjoint boxes that cover the tensor (which is checked when it is saved) and are as many as the
  // cells of their offsets are these cells.
  if (cells != shape.boxes) shape.parts.clear();
  return shape;
}

}  // namespace ckpt::ckptctl
