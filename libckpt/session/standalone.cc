#include "libckpt/session/standalone.h"

#include <algorithm>
#include <map>

#include "libckpt/base/fault.h"
#include "libckpt/base/guard.h"
#include "libckpt/base/log.h"
#include "libckpt/format/manifest.h"
#include "libckpt/session/describe.h"

namespace ckpt::session {
namespace {

using StageOf = OpenSave::Stage;

constexpr size_t kTasksMax = 8;  // of each background thread: more than there are slots
// After a close that ran out of time: cancelled writers get this long to end.
constexpr Nanos kCancelGrace = std::chrono::seconds(5);
// Between two exchanges while all ranks only wait.
constexpr Nanos kExchangePause = std::chrono::milliseconds(20);

// One rank is its own gang: what one part of it sets, the next one finds.
class LocalKeyValue : public comm::KeyValue {
 public:
  Status Set(const std::string& key, const std::string& value) override {
    pairs_[key] = value;
    return OkStatus();
  }
  Result<std::string> Wait(const std::string& key, const Deadline&) override {
    const auto found = pairs_.find(key);
    if (found != pairs_.end()) return found->second;
    return FailedPrecondition("key '" + key + "' is waited for, and this only rank never set it");
  }

 private:
  std::map<std::string, std::string> pairs_;
};

class NoKeyValue : public comm::KeyValue {
 public:
  Status Set(const std::string&, const std::string&) override { return Missing(); }
  Result<std::string> Wait(const std::string&, const Deadline&) override { return Missing(); }

 private:
  static Status Missing() {
    return Unimplemented(
        "there is no key-value channel between several ranks without ckpt-run; start them as "
        "'ckpt-run --ranks N -- COMMAND', or do not register this communicator: without ckpt-run "
        "no stop takes it down and builds it again");
  }
};

}  // namespace

void OpenSave::Set(Stage next, Status why) {
  MutexLock lock(mutex);
  stage = next;
  if (!why.ok()) error = std::move(why);
  changed.NotifyAll();
}

OpenSave::Stage OpenSave::Get() {
  MutexLock lock(mutex);
  return stage;
}

// ---- what the background threads do
// ---------------------------------------------------------------

Status StandaloneStore::WriteShard(OpenSave* open, const wire::ControlPage* page) {
  CKPT_FAULT("session.standalone.write");
  pace->Begin();
  const Status status = WritePaced(open, page);
  pace->End();
  return status;
}

Status StandaloneStore::WritePaced(OpenSave* open, const wire::ControlPage* page) {
  Save* save = open->save.get();
  engine::WriteOptions options{write};
  options.progress = [save](uint64_t done, uint64_t total) { save->SetBytes(done, total); };
  options.cancelled = [save] { return save->cancelled(); };
  options.pace = engine::PacedBy(
      pace, [page] { return uint64_t{wire::LoadWord(*page).boundary}; }, options.cancelled);
  CKPT_ASSIGN_OR_RETURN(engine::ShardReport report,
                        engine::WriteShard(open->slot->region.get(), store.get(), options));
  MutexLock lock(open->mutex);
  open->report = std::move(report);
  return OkStatus();
}

Status StandaloneStore::Commit(const OpenSave& open,
                               const std::vector<engine::ShardReport>& reports) {
  CKPT_FAULT("session.standalone.commit");
  const AttemptId& id = open.save->id();
  CKPT_ASSIGN_OR_RETURN(const std::string manifest,
                        engine::BuildManifest(job, id, *open.layouts, reports, /*managed=*/false));
  storage::CommitRecord record;
  record.manifest_digest = format::ManifestDigest(manifest);
  record.epoch = Epoch(epoch);
  return store->Commit(id, manifest, record, StoreDeadline("committing a checkpoint", 0));
}

void StandaloneStore::Abort(const AttemptId& id, const Status& why) {
  if (why.outcome() == Outcome::kMaybeApplied) return;
  if (Status status = store->Abort(id); !status.ok())
    LogWarning("the failed attempt " + id.ToString() + " stays in " + store->Describe() +
               " until it is collected: " + status.message());
}

// ---- life
// -----------------------------------------------------------------------------------------

Result<std::shared_ptr<Session>> OpenStandalone(Options options, Parts parts) {
  if (options.world > 1 && !options.allgather)
    return InvalidArgument(
        "a world of " + std::to_string(options.world) +
        " ranks needs ckpt-run ('ckpt-run --ranks N -- COMMAND') or a collective in the options "
        "of the session");
  auto session = std::make_shared<Standalone>(std::move(options), std::move(parts));
  CKPT_RETURN_IF_ERROR(session->Start());
  return std::shared_ptr<Session>(session);
}

Standalone::Standalone(Options options, Parts parts)
    : Session(std::move(options), std::move(parts)),
      own_page_(std::make_unique<wire::ControlPage>()),
      store_(std::make_shared<StandaloneStore>()) {
  wire::InitPage(own_page_.get(), 0, options_.rank.value(), options_.world);
  SetPage(own_page_.get());
}

Standalone::~Standalone() {
  if (InForkedChild()) {  // the threads are not here to be joined
    copies_.release();
    writer_.release();
    bell_.release();
    return;
  }
  copies_.reset();  // before what the end of a copy touches
}

Status Standalone::Start() {
  CKPT_ASSIGN_OR_RETURN(store_->store, parts_.open_store(options_.store));
  store_->write = options_.write;
  store_->retention = std::make_unique<engine::Retention>(store_->store.get(), options_.keep);
  if (several()) {
    agreement_.emplace(options_.allgather, options_.rank, options_.world);
    Raise(kEveryStep);
    CKPT_RETURN_IF_ERROR(AgreeOnStart());
  }
  if (options_.signals != 0) {
    CKPT_ASSIGN_OR_RETURN(bell_, os::SignalBell::Install(options_.signals, &attention_, kSignal));
  }
  writer_ = std::make_unique<os::WorkerPool>("ckpt-write", 1, kTasksMax, os::Priority::kIdle);
  return OkStatus();
}

// Lazily for one rank: a program that neither reads nor saves leaves no epoch behind.
Status Standalone::EnsureEpoch() {
  if (store_->epoch != 0) return OkStatus();
  CKPT_ASSIGN_OR_RETURN(store_->job, store_->store->OpenJob(JobId{}));
  CKPT_ASSIGN_OR_RETURN(const storage::EpochClaim claim,
                        store_->store->ClaimEpoch(Epoch(1), {}, {}));
  store_->epoch = claim.epoch.value();
  return OkStatus();
}

// Rank 0 claims and finds what to resume from; the others take its word for it.
Status Standalone::AgreeOnStart() {
  Status mine;
  ByteWriter writer;
  if (leads()) {
    mine = EnsureEpoch();
    std::vector<std::string> skipped;
    if (mine.ok()) {
      auto newest = engine::OpenNewest(store_->store.get(), &skipped);
      resume_ = newest.ok() ? Result<AttemptId>((*newest)->id()) : newest.status();
    }
    for (const std::string& why : skipped) LogWarning(Who() + ": skipped a checkpoint: " + why);
    const Status& found = mine.ok() ? resume_.status() : mine;
    writer.Put<int32_t>(static_cast<int32_t>(mine.code()))
        .Put<int32_t>(static_cast<int32_t>(found.code()))
        .PutString(found.ok() ? resume_->ToString() : found.message())
        .PutString(store_->job.ToString())
        .Put<uint64_t>(store_->epoch);
  }
  CKPT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        agreement_->GatherAny(Meeting::kOpen, writer.str()));
  if (leads()) return mine;
  ByteReader reader(all[0]);
  const auto failed = static_cast<Code>(reader.Get<int32_t>());
  const auto found = static_cast<Code>(reader.Get<int32_t>());
  const std::string text(reader.GetString());
  const std::string job(reader.GetString());
  const uint64_t epoch = reader.Get<uint64_t>();
  CKPT_RETURN_IF_ERROR(reader.Finish("rank 0's word at open"));
  if (failed != Code::kOk) return Status(failed, "rank 0: " + text);
  CKPT_ASSIGN_OR_RETURN(const JobId expected, JobId::Parse(job));
  // Opened by id: a rank that sees another store would write where nobody reads.
  CKPT_ASSIGN_OR_RETURN(store_->job, store_->store->OpenJob(expected));
  store_->epoch = epoch;
  resume_ = found == Code::kOk ? AttemptId::Parse(text) : Result<AttemptId>(Status(found, text));
  return OkStatus();
}

Status Standalone::DoTrack(const format::RankLayout& layout) {
  CKPT_RETURN_IF_ERROR(DoFence());
  std::vector<format::RankLayout> layouts = {layout};
  if (several()) {
    layouts.clear();
    CKPT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                          agreement_->GatherAny(Meeting::kTrack, layout.Encode()));
    for (const std::string& bytes : all) {
      CKPT_ASSIGN_OR_RETURN(format::RankLayout one, format::RankLayout::Decode(bytes));
      layouts.push_back(std::move(one));
    }
  } else if (store_->job.IsZero()) {
    CKPT_ASSIGN_OR_RETURN(store_->job, store_->store->OpenJob(JobId{}));
  }
  // One node: nobody restores from this memory, so each rank stages what it writes.
  const std::vector<uint32_t> node_of(options_.world, 0);
  CKPT_ASSIGN_OR_RETURN(const plan::GangPlan plan, plan::MakePlan(layouts, node_of));
  const engine::StagingIdentity identity{store_->job, options_.rank, options_.world, plan.hash};
  slots_.reset();  // the old ones go when their last save is written
  CKPT_ASSIGN_OR_RETURN(
      slots_, StagingSlots::Create(identity, layout, plan.ranks[options_.rank.value()], Devices()));
  layouts_ = std::make_shared<const std::vector<format::RankLayout>>(std::move(layouts));
  return OkStatus();
}

// ---- saving
// ---------------------------------------------------------------------------------------

Result<std::shared_ptr<Save>> Standalone::DoBeginSave(const SaveRequest& request) {
  store_->pace->Look(BoottimeNs(), Steps());
  CKPT_RETURN_IF_ERROR(EnsureEpoch());
  const AttemptId id{Epoch(store_->epoch), Step(request.step), Attempt(++last_attempt_)};
  Result<std::shared_ptr<OpenSave>> prepared = Prepare(request, id);
  if (several()) {
    const Status agreed = AgreeToSave(id, prepared.status());
    if (!agreed.ok()) {
      if (prepared.ok()) (*prepared)->slots->Give((*prepared)->slot);
      return agreed;
    }
  } else if (!prepared.ok()) {
    return std::move(prepared).status().Annotate(Who());
  }
  const std::shared_ptr<OpenSave>& open = *prepared;
  Remember(open->save);
  open_.push_back(open);
  const Status staged = Stage(open, request);
  // Several ranks: all learn it at the same later point, so that none of them goes another way.
  if (staged.ok() || several()) return open->save;
  open->save->TakeFailureReport();
  return staged;
}

Result<std::shared_ptr<OpenSave>> Standalone::Prepare(const SaveRequest& request,
                                                      const AttemptId& id) {
  CKPT_RETURN_IF_ERROR(PrepareStage());
  DropEnded();
  auto open = std::make_shared<OpenSave>();
  open->save = std::make_shared<Save>(id);
  open->slots = slots_;
  open->layouts = layouts_;
  // With several ranks a wait here would hold up the exchange that frees the slot.
  const Nanos patience = several() ? Nanos(0) : request.slot_timeout;
  const engine::InAHurry hurry(store_->pace.get());
  open->slot = slots_->Take(Deadline("a free staging slot", patience));
  if (open->slot == nullptr)
    return ResourceExhausted(
        "no free staging slot: " + std::to_string(slots_->count()) +
        " saves are still being written to " + store_->store->Describe() +
        "; save less often, or let a save that the program begins wait for one (its timeout)");
  return open;
}

Status Standalone::AgreeToSave(const AttemptId& id, const Status& mine) {
  Status status = mine;
  if (status.ok() && leads()) status = store_->store->BeginAttempt(id);
  const std::string word = ByteWriter()
                               .Put<uint32_t>(id.attempt.value())
                               .Put<int64_t>(id.step.value())
                               .Put<int32_t>(static_cast<int32_t>(status.code()))
                               .PutString(status.message())
                               .str();
  Result<std::vector<std::string>> all = agreement_->GatherAny(Meeting::kSave, word);
  if (!all.ok()) return NoAgreement(all.status());
  Status first;
  for (uint32_t rank = 0; rank < all->size(); ++rank) {
    ByteReader reader((*all)[rank]);
    if (reader.Get<uint32_t>() != id.attempt.value() || reader.Get<int64_t>() != id.step.value())
      return Break("the ranks do not save at the same boundary with the same step number");
    const auto code = static_cast<Code>(reader.Get<int32_t>());
    const std::string text(reader.GetString());
    if (code != Code::kOk && first.ok())
      first = Status(code, "rank " + std::to_string(rank) + ": " + text);
  }
  if (!first.ok() && leads() && status.ok()) store_->Abort(id, first);
  return first;
}

Status Standalone::Stage(const std::shared_ptr<OpenSave>& open, const SaveRequest& request) {
  engine::GenerationInfo info;
  info.generation = open->save->id().attempt.value();
  info.id = open->save->id();
  info.boundary = static_cast<uint32_t>(boundary_);
  engine::StagingRegion* const region = open->slot->region.get();
  if (!request.overlap) return Staged(open, FillRegion(region, info, {}));
  const Status begun =
      FillBehind(region, info, {}, open->save, request.changed, [this, open](const Status& status) {
        Staged(open, status).IgnoreError();  // the save has it
      });
  return begun.ok() ? begun : Staged(open, begun);
}

// Threads: loop or copier.
Status Standalone::Staged(const std::shared_ptr<OpenSave>& open, Status status) {
  if (!status.ok()) {
    status.Annotate("staging save " + open->save->id().ToString());
    StageFailed(open.get(), status);
    return status;
  }
  open->Set(StageOf::kWriting);
  open->save->Advance(several() ? Level::kStaged : Level::kStagedGang);
  Write(open);
  return OkStatus();
}

// Of several ranks, a save is closed when all of them know.
void Standalone::StageFailed(OpenSave* open, const Status& why) {
  if (several()) {
    open->Set(StageOf::kFailed, why);
  } else {
    End(open, why);
  }
}

void Standalone::Write(const std::shared_ptr<OpenSave>& open) {
  const Status queued = writer_->TrySubmit([this, self = shared_from_this(), open] {
    if (!several()) return WriteAndCommit(open);
    const auto write = [this, &open] { return store_->WriteShard(open.get(), own_page_.get()); };
    const Status status = NoThrow("writing a shard", write);
    open->Set(status.ok() ? StageOf::kWritten : StageOf::kFailed, status);
  });
  if (!queued.ok()) StageFailed(open.get(), queued);
}

void Standalone::WriteAndCommit(const std::shared_ptr<OpenSave>& open) {
  const AttemptId& id = open->save->id();
  Status status = open->save->cancelled() ? Cancelled("the save was cancelled") : OkStatus();
  bool begun = false;
  if (status.ok()) {
    status = store_->store->BeginAttempt(id);
    begun = status.ok();
  }
  if (status.ok())
    status =
        NoThrow("writing a shard", [&] { return store_->WriteShard(open.get(), own_page_.get()); });
  if (status.ok()) {
    open->Set(StageOf::kCommitting);
    std::vector<engine::ShardReport> reports(1);
    {
      MutexLock lock(open->mutex);
      reports[0] = open->report;
    }
    status = NoThrow("a commit", [&] { return store_->Commit(*open, reports); });
  }
  if (!status.ok() && begun) store_->Abort(id, status);
  End(open.get(), status);
  if (status.ok()) store_->retention->AfterCommit(id);
}

// The one line that says SHARED is here (I3).
void Standalone::End(OpenSave* open, const Status& status) {
  engine::StagingRegion* region = open->slot->region.get();
  region->set_state(status.ok() ? engine::GenerationState::kDurable
                                : engine::GenerationState::kAborted);
  open->slots->Give(open->slot);
  if (status.ok()) {
    open->save->Advance(Level::kShared);
  } else {
    open->save->Fail(status);
    Raise(kFailure);
  }
  open->Set(status.ok() ? StageOf::kCommitted : StageOf::kNotCommitted, status);
}

Status Standalone::DoFence() {
  CKPT_RETURN_IF_ERROR(FinishCopies().Annotate(Who()));
  for (const std::shared_ptr<OpenSave>& open : open_) {
    const Save::Progress progress = open->save->progress();
    if (progress.level == Level::kNone && open->save->TakeFailureReport())
      return open->save->error().Annotate(Who());
  }
  return OkStatus();
}

void Standalone::DropEnded() {
  open_.erase(std::remove_if(open_.begin(), open_.end(),
                             [](const std::shared_ptr<OpenSave>& o) { return o->save->ended(); }),
              open_.end());
}

// ---- the boundary
// -----------------------------------------------------------------------------------

Status Standalone::DoBoundary(int64_t user_step, StepResult* out) {
  store_->pace->Look(BoottimeNs(), Steps());
  bool stop = TakeAttention(kSignal);
  if (several()) {
    CKPT_ASSIGN_OR_RETURN(const Gathered gathered, Exchange(Meeting::kStep, stop, false));
    stop = gathered.signal;
  }
  if (stop) return Stop(user_step, out);
  if (!SaveIsDue()) return OkStatus();
  SaveRequest request;
  request.step = user_step;
  CKPT_ASSIGN_OR_RETURN(const std::shared_ptr<Save> save, DoBeginSave(request));
  out->kind = RequestKind::kSave;
  return OkStatus();
}

// A signal asked for it: save, wait until it is durable, take communicators down, leave.
Status Standalone::Stop(int64_t user_step, StepResult* out) {
  if (const Status earlier = DoFence(); !earlier.ok()) LogError(earlier.message());
  const engine::InAHurry hurry(store_->pace.get());
  const Deadline deadline =
      StoreDeadline("the save before a stop", slots_ == nullptr ? 0 : slots_->bytes());
  Result<std::shared_ptr<Save>> save = SaveForStop(user_step, deadline);
  Status status = save.status();
  if (save.ok()) status = WaitSave(save->get(), Level::kShared, deadline);
  if (!status.ok()) {
    status.Annotate("not stopped by the signal, because the state could not be saved");
    LogError(status.message());
    return status;
  }
  if (const Status down = comms_->TakeDown(Deadline("taking down communicators", kCommDownMax));
      !down.ok())
    LogWarning(Who() + ": " + down.message());
  out->kind = RequestKind::kStop;
  return OkStatus();
}

Result<std::shared_ptr<Save>> Standalone::SaveForStop(int64_t user_step, const Deadline& deadline) {
  SaveRequest request;
  request.step = user_step;
  request.slot_timeout = deadline.Left();
  // Several ranks: exchange until the saves before it are through.
  while (several() && slots_ != nullptr && open_.size() >= slots_->count()) {
    CKPT_ASSIGN_OR_RETURN(const Gathered gathered,
                          Exchange(Meeting::kStop, false, deadline.Expired()));
    if (gathered.expired) return deadline.Exceeded();
    if (!open_.empty()) open_.front()->save->AwaitEnd(Deadline("an exchange", kExchangePause));
  }
  return DoBeginSave(request);
}

// ---- reading
// ----------------------------------------------------------------------------------------

Result<std::unique_ptr<Reader>> Standalone::DoOpenReader(const std::string& selector) {
  CKPT_RETURN_IF_ERROR(EnsureEpoch());
  if (several() && selector.empty() && !resume_.ok()) return resume_.status();
  const bool agreed = several() && selector.empty();
  // What does not load counts for no rule of retention.
  return OpenFromStore(store_->store.get(), agreed ? resume_->ToString() : selector,
                       [store = store_](const Status& status, const AttemptId& id) {
                         if (status.code() == Code::kDataLoss) store->retention->FoundDamaged(id);
                       });
}

Result<storage::Store*> Standalone::StoreForReading() {
  CKPT_RETURN_IF_ERROR(EnsureEpoch());
  return store_->store.get();
}

// ---- the end
// ----------------------------------------------------------------------------------------

Status Standalone::DoClose(const Deadline& deadline) {
  const engine::InAHurry hurry(store_->pace.get());
  Status fenced = DoFence();
  Status status = several() ? CloseTogether(deadline) : CloseAlone(deadline);
  if (status.ok()) status = std::move(fenced);
  std::string left;
  for (const std::shared_ptr<OpenSave>& open : open_) {
    if (open->save->ended()) continue;
    left += (left.empty() ? "" : ", ") + open->save->id().ToString();
    open->save->Cancel();
  }
  if (!left.empty())
    status = DeadlineExceeded("closed before all saves were durable; not durable: " + left)
                 .MaybeApplied();
  if (!stopped_ && comms_->size() > 0)
    comms_->TakeDown(Deadline("taking down communicators", kCommDownMax)).IgnoreError();
  // What still removes old checkpoints may end by itself.
  if (left.empty()) writer_->Drain(deadline).IgnoreError();
  StopThreads();
  bell_.reset();
  if (status.ok()) status = TakeBackgroundFailure();
  return std::move(status).Annotate(Who() + ": close");
}

void Standalone::DoAtExit(const std::vector<std::shared_ptr<Save>>& staged) {
  const engine::InAHurry hurry(store_->pace.get());
  for (const std::shared_ptr<Save>& save : staged) {
    const std::string name = "save " + save->id().ToString() + " in " + store_->store->Describe();
    // Several ranks: the others may be gone, and a commit takes all of them.
    if (!several()) {
      LogWarning(Who() + ": the program ends without close; writing " + name + " first");
      save->AwaitEnd(StoreDeadline("the last save", slots_->bytes()));
    }
    const Status why = save->error();
    if (save->progress().level == Level::kShared) continue;
    LogError(Who() + ": " + name + " IS NOT DURABLE: the program ended without close" +
             (why.ok() ? "" : ": " + why.ToString()));
  }
}

Status Standalone::CloseAlone(const Deadline& deadline) {
  for (const std::shared_ptr<OpenSave>& open : open_)
    open->save->AwaitEnd(deadline);  // failures are collected below
  return OkStatus();
}

Status Standalone::CloseTogether(const Deadline& deadline) {
  if (broken()) return OkStatus();
  for (;;) {
    CKPT_ASSIGN_OR_RETURN(const Gathered gathered,
                          Exchange(Meeting::kClose, false, deadline.Expired()));
    if (open_.empty() || gathered.expired) return OkStatus();
    open_.front()->save->AwaitEnd(Deadline("an exchange", kExchangePause));
  }
}

// A writer that hangs in the kernel must not hang the program: it is left behind with its memory.
void Standalone::StopThreads() {
  const Deadline grace("cancelled writers", kCancelGrace);
  copies_.reset();
  if (writer_ == nullptr || writer_->Drain(grace).ok()) {
    writer_.reset();
    return;
  }
  LogError(Who() + ": a writer hangs in " + store_->store->Describe() + "; it is left behind");
  writer_.release();
  for (const std::shared_ptr<OpenSave>& open : open_) open->slots->Leak();
}

// ---- the rest
// -----------------------------------------------------------------------------------------

std::string Standalone::CommScope() { return options_.job + "/e" + std::to_string(store_->epoch); }

std::unique_ptr<comm::KeyValue> Standalone::MakeKeyValue(const std::string&) {
  if (several()) return std::make_unique<NoKeyValue>();
  return std::make_unique<LocalKeyValue>();
}

Session::Identity Standalone::DescribeMode() {
  Identity identity;
  const Status down = comms_->MayTakeDown();
  identity.mode = "standalone";
  identity.epoch = store_->epoch;
  identity.job_id = store_->job;
  identity.capabilities_json =
      "[{\"method\":\"checkpoint\",\"yes\":true},{\"method\":\"suspend\",\"yes\":" +
      (down.ok() ? std::string("true},") : "false,\"reason\":" + Quoted(down.message()) + "},") +
      std::string("{\"method\":\"migrate\",\"yes\":false,\"reason\":\"not under ckpt-run\"}]");
  return identity;
}

}  // namespace ckpt::session
