#include "coordinator/ckptctl/tensors.h"

#include <map>

namespace ckpt::ckptctl {
namespace {

// The tensor whose memory `tensor` shares, if any; ties never chain.
const format::TensorMeta& Untied(const format::RankLayout& layout,
                                 const format::TensorMeta& tensor) {
  for (const format::TensorMeta& other : layout.tensors) {
    if (!tensor.tied_to.empty() && other.name == tensor.tied_to) return other;
  }
  return tensor;
}

}  // namespace

Result<std::vector<WholeTensor>> WholeTensors(const engine::CheckpointReader& reader) {
  std::map<std::string, WholeTensor> found;
  for (const format::RankLayout& layout : reader.layouts()) {
    for (const format::TensorMeta& tensor : layout.tensors) {
      const bool own = tensor.placement == format::Placement::kPerRank;
      const std::string name =
          tensor.name + (own ? ".rank" + std::to_string(layout.rank.value()) : "");
      if (const auto other = found.find(name); other != found.end()) {
        if (!own && !other->second.own) continue;
        return FailedPrecondition("tensor '" + name + "' and that of a rank, which is called '" +
                                  tensor.name + "', would have one name; rename one of them");
      }
      WholeTensor whole{name, Untied(layout, tensor), layout.rank, own};
      whole.meta.tied_to.clear();
      if (!own) {
        whole.meta.local = {std::vector<uint64_t>(whole.meta.global_shape.size(), 0),
                            whole.meta.global_shape};
      }
      found.emplace(name, std::move(whole));
    }
  }
  std::vector<WholeTensor> tensors;
  for (auto& [name, tensor] : found) tensors.push_back(std::move(tensor));
  return tensors;
}

Status LoadWhole(engine::CheckpointReader* reader, const WholeTensor& tensor,
                 std::vector<std::byte>* out,
                 const std::function<void(uint64_t done, uint64_t total)>& progress) {
  out->resize(tensor.bytes());
  if (out->empty()) return OkStatus();
  engine::LiveTensor target;
  target.meta = tensor.meta;
  target.data = out->data();
  engine::LoadOptions options;
  options.part = true;
  options.progress = progress;
  options.world = reader->world();
  return reader->Load(tensor.rank, {target}, options).Annotate(tensor.name);
}

}  // namespace ckpt::ckptctl
