#include "libckpt/session/gang_session.h"

#include <algorithm>
#include <cstring>

#include "libckpt/base/guard.h"
#include "libckpt/base/log.h"
#include "libckpt/session/cut.h"
#include "libckpt/session/describe.h"

namespace ckpt::session {
namespace {

constexpr Nanos kConnectMax = std::chrono::seconds(30);
// For the gang's answer to STAGING_GET: the slowest rank has to come to the same boundary.
constexpr Nanos kGrantMax = std::chrono::minutes(5);
// For the first slots: all ranks must have called track, and the memory is allocated.
constexpr Nanos kSlotsMax = std::chrono::minutes(5);
constexpr Nanos kMapMax = std::chrono::seconds(60);
constexpr Nanos kFinishMax = std::chrono::seconds(10);
constexpr size_t kAttemptsRememberedMax = 64;

class GangKeyValue : public comm::KeyValue {
 public:
  GangKeyValue(Link* link, std::string scope) : link_(link), scope_(std::move(scope)) {}
  Status Set(const std::string& key, const std::string& value) override {
    return link_->Post(wire::KvSet{scope_, key, value});
  }
  Result<std::string> Wait(const std::string& key, const Deadline& deadline) override {
    CKPT_ASSIGN_OR_RETURN(Link::Incoming answer,
                          link_->Call(wire::KvWait{scope_, key, deadline.at_ns()}, deadline));
    auto* value = std::get_if<wire::KvValue>(&answer.frame.body);
    if (value == nullptr) return DataLoss("ckpt-run answered KV_WAIT with another frame");
    return std::move(value->value);
  }

 private:
  Link* link_;
  const std::string scope_;
};

// `down`: whether communicators can go down in order.
std::vector<wire::Capability> Capabilities(const Status& down) {
  return {{"checkpoint", true, ""},
          {"suspend", down.ok(), down.message()},
          {"migrate", down.ok(), down.message()},
          {"park", false, "no arena under the tensors of this program"},
          {"transparent", false, "the program links libckpt; it needs no CRIU"}};
}

}  // namespace

// ---- life

Result<std::shared_ptr<Session>> OpenGangSession(Options options, Parts parts) {
  auto session = std::make_shared<GangSession>(std::move(options), std::move(parts));
  CKPT_RETURN_IF_ERROR(session->Start());
  return std::shared_ptr<Session>(session);
}

GangSession::GangSession(Options options, Parts parts)
    : Session(std::move(options), std::move(parts)) {}

GangSession::~GangSession() {
  if (InForkedChild()) {  // the threads are not here to be joined
    link_.release();
    copies_.release();
    bell_.release();
    for (os::Mapping& mapping : pages_) mapping.Leak();
    return;
  }
  copies_.reset();
  if (link_ != nullptr) link_->Stop();
  warmer_.reset();
}

Status GangSession::Start() {
  if (options_.signals != 0) {
    CKPT_ASSIGN_OR_RETURN(bell_, os::SignalBell::Install(options_.signals, &attention_, kSignal));
  }
  Link::Config config;
  config.socket = options_.run_socket;
  config.hello.token = options_.token;
  config.hello.job = options_.job;
  config.hello.rank = options_.rank.value();
  config.hello.world = options_.world;
  config.hello.methods = Capabilities(OkStatus());
  config.bell = bell_.get();
  Link::Handlers handlers;
  handlers.on_frame = [this](Link::Incoming incoming) { OnFrame(std::move(incoming)); };
  handlers.on_lost = [this] { OnLost(); };
  handlers.on_back = [this](const wire::Welcome& welcome, os::Memfd page) {
    return OnBack(welcome, std::move(page));
  };
  handlers.on_up = [this] { OnUp(); };
  handlers.on_sample = [this] { OnSample(); };
  handlers.on_signal = [this](int signal) { OnSignal(signal); };
  link_ = std::make_unique<Link>(std::move(config), std::move(handlers));

  Result<Link::Hello> hello = link_->Connect(Deadline("HELLO to ckpt-run", kConnectMax));
  if (!hello.ok()) {
    // Whatever the kernel calls it, to the program it means one thing: CKPT_RUN is of no use.
    const Status& why = hello.status();
    if (why.code() == Code::kFailedPrecondition || why.code() == Code::kInvalidArgument) {
      return Status(why.code(), Who() + ": the ckpt-run at " + options_.run_socket +
                                    " refused this rank: " + why.message());
    }
    const bool absent = why.code() == Code::kNotFound || why.code() == Code::kPermissionDenied;
    return Status(absent ? Code::kUnavailable : why.code(),
                  Who() + ": CKPT_RUN is set, but no ckpt-run answers at " + options_.run_socket +
                      ": " + why.message() + "; start the program by ckpt-run, or unset CKPT_RUN");
  }
  welcome_ = hello->welcome;
  CKPT_RETURN_IF_ERROR(UsePage(std::move(hello->page)).Annotate(Who() + ": control page"));
  return link_->StartThread();
}

Status GangSession::UsePage(os::Memfd page) {
  CKPT_ASSIGN_OR_RETURN(os::Mapping mapping, page.Map({.writable = true, .populate = true}));
  auto* control = reinterpret_cast<wire::ControlPage*>(mapping.data());
  CKPT_RETURN_IF_ERROR(wire::CheckPage(*control));
  if (control->epoch != welcome_.epoch || control->rank != options_.rank.value() ||
      control->world != options_.world)
    return FailedPrecondition("the control page is of epoch " + std::to_string(control->epoch) +
                              ", rank " + std::to_string(control->rank) + " of " +
                              std::to_string(control->world));
  {
    MutexLock lock(mutex_);
    page_inode_ = page.inode();
  }
  pages_.push_back(std::move(mapping));
  SetPage(control);
  return OkStatus();
}

// A ckpt-run that came back with another page: it starts where this rank is.
void GangSession::AdoptPage() {
  std::optional<os::Memfd> next;
  {
    MutexLock lock(mutex_);
    next = std::move(next_page_);
    next_page_.reset();
  }
  if (!next) return;
  wire::ControlPage* const old = page();
  if (const Status status = UsePage(std::move(*next)); !status.ok()) {
    LogError(Who() + ": the page of the ckpt-run that came back is unusable: " + status.message());
    return;
  }
  page()->user_step.store(old->user_step.load());
  page()->phase.store(old->phase.load());
  page()->word.fetch_add(boundary_ << 32);
}

// ---- the watch thread

void GangSession::OnFrame(Link::Incoming incoming) {
  wire::Body& body = incoming.frame.body;
  if (const auto* staging = std::get_if<wire::Staging>(&body)) {
    if (const Status status = MapSlot(*staging, std::move(incoming.fds)); !status.ok())
      LogError(Who() + ": staging slot " + std::to_string(staging->slot) + ": " + status.message());
  } else if (const auto* released = std::get_if<wire::BarrierReleased>(&body)) {
    MutexLock lock(mutex_);
    released_ = *released;
    told_.NotifyAll();
  } else if (auto* back = std::get_if<wire::RolledBack>(&body)) {
    MutexLock lock(mutex_);
    back_ = std::move(*back);
    told_.NotifyAll();
  } else if (const auto* state = std::get_if<wire::SaveState>(&body)) {
    OnSaveState(*state);
  } else if (const auto* failed = std::get_if<wire::Failed>(&body)) {
    // LAYOUT is answered only if it leads nowhere.
    LogWarning(Who() + ": saves and suspends will be refused: " + failed->message);
    MutexLock lock(mutex_);
    layout_refused_ = Status(static_cast<Code>(failed->code), failed->message);
    told_.NotifyAll();
  } else {
    LogWarning(Who() + ": ckpt-run sent " + std::string(wire::FrameName(body)) +
               " out of turn; ignored");
  }
}

Status GangSession::MapSlot(const wire::Staging& staging, std::vector<os::UniqueFd> fds) {
  if (staging.slot >= kStagingSlotsMax || fds.size() != 1)
    return DataLoss("a STAGING frame with slot " + std::to_string(staging.slot) + " and " +
                    std::to_string(fds.size()) + " descriptors");
  CKPT_ASSIGN_OR_RETURN(const os::Memfd memory,
                        os::Memfd::FromFd(std::move(fds[0]), staging.bytes));
  {  // sent again after a reconnect: it is mapped
    MutexLock lock(mutex_);
    const std::shared_ptr<Slot>& known = slots_[staging.slot];
    if (known != nullptr && known->inode == memory.inode()) return OkStatus();
  }
  auto slot = std::make_shared<Slot>();
  CKPT_ASSIGN_OR_RETURN(slot->memory, memory.Map());
  CKPT_ASSIGN_OR_RETURN(engine::StagingRegion region,
                        engine::StagingRegion::Open(slot->memory.bytes()));
  const engine::StagingIdentity& identity = region.identity();
  if (identity.rank != options_.rank || identity.job != welcome_.job_id)
    return FailedPrecondition("it was formatted for rank " + std::to_string(identity.rank.value()) +
                              " of job " + identity.job.ToString());
  slot->region = std::make_unique<engine::StagingRegion>(std::move(region));
  slot->inode = memory.inode();
  warmer_->Warm(
      slot, slot->memory.bytes(), slot->region->UsedParts(),
      [raw = slot.get(), devices = Devices()] { raw->pinned.Pin(raw->memory.bytes(), devices); });
  MutexLock lock(mutex_);
  if (slot->region->layout().Hash() != layout_frame_.hash)
    return FailedPrecondition("it was formatted for another layout than the tracked one");
  slots_[staging.slot] = std::move(slot);
  layout_refused_ = OkStatus();
  told_.NotifyAll();
  return OkStatus();
}

void GangSession::OnSaveState(const wire::SaveState& state) {
  std::shared_ptr<Save> save;
  {
    MutexLock lock(mutex_);
    const auto found = by_attempt_.find(state.attempt);
    if (found == by_attempt_.end()) return;
    save = found->second;
  }
  save->SetBytes(state.bytes_done, state.bytes_total);
  if (state.level > static_cast<uint32_t>(Level::kShared)) return;  // not a level of this version
  save->Advance(static_cast<Level>(state.level));
  if (state.code == 0) return;
  save->Fail(Status(static_cast<Code>(state.code), state.message));
  Raise(kFailure);
}

void GangSession::OnLost() {
  lost_ns_.store(BoottimeNs());
  std::vector<std::shared_ptr<Save>> open = UnendedSaves();
  for (const std::shared_ptr<Save>& save : open)
    save->Fail(Unavailable("ckpt-run went away while it was " +
                           std::string(LevelName(save->progress().level)))
                   .MaybeApplied());
  if (!open.empty()) Raise(kFailure);
  MutexLock lock(mutex_);
  told_.NotifyAll();
}

Status GangSession::OnBack(const wire::Welcome& welcome, os::Memfd page) {
  if (welcome.epoch != welcome_.epoch || welcome.job_id != welcome_.job_id)
    return FailedPrecondition("it runs epoch " + std::to_string(welcome.epoch) +
                              ", this rank is of epoch " + std::to_string(welcome_.epoch));
  MutexLock lock(mutex_);
  if (page.inode() == page_inode_) return OkStatus();
  next_page_ = std::move(page);
  Raise(kPage);
  return OkStatus();
}

// A new ckpt-run knows nothing of this rank yet.
void GangSession::OnUp() {
  lost_ns_.store(0);
  wire::Layout frame;
  int fd = -1;
  {
    MutexLock lock(mutex_);
    frame = layout_frame_;
    fd = layout_fd_.fd();
  }
  if (fd >= 0) link_->Request(frame, {fd}).IgnoreError();  // lost again: the next one is told
  if (unsent_signal_ != 0) OnSignal(std::exchange(unsent_signal_, 0));
}

void GangSession::OnSample() {
  wire::ControlPage* const control = page();
  const int64_t now_ns = BoottimeNs();
  const uint32_t boundary = wire::LoadWord(*control).boundary;
  control->alive_boottime_ns.store(now_ns, std::memory_order_relaxed);
  if (boundary == sampled_boundary_) return;
  if (sampled_at_ns_ != 0)
    control->step_time_ns.store((now_ns - sampled_at_ns_) / int64_t{boundary - sampled_boundary_},
                                std::memory_order_relaxed);
  control->progress_boottime_ns.store(now_ns, std::memory_order_relaxed);
  sampled_boundary_ = boundary;
  sampled_at_ns_ = now_ns;
}

void GangSession::OnSignal(int signal) {
  page()->signal.store(static_cast<uint32_t>(signal));
  page()->signal_count.fetch_add(1);
  if (!link_->Post(wire::Notice{static_cast<uint32_t>(signal)}).ok()) unsent_signal_ = signal;
}

// ---- what is tracked

Status GangSession::DoTrack(const format::RankLayout& layout) {
  CKPT_RETURN_IF_ERROR(DoFence());
  const std::string bytes = layout.Encode();
  CKPT_ASSIGN_OR_RETURN(os::Memfd memory, os::Memfd::Create("ckpt-layout", bytes.size()));
  CKPT_ASSIGN_OR_RETURN(const os::Mapping mapping, memory.Map());
  std::memcpy(mapping.data(), bytes.data(), bytes.size());
  const wire::Layout frame{bytes.size(), layout.Hash()};
  const int fd = memory.fd();
  {
    MutexLock lock(mutex_);
    layout_fd_ = std::move(memory);
    layout_frame_ = frame;
    for (std::shared_ptr<Slot>& slot : slots_) slot.reset();
    layout_refused_ = OkStatus();
  }
  return link_->Request(frame, {fd});
}

// ---- saves

// ckpt-run has sent the slot before it grants it or sets a cut, but a large one takes a while to
// map.
Result<std::shared_ptr<GangSession::Slot>> GangSession::SlotOf(const Grant& grant) {
  if (grant.slot >= kStagingSlotsMax)
    return DataLoss(Who() + ": there is no staging slot " + std::to_string(grant.slot));
  const Deadline deadline("mapping a staging slot", kMapMax);
  MutexLock lock(mutex_);
  while (slots_[grant.slot] == nullptr) {
    if (!link_->up() || !layout_refused_.ok() || deadline.Expired())
      return FailedPrecondition(Who() + ": staging slot " + std::to_string(grant.slot) +
                                " was never sent by ckpt-run");
    told_.WaitUntil(mutex_, deadline);
  }
  return slots_[grant.slot];
}

// ckpt-run sends slots once all ranks have tracked; the first save may come before that.
Status GangSession::AwaitSlots() {
  const Deadline deadline("staging slots from ckpt-run", kSlotsMax);
  MutexLock lock(mutex_);
  while (slots_[0] == nullptr) {
    if (!layout_refused_.ok()) return layout_refused_;
    if (!link_->up()) return Unavailable("ckpt-run is not in reach; training goes on");
    if (deadline.Expired()) return deadline.Exceeded();
    told_.WaitUntil(mutex_, deadline);
  }
  return OkStatus();
}

Result<GangSession::Filling> GangSession::Fill(const Grant& grant, int64_t step) {
  Filling filling;
  CKPT_ASSIGN_OR_RETURN(filling.slot, SlotOf(grant));
  filling.info.generation = grant.generation;
  filling.info.id = AttemptId{Epoch(welcome_.epoch), Step(step), Attempt(grant.attempt)};
  filling.info.boundary = static_cast<uint32_t>(boundary_);
  filling.info.full = grant.full;
  wire::ControlPage* const control = page();
  const engine::StagingRegion& region = *filling.slot->region;
  const uint64_t total = grant.full ? region.plan().StageBytes(region.layout())
                                    : region.plan().WriteBytes(region.layout());
  control->staged_bytes.store(0, std::memory_order_relaxed);
  control->total_bytes.store(total, std::memory_order_relaxed);
  filling.progress = [control](uint64_t done) {
    control->staged_bytes.store(done, std::memory_order_relaxed);
  };
  return filling;
}

// Threads: loop or copier.
Status GangSession::Filled(const Status& status, const AttemptId& id) {
  page()->error.store(static_cast<uint32_t>(status.code()), std::memory_order_relaxed);
  Status said = status;
  return std::move(said).Annotate("staging " + id.ToString());
}

Status GangSession::StageNow(const Grant& grant, int64_t step) {
  CKPT_RETURN_IF_ERROR(PrepareStage());
  CKPT_ASSIGN_OR_RETURN(const Filling filling, Fill(grant, step));
  return Filled(FillRegion(filling.slot->region.get(), filling.info, filling.progress),
                filling.info.id);
}

// The copy is made behind the loop; `save` hears what becomes of it.
Status GangSession::StageBehind(const Grant& grant, const std::shared_ptr<Save>& save,
                                const BackgroundCopies::Changed& changed) {
  CKPT_RETURN_IF_ERROR(PrepareStage());
  CKPT_ASSIGN_OR_RETURN(const Filling filling, Fill(grant, save->id().step.value()));
  const auto sealed = [this, save, grant, slot = filling.slot](const Status& status) {
    EndOverlapped(save, grant, Filled(status, save->id()));
  };
  return Filled(
      FillBehind(filling.slot->region.get(), filling.info, filling.progress, save, changed, sealed),
      filling.info.id);
}

Status GangSession::Sealed(const Grant& grant, int64_t step) {
  return link_->Post(wire::Sealed{grant.generation, grant.slot, grant.attempt, step});
}

void GangSession::StageFailed(const Grant& grant, const Status& why) {
  link_
      ->Post(wire::StageFailed{grant.generation, grant.attempt, static_cast<uint32_t>(why.code()),
                               why.message()})
      .IgnoreError();  // without ckpt-run there is nobody to tell
}

Result<std::shared_ptr<Save>> GangSession::DoBeginSave(const SaveRequest& request) {
  if (save_boundary_ != boundary_) saves_here_ = 0;
  save_boundary_ = boundary_;
  // A rank that cannot save asks all the same: the others' grant is not to wait for it.
  Status fit = DoFence();
  if (fit.ok() && state_ == nullptr) fit = PrepareStage();
  if (fit.ok()) fit = AwaitSlots().Annotate(Who() + ": save refused");
  wire::StagingGet get;
  get.boundary = static_cast<uint32_t>(boundary_);
  get.sequence = ++saves_here_;
  get.wait = request.slot_timeout > Nanos(0);
  const Deadline deadline("the gang's grant of a staging slot", request.slot_timeout + kGrantMax);
  get.deadline_boottime_ns = get.wait ? BoottimeNs() + request.slot_timeout.count() : 0;
  Result<Link::Incoming> answer = link_->Call(get, deadline);
  if (!answer.ok() && fit.code() == Code::kDeadlineExceeded) {
    return Status(fit.code(), fit.message() + "; " + answer.status().message());
  }
  if (!answer.ok() && !fit.ok()) return fit;
  if (!answer.ok()) return std::move(answer).status().Annotate(Who() + ": save refused");
  const auto* granted = std::get_if<wire::Staging>(&answer->frame.body);
  if (granted == nullptr) return DataLoss("ckpt-run answered STAGING_GET with another frame");
  const Grant grant{granted->slot, granted->generation, granted->attempt, false};
  if (!fit.ok()) {
    StageFailed(grant, fit);
    return fit;
  }

  auto save = std::make_shared<Save>(
      AttemptId{Epoch(welcome_.epoch), Step(request.step), Attempt(grant.attempt)});
  Remember(save);
  {
    MutexLock lock(mutex_);
    by_attempt_[grant.attempt] = save;
    if (by_attempt_.size() > kAttemptsRememberedMax) by_attempt_.erase(by_attempt_.begin());
  }
  const Status status =
      request.overlap ? StageBehind(grant, save, request.changed) : StageNow(grant, request.step);
  if (status.ok() && request.overlap) return save;
  EndOverlapped(save, grant, status);
  if (const Status failed = save->error(); !failed.ok()) {
    save->TakeFailureReport();
    return failed;
  }
  return save;
}

// The copy is complete, or is not: say so. Threads: loop or copier.
void GangSession::EndOverlapped(const std::shared_ptr<Save>& save, const Grant& grant,
                                const Status& filled) {
  Status status = filled;
  if (status.ok()) {
    save->Advance(Level::kStaged);
    status = Sealed(grant, save->id().step.value());
    if (status.ok()) status = link_->Post(wire::SaveQuery{grant.attempt});
  } else {
    StageFailed(grant, status);
  }
  if (status.ok()) return;
  save->Fail(status);
  Raise(kFailure);
}

Status GangSession::CancelSave(Save* save) {
  if (save->ended()) return OkStatus();
  return Unimplemented(Who() + ": a save under ckpt-run is the gang's; no one rank can cancel " +
                       save->id().ToString() +
                       ". It goes on until it is durable, and stands in the way of no suspend");
}

Status GangSession::DoFence() {
  CKPT_RETURN_IF_ERROR(FinishCopies().Annotate(Who()));
  for (const std::shared_ptr<Save>& save : RecentSaves()) {
    if (save->progress().level == Level::kNone && save->TakeFailureReport())
      return save->error().Annotate(Who());
  }
  return OkStatus();
}

// ---- the end

Status GangSession::DoFinish() {
  CKPT_RETURN_IF_ERROR(DoFence());
  const Deadline deadline("the end of a stop that was taken back", kFinishMax);
  if (!FinishWord(page(), deadline) && link_->up()) return deadline.Exceeded().Annotate(Who());
  if (const Status told = link_->Post(wire::Finished{}); !told.ok())
    LogWarning(Who() + ": finished, but ckpt-run cannot be told: " + told.message());
  return OkStatus();
}

Status GangSession::DoClose(const Deadline& deadline) {
  Status status = DoFence();
  std::string left;
  for (const std::shared_ptr<Save>& save : UnendedSaves()) {
    // After STOP ckpt-run drains alone: the rank is to be gone.
    if (stopped_ || save->AwaitEnd(deadline)) continue;
    left += (left.empty() ? "" : ", ") + save->id().ToString();
  }
  if (!left.empty())
    status = DeadlineExceeded("closed before all saves were durable; ckpt-run goes on with " + left)
                 .MaybeApplied();
  if (!stopped_ && comms_->size() > 0)
    comms_->TakeDown(Deadline("taking down communicators", kCommDownMax)).IgnoreError();
  link_->Post(wire::Bye{}).IgnoreError();
  copies_.reset();
  link_->Stop();
  warmer_.reset();
  bell_.reset();
  if (status.ok() && !stopped_) status = TakeBackgroundFailure();
  return std::move(status).Annotate(Who() + ": close");
}

// ---- the rest

std::string GangSession::CommScope() {
  return welcome_.job_id.ToString() + "/e" + std::to_string(welcome_.epoch);
}

std::unique_ptr<comm::KeyValue> GangSession::MakeKeyValue(const std::string& scope) {
  return std::make_unique<GangKeyValue>(link_.get(), scope);
}

Session::Identity GangSession::DescribeMode() {
  Identity identity;
  identity.mode = link_->up() ? "ckpt-run" : "ckpt-run (out of reach)";
  identity.epoch = welcome_.epoch;
  identity.job_id = welcome_.job_id;
  for (const wire::Capability& method : Capabilities(comms_->MayTakeDown())) {
    identity.capabilities_json += (identity.capabilities_json.empty() ? "[" : ",") +
                                  std::string("{\"method\":") + Quoted(method.method) +
                                  ",\"yes\":" + (method.yes ? "true" : "false") +
                                  (method.yes ? "" : ",\"reason\":" + Quoted(method.reason)) + "}";
  }
  identity.capabilities_json += "]";
  return identity;
}

}  // namespace ckpt::session
