#include "libckpt/session/state.h"

#include <algorithm>

#include "libckpt/format/values.h"

namespace ckpt::session {
namespace {

// What CheckRankValues says about one thing alone.
Status CheckOne(format::NamedValue value) {
  format::RankValues one;
  one.values.push_back(std::move(value));
  return format::CheckRankValues(one);
}

Status CheckOne(format::NamedBlob blob) {
  format::RankValues one;
  one.blobs.push_back(std::move(blob));
  return format::CheckRankValues(one);
}

template <typename Named>
void SetOrReplace(std::vector<Named>* all, Named item) {
  const auto same = std::find_if(all->begin(), all->end(),
                                 [&](const Named& other) { return other.name == item.name; });
  if (same == all->end()) {
    all->push_back(std::move(item));
  } else {
    *same = std::move(item);
  }
}

}  // namespace

Status State::AddTensor(engine::LiveTensor tensor) {
  CKPT_RETURN_IF_ERROR(format::CheckTensor(tensor.meta));
  const std::string& name = tensor.meta.name;
  if (tensors_.size() >= kTensorsPerRankMax)
    return ResourceExhausted("tensor '" + name + "': a rank tracks at most " +
                             std::to_string(kTensorsPerRankMax) + " tensors");
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.meta.local.shape.size())
    return InvalidArgument("tensor '" + name + "' has strides for another number of dims");
  if (tensor.data == nullptr && tensor.meta.LocalBytes() > 0)
    return InvalidArgument("tensor '" + name + "' has no memory (data is NULL)");
  if (!tensor.meta.tied_to.empty() && tensor_index_.count(tensor.meta.tied_to) == 0)
    return InvalidArgument("tensor '" + name + "' is tied to '" + tensor.meta.tied_to +
                           "', which was not added before it");
  if (!tensor_index_.emplace(name, tensors_.size()).second)
    return AlreadyExists("tensor '" + name + "' was added twice; names are unique within a rank");
  tensors_.push_back(std::move(tensor));
  return OkStatus();
}

Status State::MoveTensor(const std::string& name, void* data) {
  const auto found = tensor_index_.find(name);
  if (found == tensor_index_.end()) return NotFound("there is no tensor '" + name + "' to move");
  engine::LiveTensor& tensor = tensors_[found->second];
  if (data == nullptr && tensor.meta.LocalBytes() > 0)
    return InvalidArgument("tensor '" + name + "' has no memory (data is NULL)");
  tensor.data = data;
  return OkStatus();
}

Status State::SetValue(const std::string& name, format::Scope scope, std::string_view json) {
  Result<format::Value> value = format::Value::FromJson(json);
  if (!value.ok()) return std::move(value).status().Annotate("value '" + name + "'");
  format::NamedValue named{name, scope, std::move(*value)};
  CKPT_RETURN_IF_ERROR(CheckOne(named));
  SetOrReplace(&values_.values, std::move(named));
  return OkStatus();
}

Status State::SetBlob(const std::string& name, format::Scope scope, std::string media_type,
                      std::string bytes) {
  format::NamedBlob named{name, scope, std::move(media_type), std::move(bytes)};
  CKPT_RETURN_IF_ERROR(CheckOne(named));
  SetOrReplace(&values_.blobs, std::move(named));
  return OkStatus();
}

format::RankLayout State::Layout(Rank rank) const {
  format::RankLayout layout;
  layout.rank = rank;
  for (const engine::LiveTensor& tensor : tensors_) layout.tensors.push_back(tensor.meta);
  return layout;
}

}  // namespace ckpt::session
