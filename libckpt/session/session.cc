#include "libckpt/session/session.h"

#include <pthread.h>

#include <algorithm>

#include "libckpt/base/guard.h"
#include "libckpt/base/log.h"
#include "libckpt/session/at_exit.h"
#include "libckpt/session/describe.h"
#include "libckpt/session/gang_session.h"
#include "libckpt/session/standalone.h"

namespace ckpt::session {
namespace internal {
std::atomic<uint32_t> g_fork_count{0};
}  // namespace internal

namespace {

constexpr size_t kSavesRememberedMax = 16;
constexpr uint64_t kCopyBytesPerSecond = uint64_t{64} << 20;  // a bad day
constexpr uint64_t kStoreBytesPerSecond = uint64_t{4} << 20;  // a very bad day

// Once in a process, at the first open.
Status WatchForks() {
  static const int error = pthread_atfork(
      nullptr, nullptr, [] { internal::g_fork_count.fetch_add(1, std::memory_order_relaxed); });
  return error == 0 ? OkStatus() : ErrnoStatus(error, "pthread_atfork");
}

Nanos BytesTime(uint64_t bytes, uint64_t bytes_per_second) {
  return std::chrono::seconds(bytes / bytes_per_second);
}

}  // namespace

Deadline CopyDeadline(uint64_t bytes) {
  return Deadline("copying the state into staging memory",
                  std::chrono::seconds(60) + BytesTime(bytes, kCopyBytesPerSecond));
}

Deadline StoreDeadline(std::string_view name, uint64_t bytes) {
  return Deadline(name, std::chrono::minutes(2) + BytesTime(bytes, kStoreBytesPerSecond));
}

// One call at a time on the loop's side.
class Session::CallGuard {
 public:
  explicit CallGuard(Session* session)
      : session_(session), mine_(!session->in_call_.exchange(true)) {}
  ~CallGuard() {
    if (mine_) session_->in_call_.store(false);
  }
  bool mine() const { return mine_; }

 private:
  Session* session_;
  const bool mine_;
};

#define CKPT_ENTER(call)                         \
  CallGuard guard(this);                         \
  if (!guard.mine()) return InAnotherCall(call); \
  CKPT_RETURN_IF_ERROR(Usable(call))

Result<std::shared_ptr<Session>> Session::Open(Options options, Parts parts) {
  CKPT_RETURN_IF_ERROR(WatchForks());
  CKPT_RETURN_IF_ERROR(CheckName("job", options.job));
  if (options.world == 0 || options.world > kRanksMax)
    return InvalidArgument("a world of " + std::to_string(options.world) + " ranks; 1 to " +
                           std::to_string(kRanksMax) + " are possible");
  if (options.rank.value() >= options.world)
    return InvalidArgument("rank " + std::to_string(options.rank.value()) + " in a world of " +
                           std::to_string(options.world) + " ranks");
  Result<std::shared_ptr<Session>> session =
      options.run_socket.empty() ? OpenStandalone(std::move(options), std::move(parts))
                                 : OpenGangSession(std::move(options), std::move(parts));
  if (session.ok()) TellAtExit(*session);
  return session;
}

Session::Session(Options options, Parts parts)
    : options_(std::move(options)),
      parts_(std::move(parts)),
      comms_(std::make_unique<Communicators>(
          [this](const std::string& scope) { return MakeKeyValue(scope); })),
      next_save_(options_.save_every),
      fork_count_(internal::g_fork_count.load()) {}

Session::~Session() = default;

std::string Session::Who() const {
  return "rank " + std::to_string(options_.rank.value()) + " of job '" + options_.job + "'";
}

Status Session::Forked() const {
  return FailedPrecondition(Who() +
                            ": this process is a fork of the one that opened the session; "
                            "handles work in the parent only");
}

Status Session::Break(std::string why) {
  if (!breaking_.exchange(true)) {
    broken_why_ = why;
    broken_.store(true);
  }
  Raise(kUnusable);
  return FailedPrecondition(Who() + ": the session is out of use: " + std::move(why));
}

// Turned away before it touches anything, so the session stays whole.
Status Session::InAnotherCall(std::string_view call) const {
  return FailedPrecondition(Who() + ": " + std::string(call) +
                            " while another call is in progress; one thread at a time, and not "
                            "from a callback");
}

Status Session::Usable(std::string_view call) {
  if (InForkedChild()) return Forked();
  if (closed_) return FailedPrecondition(Who() + ": " + std::string(call) + " after close");
  if (broken() && call != "close")
    return FailedPrecondition(Who() + ": the session is out of use: " + broken_why_);
  return OkStatus();
}

Status Session::Track(std::shared_ptr<State> state, BeforeStage before_stage) {
  CKPT_ENTER("track");
  format::RankLayout layout = state->Layout(options_.rank);
  {
    std::vector<device::Device*> devices;
    for (const engine::LiveTensor& tensor : state->tensors()) {
      const bool known = std::find(devices.begin(), devices.end(), tensor.device) != devices.end();
      if (!known && !tensor.device->info().host_accessible) devices.push_back(tensor.device);
    }
    MutexLock lock(devices_mutex_);
    devices_ = std::move(devices);
  }
  CKPT_RETURN_IF_ERROR(DoTrack(layout).Annotate(Who() + ": track"));
  layout_ = std::move(layout);
  state_ = std::move(state);
  before_stage_ = std::move(before_stage);
  return OkStatus();
}

std::vector<device::Device*> Session::Devices() const {
  MutexLock lock(devices_mutex_);
  return devices_;
}

Status Session::SlowStep(int64_t user_step, StepResult* out) {
  CKPT_ENTER("step");
  if (finished_) return FailedPrecondition(Who() + ": step after finish");
  if (stopped_) return FailedPrecondition(Who() + ": step after STOP; leave with exit code 75");
  if (TakeAttention(kFirstStep))
    page()->phase.store(static_cast<uint32_t>(wire::RankPhase::kRunning));
  Status status = DoBoundary(user_step, out);
  if (out->kind == RequestKind::kStop) {
    stopped_ = true;
    Raise(kUnusable);
  }
  if (SaveIsDue()) ScheduleNextSave();
  if (status.ok() && out->kind == RequestKind::kNone && TakeAttention(kFailure))
    status = TakeBackgroundFailure();
  return status;
}

Status Session::SetPhase(wire::RankPhase phase, Nanos expected) {
  CKPT_ENTER("phase");
  page()->phase_until_boottime_ns.store(expected > Nanos(0) ? BoottimeNs() + expected.count() : 0);
  page()->phase.store(static_cast<uint32_t>(phase));
  return OkStatus();
}

Status Session::Finish() {
  CKPT_ENTER("finish");
  if (finished_) return OkStatus();
  CKPT_RETURN_IF_ERROR(DoFinish());
  finished_ = true;
  Raise(kUnusable);
  page()->phase.store(static_cast<uint32_t>(wire::RankPhase::kFinished));
  return OkStatus();
}

Result<std::shared_ptr<Save>> Session::BeginSave(const SaveRequest& request) {
  CKPT_ENTER("save_begin");
  return DoBeginSave(request);
}

Status Session::Fence() {
  CKPT_ENTER("save_fence");
  return DoFence();
}

Status Session::WaitSave(Save* save, Level level, const Deadline& deadline) {
  if (InForkedChild()) return Forked();
  // The copier may be starved; what became of the copy, the save says.
  if (OnLoop()) copies_->Finish(options_.copy_threads, deadline).IgnoreError();
  return save->Wait(level, deadline);
}

Result<std::unique_ptr<Reader>> Session::OpenReader(const std::string& selector) {
  CKPT_ENTER("reader_open");
  page()->phase.store(static_cast<uint32_t>(wire::RankPhase::kRestoring));
  Raise(kFirstStep);
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, DoOpenReader(selector));
  reader->OnProgress([control = page()](uint64_t done, uint64_t total) {
    control->total_bytes.store(total, std::memory_order_relaxed);
    control->staged_bytes.store(done, std::memory_order_relaxed);
  });
  return reader;
}

Result<std::vector<storage::CheckpointInfo>> Session::ListCheckpoints() {
  CKPT_ENTER("reader_list");
  CKPT_ASSIGN_OR_RETURN(storage::Store * store, StoreForReading());
  return store->List();
}

Result<std::unique_ptr<Reader>> Session::OpenFromStore(storage::Store* store,
                                                       const std::string& selector,
                                                       LoadedCallback loaded) {
  Result<std::unique_ptr<engine::CheckpointReader>> opened = OpenSelected(store, selector, Who());
  if (!opened.ok())
    return std::move(opened).status().Annotate(Who() + ": store " + store->Describe());
  return std::make_unique<Reader>(std::move(*opened), std::vector<os::Mapping>(), options_.rank,
                                  options_.world, std::move(loaded));
}

Status Session::RegisterCommunicator(std::shared_ptr<comm::Communicator> communicator) {
  CKPT_ENTER("comm_register");
  return comms_
      ->Register(std::move(communicator), CommScope(),
                 Deadline("bringing up a communicator", kCommUpMax))
      .Annotate(Who());
}

Status Session::UnregisterCommunicator(const comm::Communicator* communicator) {
  CKPT_ENTER("comm_unregister");
  return comms_->Unregister(communicator, Deadline("taking down a communicator", kCommDownMax));
}

Status Session::Close(const Deadline& deadline) {
  if (InForkedChild()) return Forked();
  CKPT_ENTER("close");
  const Status status = DoClose(deadline);
  closed_ = true;
  Raise(kUnusable);
  if (!status.ok()) LogError(status.message());
  return status;
}

void Session::AtExit() {
  if (closed_) return;
  SetLogSink(nullptr);  // the program's own may need what is destroyed by now
  std::vector<std::shared_ptr<Save>> staged;
  for (std::shared_ptr<Save>& save : UnendedSaves()) {
    if (save->progress().level != Level::kNone) {
      staged.push_back(std::move(save));
      continue;
    }
    save->Cancel();
    LogError(Who() + ": the program ended while save " + save->id().ToString() +
             " was still being copied; it is given up. Call save_fence, and close, before the end");
  }
  if (!staged.empty()) DoAtExit(staged);
}

Result<std::string> Session::Describe() {
  CKPT_ENTER("describe");
  Description description;
  const Identity identity = DescribeMode();
  description.mode = identity.mode;
  description.epoch = identity.epoch;
  description.job_id = identity.job_id;
  description.capabilities_json = identity.capabilities_json;
  description.job = options_.job;
  description.store = options_.store;
  description.rank = options_.rank;
  description.world = options_.world;
  description.boundary = boundary_;
  description.saves = Recent(true);
  return ToJson(description);
}

Status Session::PrepareStage() {
  if (state_ == nullptr)
    return FailedPrecondition(Who() + ": nothing is tracked; call track before the first step");
  if (before_stage_) {
    int32_t failed = 0;
    CKPT_RETURN_IF_ERROR(NoThrow(Who() + ": the before_stage callback", [&] {
      failed = before_stage_(state_.get());
      return OkStatus();
    }));
    if (failed != 0)
      return Aborted(Who() + ": the before_stage callback returned " + std::to_string(failed));
  }
  if (state_->tensors().size() != layout_.tensors.size())
    return FailedPrecondition(Who() + ": tensors were added after track; call track again");
  return OkStatus();
}

Status Session::BeginRegion(engine::StagingRegion* region, const engine::GenerationInfo& info) {
  if (region->state() == engine::GenerationState::kFilling)  // an earlier one that failed
    region->set_state(engine::GenerationState::kAborted);
  region->Begin(info);
  if (region->state() != engine::GenerationState::kFilling)
    return FailedPrecondition(Who() + ": the staging slot still holds a generation that is in use");
  return region->SetValues(state_->values());
}

Status Session::FillRegion(engine::StagingRegion* region, const engine::GenerationInfo& info,
                           std::function<void(uint64_t)> progress) {
  return NoThrow("staging", [&]() -> Status {
    CKPT_RETURN_IF_ERROR(BeginRegion(region, info));
    CKPT_RETURN_IF_ERROR(engine::Capture(state_->tensors(), region, progress,
                                         CopyDeadline(region->memory_bytes()),
                                         options_.copy_threads));
    return region->Seal(info.id.step);
  });
}

Status Session::FillBehind(engine::StagingRegion* region, const engine::GenerationInfo& info,
                           std::function<void(uint64_t)> progress, std::shared_ptr<Save> save,
                           BackgroundCopies::Changed changed, BackgroundCopies::Done sealed) {
  return NoThrow("staging", [&]() -> Status {
    CKPT_RETURN_IF_ERROR(BeginRegion(region, info));
    copying_bytes_ = region->memory_bytes();
    // A copy of the list: the program may track anew while this goes on.
    auto tensors = std::make_shared<const std::vector<engine::LiveTensor>>(state_->tensors());
    CKPT_ASSIGN_OR_RETURN(
        std::unique_ptr<engine::SharedCapture> capture,
        engine::SharedCapture::Begin(std::move(tensors), region,
                                     {std::move(progress), [save] { return save->cancelled(); }}));
    return copies_->Begin(
        std::move(capture), std::move(changed),
        [region, step = info.id.step, sealed = std::move(sealed)](const Status& copied) {
          sealed(copied.ok() ? region->Seal(step) : copied);
        });
  });
}

Status Session::FinishCopies() {
  return copies_->Finish(options_.copy_threads, CopyDeadline(copying_bytes_));
}

void Session::Remember(std::shared_ptr<Save> save) {
  MutexLock lock(saves_mutex_);
  saves_.push_back(std::move(save));
  if (saves_.size() <= kSavesRememberedMax) return;
  const auto oldest = std::find_if(saves_.begin(), saves_.end(),
                                   [](const std::shared_ptr<Save>& s) { return s->ended(); });
  if (oldest != saves_.end()) saves_.erase(oldest);
}

std::vector<std::shared_ptr<Save>> Session::Recent(bool ended_too) const {
  MutexLock lock(saves_mutex_);
  std::vector<std::shared_ptr<Save>> some;
  for (const std::shared_ptr<Save>& save : saves_)
    if (ended_too || !save->ended()) some.push_back(save);
  return some;
}

Status Session::TakeBackgroundFailure() {
  for (const std::shared_ptr<Save>& save : Recent(true)) {
    if (!save->TakeFailureReport()) continue;
    Raise(kFailure);  // there may be more: the next step looks again
    return save->error().Annotate(Who() + ": save " + save->id().ToString());
  }
  return OkStatus();
}

}  // namespace ckpt::session
