// RankPlan as bytes: it lies in staging memory and travels in frames, so decoding trusts nothing.
#include <algorithm>

#include "libckpt/base/bytes.h"
#include "libckpt/plan/claims.h"
#include "libckpt/plan/plan.h"
#include "libckpt/plan/tiling.h"

namespace ckpt::plan {
namespace {

constexpr uint32_t kPlanVersion = 1;

uint64_t PieceBytes(const format::RankLayout& layout, const Piece& piece) {
  return piece.box().ElementCount() *
         format::ElementBytes(layout.tensors[piece.tensor_index].dtype);
}

Status CheckPiece(const format::RankLayout& layout, const Piece& piece) {
  if (piece.tensor_index >= layout.tensors.size()) {
    return DataLoss("plan names tensor " + std::to_string(piece.tensor_index) + " of " +
                    std::to_string(layout.tensors.size()));
  }
  const format::TensorMeta& tensor = layout.tensors[piece.tensor_index];
  const size_t dims = tensor.local.shape.size();
  const bool fits = piece.box().shape.size() == dims && piece.box().offset.size() == dims &&
                    tensor.local.Contains(piece.box()) && tensor.tied_to.empty();
  if (fits) return OkStatus();
  return DataLoss("plan holds a piece outside of tensor " + Quoted(tensor.name));
}

// No element is staged twice by one rank.
Status CheckDisjoint(const format::RankLayout& layout, const RankPlan& plan) {
  std::vector<std::vector<const format::Box*>> boxes(layout.tensors.size());
  for (const Piece& piece : plan.pieces) boxes[piece.tensor_index].push_back(&piece.box());
  for (size_t t = 0; t < boxes.size(); ++t) {
    if (boxes[t].size() > 1 && FindOverlap(boxes[t])) {
      return DataLoss("plan holds overlapping pieces of tensor " + Quoted(layout.tensors[t].name));
    }
  }
  return OkStatus();
}

}  // namespace

std::string RankPlan::Encode() const {
  ByteWriter writer;
  writer.Put<uint32_t>(kPlanVersion).Put<uint32_t>(write_count);
  writer.Put<uint32_t>(static_cast<uint32_t>(pieces.size()));
  for (const Piece& piece : pieces) {
    writer.Put<uint32_t>(piece.tensor_index);
    writer.PutArray<uint64_t>(piece.box().offset).PutArray<uint64_t>(piece.box().shape);
  }
  return std::move(writer).Take();
}

Result<RankPlan> RankPlan::Decode(std::string_view bytes, const format::RankLayout& layout) {
  ByteReader reader(bytes);
  RankPlan plan;
  const uint32_t version = reader.Get<uint32_t>();
  plan.write_count = reader.Get<uint32_t>();
  const uint32_t count = reader.GetCount(12);
  for (uint32_t i = 0; i < count && !reader.failed(); ++i) {
    const auto tensor = reader.Get<uint32_t>();
    format::Box box;
    box.offset = reader.GetArray<uint64_t>(kTensorDimsMax);
    box.shape = reader.GetArray<uint64_t>(kTensorDimsMax);
    Piece piece(tensor, std::move(box), i < plan.write_count);
    if (!reader.failed()) CKPT_RETURN_IF_ERROR(CheckPiece(layout, piece));
    plan.pieces.push_back(std::move(piece));
  }
  CKPT_RETURN_IF_ERROR(reader.Finish("plan"));
  if (version != kPlanVersion) return DataLoss("plan of version " + std::to_string(version));
  if (plan.write_count > count) return DataLoss("plan writes more pieces than it has");
  CKPT_RETURN_IF_ERROR(CheckDisjoint(layout, plan));
  return plan;
}

uint64_t RankPlan::WriteBytes(const format::RankLayout& layout) const {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.write ? PieceBytes(layout, piece) : 0;
  return bytes;
}

uint64_t RankPlan::StageBytes(const format::RankLayout& layout) const {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += PieceBytes(layout, piece);
  return bytes;
}

}  // namespace ckpt::plan
