#include "libckpt/session/describe.h"

#include <algorithm>
#include <charconv>
#include <set>

namespace ckpt::session {
namespace {

std::string Field(std::string_view name, std::string_view json) {
  return "\"" + std::string(name) + "\":" + std::string(json);
}
std::string Field(std::string_view name, uint64_t number) {
  return Field(name, std::to_string(number));
}

std::string SaveJson(const Save& save) {
  const Save::Progress progress = save.progress();
  const Status error = save.error();
  std::string json = "{" + Field("checkpoint", Quoted(save.id().ToString())) + "," +
                     Field("step", std::to_string(save.id().step.value())) + "," +
                     Field("level", Quoted(LevelName(progress.level))) + "," +
                     Field("bytes_done", progress.bytes_done) + "," +
                     Field("bytes_total", progress.bytes_total);
  if (!error.ok()) json += "," + Field("error", Quoted(error.ToString()));
  return json + "}";
}

std::string TensorJson(const format::TensorMeta& tensor, Rank rank) {
  const bool per_rank = tensor.placement == format::Placement::kPerRank;
  std::string shape;
  for (const uint64_t size : tensor.global_shape)
    shape += (shape.empty() ? "" : ",") + std::to_string(size);
  std::string json = "{" + Field("name", Quoted(tensor.name)) + "," +
                     Field("dtype", Quoted(format::DTypeName(tensor.dtype))) + "," +
                     Field("shape", "[" + shape + "]");
  if (per_rank) json += "," + Field("rank", rank.value());
  if (!tensor.tied_to.empty()) json += "," + Field("tied_to", Quoted(tensor.tied_to));
  return json + "}";
}

template <typename Item>
std::string NamesJson(const std::vector<Item>& items) {
  std::string list;
  for (const Item& item : items) list += (list.empty() ? "" : ",") + Quoted(item.name);
  return "[" + list + "]";
}

}  // namespace

std::string Quoted(std::string_view text) { return format::Value{std::string(text)}.ToJson(); }

std::string ToJson(const Description& description) {
  std::string saves;
  for (auto save = description.saves.rbegin(); save != description.saves.rend(); ++save)
    saves += (saves.empty() ? "" : ",") + SaveJson(**save);
  return "{" + Field("job", Quoted(description.job)) + "," +
         Field("job_id", Quoted(description.job_id.ToString())) + "," +
         Field("rank", description.rank.value()) + "," + Field("world_size", description.world) +
         "," + Field("epoch", description.epoch) + "," + Field("mode", Quoted(description.mode)) +
         "," + Field("store", Quoted(description.store)) + "," +
         Field("boundary", description.boundary) + "," +
         Field("capabilities", description.capabilities_json) + "," +
         Field("saves", "[" + saves + "]") + "}";
}

std::string ToJson(const std::vector<storage::CheckpointInfo>& checkpoints) {
  std::string list;
  for (const storage::CheckpointInfo& info : checkpoints) {
    if (!info.visible) continue;
    list += (list.empty() ? "{" : ",{") + Field("name", Quoted(info.id.ToString())) + "," +
            Field("step", std::to_string(info.id.step.value())) + "," +
            Field("epoch", info.id.epoch.value()) + "," +
            Field("attempt", info.id.attempt.value()) + "}";
  }
  return "[" + list + "]";
}

std::string ToJson(const AttemptId& id, const std::vector<format::RankLayout>& layouts,
                   const format::RankValues& values) {
  std::set<std::string_view> seen;
  std::string tensors;
  for (const format::RankLayout& layout : layouts) {
    for (const format::TensorMeta& tensor : layout.tensors) {
      const bool per_rank = tensor.placement == format::Placement::kPerRank;
      if (!seen.insert(tensor.name).second && !per_rank) continue;
      tensors += (tensors.empty() ? "" : ",") + TensorJson(tensor, layout.rank);
    }
  }
  return "{" + Field("name", Quoted(id.ToString())) + "," +
         Field("step", std::to_string(id.step.value())) + "," +
         Field("world_size", layouts.size()) + "," + Field("tensors", "[" + tensors + "]") + "," +
         Field("values", NamesJson(values.values)) + "," + Field("blobs", NamesJson(values.blobs)) +
         "}";
}

Result<AttemptId> FindStep(storage::Store* store, const std::string& selector) {
  constexpr std::string_view kPrefix = "step:";
  int64_t step = 0;
  const char* const end = selector.data() + selector.size();
  const bool prefixed = selector.compare(0, kPrefix.size(), kPrefix) == 0;
  const auto parsed = prefixed
                          ? std::from_chars(selector.data() + kPrefix.size(), end, step)
                          : std::from_chars_result{selector.data(), std::errc::invalid_argument};
  if (parsed.ec != std::errc() || parsed.ptr != end)
    return InvalidArgument("no selector of a checkpoint: '" + selector +
                           "'; use latest, step:N, or a name like s100.e1.a1");
  CKPT_ASSIGN_OR_RETURN(const std::vector<storage::CheckpointInfo> all, store->List());
  const auto found = std::find_if(all.begin(), all.end(), [&](const storage::CheckpointInfo& c) {
    return c.visible && c.id.step == Step(step);
  });
  if (found == all.end())
    return NotFound(store->Describe() + " holds no checkpoint of step " + std::to_string(step));
  return found->id;
}

}  // namespace ckpt::session
