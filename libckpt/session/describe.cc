#include "libckpt/session/describe.h"

#include <algorithm>
#include <charconv>

#include "libckpt/format/types.h"

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
