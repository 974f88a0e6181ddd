#include "libckpt/session/reader.h"

#include <algorithm>

#include "libckpt/base/clock.h"
#include "libckpt/base/log.h"
#include "libckpt/base/mutex.h"
#include "libckpt/base/progress.h"
#include "libckpt/session/describe.h"

namespace ckpt::session {
namespace {

constexpr int64_t kSayEveryNs = 10'000'000'000;

// A load that takes long says how far it is, how fast and how long still, every ten seconds.
class LongLoad {
 public:
  explicit LongLoad(std::string what) : what_(std::move(what)) {}
  void At(uint64_t done, uint64_t total) {
    const int64_t now_ns = BoottimeNs();
    std::string text;
    {
      MutexLock lock(mutex_);
      if (now_ns < sampled_ns_ + kSayEveryNs / 50) return;
      sampled_ns_ = now_ns;
      meter_.Add(done, now_ns);
      if (now_ns < said_ns_ + kSayEveryNs) return;
      said_ns_ = now_ns;
      text = DescribeProgress(what_, done, total, meter_.BytesPerSecond());
    }
    LogInfo(text);
  }

 private:
  const std::string what_;
  Mutex mutex_;
  RateMeter meter_ CKPT_GUARDED_BY(mutex_);
  int64_t sampled_ns_ CKPT_GUARDED_BY(mutex_) = 0;
  int64_t said_ns_ CKPT_GUARDED_BY(mutex_) = BoottimeNs();
};

// Per-rank state under another number of ranks needs a rule that nobody has given.
Status CheckWorld(const engine::CheckpointReader& reader, const format::RankValues& values,
                  uint32_t world) {
  if (world == 0 || reader.world() == world) return OkStatus();
  for (const format::NamedValue& value : values.values) {
    if (value.scope == format::Scope::kPerRank)
      return FailedPrecondition("checkpoint " + reader.id().ToString() + " was written by " +
                                std::to_string(reader.world()) + " ranks, this job has " +
                                std::to_string(world) + ", and value '" + value.name +
                                "' is one for each rank; start with as many ranks as before");
  }
  return OkStatus();
}

}  // namespace

Result<const format::RankValues*> Reader::Values() {
  if (values_ == nullptr) {
    // A rank that the checkpoint does not know gets what all ranks share.
    const bool known = rank_.value() < reader_->world();
    CKPT_ASSIGN_OR_RETURN(format::RankValues values, reader_->Values(known ? rank_ : Rank(0)));
    CKPT_RETURN_IF_ERROR(CheckWorld(*reader_, values, world_));
    values_ = std::make_unique<format::RankValues>(std::move(values));
  }
  return const_cast<const format::RankValues*>(values_.get());
}

Status Reader::LoadQuietly(State* state) {
  CKPT_ASSIGN_OR_RETURN(const format::RankValues* values, Values());
  engine::LoadOptions options;
  options.world = world_;
  LongLoad load("checkpoint " + id().ToString() + ": restored");
  options.progress = [&](uint64_t done, uint64_t total) {
    load.At(done, total);
    if (progress_) progress_(done, total);
  };
  CKPT_RETURN_IF_ERROR(reader_->Load(rank_, state->tensors(), options));
  state->ReplaceValues(*values);
  return OkStatus();
}

Status Reader::Load(State* state) {
  Status status = LoadQuietly(state).Annotate("loading checkpoint " + id().ToString() +
                                              " into rank " + std::to_string(rank_.value()));
  if (loaded_) loaded_(status, id());
  return status;
}

Status Reader::LoadPart(const State& state) {
  engine::LoadOptions options;
  options.world = world_;
  options.part = true;
  return reader_->Load(rank_, state.tensors(), options)
      .Annotate("loading a part of checkpoint " + id().ToString());
}

Result<std::string> Reader::Contents() {
  CKPT_ASSIGN_OR_RETURN(const format::RankValues* values, Values());
  return ToJson(id(), reader_->layouts(), *values);
}

Result<const std::string*> Reader::ValueJson(const std::string& name) {
  CKPT_ASSIGN_OR_RETURN(const format::RankValues* values, Values());
  const auto found =
      std::find_if(values->values.begin(), values->values.end(),
                   [&](const format::NamedValue& value) { return value.name == name; });
  if (found == values->values.end())
    return NotFound("checkpoint " + id().ToString() + " has no value '" + name + "'");
  std::string& json = json_[name];
  if (json.empty()) json = found->value.ToJson();
  return const_cast<const std::string*>(&json);
}

Result<const std::string*> Reader::Blob(const std::string& name) {
  CKPT_ASSIGN_OR_RETURN(const format::RankValues* values, Values());
  const auto found = std::find_if(values->blobs.begin(), values->blobs.end(),
                                  [&](const format::NamedBlob& blob) { return blob.name == name; });
  if (found == values->blobs.end())
    return NotFound("checkpoint " + id().ToString() + " has no blob '" + name + "'");
  return &found->bytes;
}

Result<std::unique_ptr<engine::CheckpointReader>> OpenSelected(storage::Store* store,
                                                               const std::string& selector,
                                                               const std::string& who) {
  if (selector.empty() || selector == "latest") {
    std::vector<std::string> skipped;
    auto opened = engine::OpenNewest(store, &skipped);
    for (const std::string& why : skipped) LogWarning(who + ": skipped a checkpoint: " + why);
    return opened;
  }
  if (Result<AttemptId> id = AttemptId::Parse(selector); id.ok())
    return engine::OpenCheckpoint(store, *id);
  CKPT_ASSIGN_OR_RETURN(const AttemptId of_step, FindStep(store, selector));
  return engine::OpenCheckpoint(store, of_step);
}

}  // namespace ckpt::session
