// Several ranks without ckpt-run: what they exchange, and what follows from it on all of them
// (standalone.h).
#include "libckpt/base/guard.h"
#include "libckpt/session/standalone.h"

namespace ckpt::session {
namespace {

// Between two exchanges while all ranks only wait.
constexpr Nanos kExchangePause = std::chrono::milliseconds(20);
using StageOf = OpenSave::Stage;

}  // namespace

Status Standalone::NoAgreement(const Status& why) { return Break(why.message()); }

// One round: every rank says where it is, whether it saw a signal, and how far its part of the
// oldest open save is; what follows from that is the same on all ranks.
Result<Standalone::Gathered> Standalone::Exchange(Meeting meeting, bool signal, bool expired) {
  DropEnded();
  OpenSave* oldest = open_.empty() ? nullptr : open_.front().get();
  const StageOf stage = oldest == nullptr ? StageOf::kStaging : oldest->Get();
  const std::string word =
      ByteWriter()
          .PutBool(signal)
          .PutBool(expired)
          .Put<uint16_t>(static_cast<uint16_t>(stage))
          .Put<uint32_t>(oldest == nullptr ? 0 : oldest->save->id().attempt.value())
          .str();
  Result<std::vector<std::string>> all = agreement_->Gather(meeting, word);
  if (!all.ok()) return NoAgreement(all.status());
  Gathered gathered;
  bool all_staged = true, all_done = true, any_failed = false;
  StageOf of_leader = stage;
  for (uint32_t rank = 0; rank < all->size(); ++rank) {
    ByteReader reader((*all)[rank]);
    gathered.signal = reader.GetBool() || gathered.signal;
    gathered.expired = reader.GetBool() || gathered.expired;
    const auto other = static_cast<StageOf>(reader.Get<uint16_t>());
    if (reader.Get<uint32_t>() != (oldest == nullptr ? 0 : oldest->save->id().attempt.value()))
      return Break("the ranks do not have the same saves open");
    if (rank == 0) of_leader = other;
    all_staged = all_staged && other != StageOf::kStaging && other != StageOf::kFailed;
    all_done = all_done && (other == StageOf::kWritten || other == StageOf::kFailed);
    any_failed = any_failed || other == StageOf::kFailed;
  }
  if (oldest == nullptr) return gathered;
  if (all_staged) oldest->save->Advance(Level::kStagedGang);
  Status status;
  if (!oldest->collected && all_done) {
    status = any_failed ? LearnFailure(oldest) : Collect(oldest);
  } else if (oldest->collected && of_leader == StageOf::kCommitted) {
    End(oldest, OkStatus());
  } else if (oldest->collected && of_leader == StageOf::kNotCommitted) {
    status = LearnFailure(oldest);
  }
  DropEnded();
  if (!status.ok()) return status;
  return gathered;
}

// All ranks have written: rank 0 gets the reports and commits.
Status Standalone::Collect(OpenSave* open) {
  open->collected = true;
  std::string mine;
  {
    MutexLock lock(open->mutex);
    mine = open->report.Encode();
  }
  Result<std::vector<std::string>> all = agreement_->GatherAny(Meeting::kReports, mine);
  if (!all.ok()) return NoAgreement(all.status());
  open->Set(StageOf::kCommitting);
  if (!leads()) return OkStatus();
  std::vector<engine::ShardReport> reports;
  Status bad;
  for (const std::string& bytes : *all) {
    Result<engine::ShardReport> report = engine::ShardReport::Decode(bytes);
    if (!report.ok()) bad = report.status();
    if (report.ok()) reports.push_back(std::move(*report));
  }
  const std::shared_ptr<OpenSave> keep = open_.front();
  const Status queued = writer_->TrySubmit([keep, bad, reports, store = store_] {
    const Status status =
        bad.ok() ? NoThrow("a commit", [&] { return store->Commit(*keep, reports); }) : bad;
    if (!status.ok()) store->Abort(keep->save->id(), status);
    keep->Set(status.ok() ? StageOf::kCommitted : StageOf::kNotCommitted, status);
    if (status.ok()) store->retention->AfterCommit(keep->save->id());
  });
  if (!queued.ok()) open->Set(StageOf::kNotCommitted, queued);
  return OkStatus();
}

// Some rank failed: all learn which one and why, and close the save.
Status Standalone::LearnFailure(OpenSave* open) {
  Status mine;
  {
    MutexLock lock(open->mutex);
    mine = open->error;
  }
  const std::string word = ByteWriter()
                               .Put<int32_t>(static_cast<int32_t>(mine.code()))
                               .PutBool(mine.outcome() == Outcome::kMaybeApplied)
                               .PutString(mine.message())
                               .str();
  Result<std::vector<std::string>> all = agreement_->GatherAny(Meeting::kFailure, word);
  if (!all.ok()) return NoAgreement(all.status());
  Status first = Internal("a save failed and no rank knows why");
  for (uint32_t rank = 0; rank < all->size(); ++rank) {
    ByteReader reader((*all)[rank]);
    const auto code = static_cast<Code>(reader.Get<int32_t>());
    const Outcome outcome = reader.GetBool() ? Outcome::kMaybeApplied : Outcome::kNotApplied;
    if (code == Code::kOk) continue;
    first = Status(code, "rank " + std::to_string(rank) + ": " + std::string(reader.GetString()),
                   outcome);
    break;
  }
  if (leads() && !open->collected) store_->Abort(open->save->id(), first);
  End(open, first);
  return OkStatus();
}

Status Standalone::WaitSave(Save* save, Level level, const Deadline& deadline) {
  std::optional<engine::InAHurry> hurry;  // a loop that waits trains nothing
  if (OnLoop()) hurry.emplace(store_->pace.get());
  if (!several() || level <= Level::kStaged) return Session::WaitSave(save, level, deadline);
  for (;;) {
    CKPT_ASSIGN_OR_RETURN(const Gathered gathered,
                          Exchange(Meeting::kWait, false, deadline.Expired()));
    if (save->progress().level >= level || save->ended() || gathered.expired)
      return save->Wait(level, Deadline("a save that all ranks gave up waiting for", Nanos(0)));
    save->AwaitEnd(Deadline("an exchange", kExchangePause));
  }
}

// The writer sees it between two chunks; a save that is being committed is not stopped any more.
Status Standalone::CancelSave(Save* save) {
  save->Cancel();
  return OkStatus();
}

}  // namespace ckpt::session
