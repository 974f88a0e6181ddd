// Generations and slots; the saves that the program asks for; commits.
#include <algorithm>
#include <utility>

#include "coordinator/gang/leader_impl.h"
#include "libckpt/base/clock.h"

namespace ckpt::gang {
namespace {

constexpr size_t kAnswersKept = 16;
constexpr uint32_t kCommitTriesMax = 20;
constexpr uint32_t kCommitTriesSaid = 5;  // every so many
constexpr int64_t kCommitRetryNs = 1'000'000'000;

// A store that is full, read-only, failing or away may come back; what is wrong stays wrong.
bool MayPass(Code code) {
  return code != Code::kInvalidArgument && code != Code::kFailedPrecondition &&
         code != Code::kAborted && code != Code::kUnimplemented && code != Code::kCancelled;
}

}  // namespace

LeaderGeneration* Leader::Impl::FindGeneration(uint32_t generation) {
  const auto it = std::find_if(r_.generations.begin(), r_.generations.end(),
                               [&](const Gen& gen) { return gen.generation == generation; });
  return it == r_.generations.end() ? nullptr : &*it;
}

LeaderGeneration* Leader::Impl::FindAttempt(uint32_t attempt) {
  const auto it = std::find_if(r_.generations.begin(), r_.generations.end(),
                               [&](const Gen& gen) { return gen.attempt == attempt; });
  return it == r_.generations.end() ? nullptr : &*it;
}

bool Leader::Impl::Filling() const {
  return std::any_of(r_.generations.begin(), r_.generations.end(),
                     [](const Gen& gen) { return gen.state == Gen::State::kFilling; });
}

// A slot that may be filled: one that is empty, else one whose generation is durable; for a stop
// also one that an older generation must give up after barrier 1 (`out_supersede`).
bool Leader::Impl::PickSlot(bool stop, uint32_t* out_slot, uint32_t* out_supersede) const {
  const Gen* newest = Standing();
  const Gen* durable = nullptr;
  const Gen* older = nullptr;
  *out_supersede = 0;
  for (uint32_t slot = 0; slot < config_.slots; ++slot) {
    const auto it = std::find_if(r_.generations.begin(), r_.generations.end(),
                                 [&](const Gen& gen) { return gen.slot == slot; });
    if (it == r_.generations.end()) {
      *out_slot = slot;
      return true;
    }
    const bool may_wait = &*it == newest && config_.slots > 1;
    if (it->state == Gen::State::kDurable && (durable == nullptr || durable == newest)) {
      durable = &*it;
    }
    if (it->state == Gen::State::kComplete && !may_wait) older = &*it;
  }
  if (durable != nullptr) {
    *out_slot = durable->slot;
    return true;
  }
  const bool any = stop || config_.mutations.save_supersedes || config_.mutations.free_draining;
  if (older == nullptr || !any) return false;
  if (config_.slots == 1 && !older->aborted && !PastDrainWait()) return false;
  *out_slot = older->slot;
  *out_supersede = older->generation;
  return true;
}

void Leader::Impl::AddGeneration(uint32_t generation, uint32_t attempt, uint32_t slot, bool full,
                                 int64_t fill_deadline_ns, uint32_t boundary) {
  std::erase_if(r_.generations, [&](const Gen& gen) {
    return gen.slot == slot &&
           (gen.state == Gen::State::kDurable || config_.mutations.free_draining);
  });
  Gen gen;
  gen.generation = generation;
  gen.attempt = attempt;
  gen.slot = slot;
  gen.full = full;
  gen.fill_deadline_ns = fill_deadline_ns;
  gen.boundary = boundary;
  gen.captured_ns = now_;
  r_.generations.push_back(std::move(gen));
  Store();
}

void Leader::Impl::TellGeneration(const Gen& gen, OpPhase phase, Status status) {
  Report report;
  report.operation = gen.operation;
  report.request = gen.request;
  report.phase = phase;
  report.status = std::move(status);
  report.attempt = gen.attempt;
  report.generation = gen.generation;
  report.step = gen.step;
  report.at_ns = now_;
  Emit(std::move(report));
}

// ---- saves that the program asks for: one answer for each, the same for the gang
// -----------------
void Leader::Impl::OnWantsSave(MemberId member, const Msg& msg) {
  asker_ = member;
  const SaveKey save{msg.boundary, msg.sequence};
  for (const SaveAnswer& answer : r_.answers) {
    if (answer.save == save && !config_.mutations.answer_saves_apart) {
      return SendAnswer(member, answer);
    }
  }
  const bool wait = msg.slot == 1;
  if (r_.ended || r_.released || r_.finished) {
    return AnswerSave(save, static_cast<int32_t>(Code::kFailedPrecondition), "the gang has ended");
  }
  if (open()) {  // the rank that waited here could not reach the cut
    return AnswerSave(save, static_cast<int32_t>(Code::kResourceExhausted),
                      "a " + std::string(Name(OpRequest())) + " is under way");
  }
  if (never_ready_) {
    return AnswerSave(save, static_cast<int32_t>(Code::kFailedPrecondition), not_ready_why_);
  }
  uint32_t slot = 0, supersede = 0;
  if (!Filling() && PickSlot(false, &slot, &supersede)) {
    if (supersede != 0 && config_.mutations.save_supersedes) {
      Drop(FindGeneration(supersede), Aborted("superseded"));
    }
    return GrantSaveAt(save, slot);
  }
  // How far other ranks are, with the save before it or with track, decides nothing.
  if (wait || Filling() || config_.slots == 0) {
    const int64_t left = msg.left_ns > 0 ? msg.left_ns : config_.save_ns;
    const auto [it, added] =
        waiting_saves_.emplace(save, WaitingSave{wait || config_.slots == 0, kNever});
    it->second.deadline_ns = std::min(it->second.deadline_ns, now_ + left);
    return;
  }
  RefuseForSlot(save);
}

void Leader::Impl::RefuseForSlot(const SaveKey& save) {
  AnswerSave(save, static_cast<int32_t>(Code::kResourceExhausted),
             "no free staging slot: the last save is not durable yet");
}

void Leader::Impl::GrantSaveAt(const SaveKey& save, uint32_t slot) {
  ++r_.attempt;
  ++r_.generation;
  AddGeneration(r_.generation, r_.attempt, slot, false, now_ + config_.save_ns, save.first);
  waiting_saves_.erase(save);
  const SaveAnswer answer{save, r_.generation, slot, r_.attempt, 0, ""};
  r_.answers.push_back(answer);
  if (r_.answers.size() > kAnswersKept) r_.answers.erase(r_.answers.begin());
  for (const auto& [id, member] : members_) SendAnswer(id, answer);
}

void Leader::Impl::AnswerSave(const SaveKey& save, int32_t code, std::string text) {
  waiting_saves_.erase(save);
  const SaveAnswer answer{save, 0, 0, 0, code, std::move(text)};
  r_.answers.push_back(answer);
  if (r_.answers.size() > kAnswersKept) r_.answers.erase(r_.answers.begin());
  Store();
  for (const auto& [id, member] : members_) SendAnswer(id, answer);
}

void Leader::Impl::SendAnswer(MemberId member, const SaveAnswer& answer) {
  if (config_.mutations.answer_saves_apart && member != asker_) return;
  Msg msg{.type = MsgType::kSaveAnswer};
  msg.round = r_.round;
  msg.boundary = answer.save.first;
  msg.sequence = answer.save.second;
  msg.generation = answer.generation;
  msg.slot = answer.slot;
  msg.attempt = answer.attempt;
  msg.code = answer.code;
  msg.text = answer.text;
  Send(member, std::move(msg));
}

// What they wait for does not come.
void Leader::Impl::RefuseWaitingSaves(Code code, const std::string& why) {
  for (const auto& [save, waiting] : std::exchange(waiting_saves_, {})) {
    AnswerSave(save, static_cast<int32_t>(code), why);
  }
}

void Leader::Impl::ServeWaitingSaves() {
  if (never_ready_) RefuseWaitingSaves(Code::kFailedPrecondition, not_ready_why_);
  if (waiting_saves_.empty() || open() || Filling()) return;
  uint32_t slot = 0, supersede = 0;
  const SaveKey first = waiting_saves_.begin()->first;
  if (PickSlot(false, &slot, &supersede)) return GrantSaveAt(first, slot);
  std::vector<SaveKey> refused;
  for (const auto& [save, waiting] : waiting_saves_) {
    if (!waiting.for_slot) refused.push_back(save);
  }
  for (const SaveKey& save : refused) RefuseForSlot(save);
}

// ---- from FILLING to DURABLE
void Leader::Impl::OnSealedFact(MemberId member, const Msg& msg) {
  Gen* gen = FindGeneration(msg.generation);
  if (gen == nullptr || gen->attempt != msg.attempt || gen->state != Gen::State::kFilling) return;
  if (gen->sealed.empty()) {
    gen->step = msg.step;
  } else if (gen->step != msg.step) {
    return GiveUpFilling(
        gen, Internal("the ranks saved different steps (" + std::to_string(gen->step) + " and " +
                      std::to_string(msg.step) + ") in one attempt"));
  }
  gen->sealed.insert(member);
  if (gen->sealed.size() < members_.size()) return;
  const uint32_t generation = gen->generation;
  const bool of_cut = open() && !OpenStop() && r_.op_generation == generation;
  if (of_cut) r_.step = gen->step;
  Complete(gen);
  if (of_cut) FinishOperation(OpPhase::kStaged, OkStatus());
}

void Leader::Impl::OnStageFailed(const Msg& msg) {
  Gen* gen = FindGeneration(msg.generation);
  if (gen == nullptr || gen->attempt != msg.attempt || gen->state != Gen::State::kFilling) return;
  GiveUpFilling(gen, Status(CodeOf(msg.code), msg.text));
}

void Leader::Impl::GiveUpFilling(Gen* gen, const Status& why) {
  if (open() && !OpenStop() && r_.op_generation == gen->generation) {
    return WithdrawRound(OpPhase::kRolledBack, why);
  }
  TellGeneration(*gen, OpPhase::kRolledBack, why);
  Drop(gen, why);
}

// A person can still do something: said long before the save is given up.
void Leader::Impl::OnLate(MemberId member, const Msg& msg) {
  Gen* gen = FindGeneration(msg.generation);
  if (gen == nullptr || gen->attempt != msg.attempt || gen->state != Gen::State::kFilling) return;
  std::string& text = gen->late[member];
  text = msg.text;
  for (const Place& place : msg.places) {
    const auto phase = phases_.find(place.rank);
    if (phase == phases_.end()) continue;
    text += ", rank " + std::to_string(place.rank) + " in " + phase->second.kind;
  }
  TellGeneration(
      *gen, OpPhase::kLate,
      Unavailable("the save at boundary " + std::to_string(gen->boundary) + " is held up: " + text +
                  "; in " +
                  FormatDuration(Nanos(std::max<int64_t>(0, gen->fill_deadline_ns - now_))) +
                  " it is given up, and until then no other save is made. Every rank "
                  "must call step() and save as often as the others"));
}

// Whom a copy that is not complete waits for.
std::string Leader::Impl::LateText(const Gen& gen) const {
  std::string text;
  for (const auto& [id, member] : members_) {
    if (gen.sealed.contains(id)) continue;
    const auto late = gen.late.find(id);
    const uint32_t first = member.first_rank.value(), last = first + member.rank_count - 1;
    text +=
        (text.empty() ? "" : ", ") +
        (late != gen.late.end() ? late->second
         : first == last        ? "rank " + std::to_string(first)
                         : "one of ranks " + std::to_string(first) + " to " + std::to_string(last));
  }
  return text;
}

// All ranks have sealed: the copy counts, older ones whose attempt is aborted may go.
void Leader::Impl::Complete(Gen* gen) {
  gen->state = Gen::State::kComplete;
  gen->fill_deadline_ns = kNever;
  if (open() && r_.op_generation == gen->generation) {
    gen->operation = r_.operation;
    gen->request = OpRequest();
  } else {
    TellGeneration(*gen, OpPhase::kStaged, OkStatus());
  }
  Store();
  SendMarks(gen, true);
  std::vector<uint32_t> stale;
  for (const Gen& other : r_.generations) {
    const bool older = other.generation < gen->generation && other.aborted;
    if (older && other.state == Gen::State::kComplete) stale.push_back(other.generation);
  }
  for (const uint32_t generation : stale) {
    Drop(FindGeneration(generation), Aborted("its attempt failed and a newer copy is complete"));
  }
  SlotsChanged();
}

void Leader::Impl::OnShards(MemberId member, const Msg& msg) {
  Gen* gen = FindAttempt(msg.attempt);
  if (gen == nullptr || gen->state != Gen::State::kComplete || gen->aborted) return;
  if (msg.code != 0) return Abort(gen, Status(CodeOf(msg.code), msg.text));
  gen->payloads[member] = msg.payload;
  TryCommit(gen);
}

void Leader::Impl::TryCommit(Gen* gen) {
  if (gen->committing || gen->payloads.size() < members_.size()) return;
  gen->committing = true;
  gen->commit_at_ns = kNever;
  CommitAttempt action{gen->attempt, gen->generation, gen->step, {}};
  for (const auto& [id, payload] : gen->payloads) action.payloads.emplace_back(id, payload);
  Emit(std::move(action));
}

void Leader::Impl::On(const AttemptCommitted& event) {
  Gen* gen = FindAttempt(event.attempt);
  if (gen == nullptr || gen->state != Gen::State::kComplete) return;
  gen->committing = false;
  if (event.status.ok()) {
    gen->state = Gen::State::kDurable;
    Store();
    TellGeneration(*gen, OpPhase::kDurable, OkStatus());
    SendMarks(gen, true);
    return SlotsChanged();
  }
  const bool maybe =
      event.status.outcome() == Outcome::kMaybeApplied || event.status.code() == Code::kUnavailable;
  // After the release there will be no newer copy than this one.
  const bool again = maybe || (PastRelease() && MayPass(event.status.code()));
  if (!again || ++gen->commit_tries >= kCommitTriesMax) return Abort(gen, event.status);
  gen->commit_at_ns = now_ + kCommitRetryNs;
  if (gen->commit_tries % kCommitTriesSaid != 1) return;
  TellGeneration(*gen, OpPhase::kLate,
                 Unavailable("committing attempt " + std::to_string(gen->attempt) + " of step " +
                             std::to_string(gen->step) + ": " + event.status.message() +
                             "; the copy stays in RAM, it is tried " +
                             std::to_string(kCommitTriesMax - gen->commit_tries) +
                             " times more, every " + FormatDuration(Nanos(kCommitRetryNs))));
}

// The attempt will not be committed, and its ranks hear so. The copy in RAM stands until a newer
// one is complete.
void Leader::Impl::Abort(Gen* gen, const Status& why) {
  gen->aborted = true;
  gen->why = why;
  gen->commit_at_ns = kNever;
  Store();
  Emit(AbortAttempt{gen->attempt, gen->generation, why.message()});
  TellGeneration(*gen, OpPhase::kNotDurable, why);
  const Gen* newest = Standing();
  const bool stops = OpenStop() && r_.op_generation == gen->generation;
  const bool only_slot = config_.slots == 1 && !PastRelease() && !stops;
  if (newest != gen || (only_slot || config_.mutations.drop_stop_copy)) return Drop(gen, why);
  SendMarks(gen, true);
  // Nothing is released yet: without a kill to come the training had better go on.
  if (stops && r_.decision == Decision::kCommsDown && KillAt() == kNever) {
    GoBack(Status(why).Annotate("the copy of this stop cannot be made durable"));
  }
}

// One slot: a copy that will not be durable and that no stop needs is in the way of every save.
void Leader::Impl::DropFailedDrains() {
  if (config_.slots != 1) return;
  for (Gen& gen : r_.generations) {
    if (gen.aborted && gen.state == Gen::State::kComplete) Drop(&gen, gen.why);
  }
}

// Void: nobody fills, reads or writes it any more once all members have answered.
void Leader::Impl::Drop(Gen* gen, const Status& why) {
  if (gen == nullptr || gen->state == Gen::State::kDropping) return;
  if (!gen->aborted) Emit(AbortAttempt{gen->attempt, gen->generation, why.message()});
  if (gen->state == Gen::State::kComplete && !gen->aborted) {
    TellGeneration(*gen, OpPhase::kNotDurable, why);
  }
  gen->state = Gen::State::kDropping;
  gen->aborted = true;
  if (gen->why.ok()) gen->why = why;
  gen->fill_deadline_ns = gen->commit_at_ns = kNever;
  Store();
  SendMarks(gen, true);
}

void Leader::Impl::SendMarks(Gen* gen, bool all) {
  gen->sent_ns = now_;
  for (const auto& [id, member] : members_) {
    if (all) gen->pending.insert(id);
    if (gen->pending.contains(id)) SendMark(id, gen);
  }
}

// What kGeneration says of it.
int32_t Leader::Impl::MarkCode(const Gen& gen) {
  if (gen.state == Gen::State::kDurable) return 2;
  return gen.aborted ? 3 : 1;
}

void Leader::Impl::SendMark(MemberId member, Gen* gen) {
  if (gen->state == Gen::State::kFilling || !gen->pending.contains(member)) return;
  Msg msg;
  msg.type = gen->state == Gen::State::kDropping ? MsgType::kDrop : MsgType::kGeneration;
  msg.round = r_.round;
  msg.generation = gen->generation;
  msg.attempt = gen->attempt;
  msg.slot = gen->slot;
  msg.step = gen->step;
  if (msg.type == MsgType::kGeneration) msg.code = MarkCode(*gen);
  msg.number = static_cast<uint64_t>(gen->why.code());
  msg.text = gen->why.message();
  Send(member, std::move(msg));
}

void Leader::Impl::OnMarkHeard(MemberId member, const Msg& msg) {
  Gen* gen = FindGeneration(msg.generation);
  if (gen == nullptr || gen->attempt != msg.attempt) return;
  if (gen->state != Gen::State::kDropping && msg.code == MarkCode(*gen)) gen->pending.erase(member);
}

void Leader::Impl::OnDropped(MemberId member, const Msg& msg) {
  Gen* gen = FindGeneration(msg.generation);
  if (gen == nullptr || gen->state != Gen::State::kDropping || gen->attempt != msg.attempt) return;
  gen->pending.erase(member);
  if (!gen->pending.empty()) return;
  std::erase_if(r_.generations,
                [&](const Gen& other) { return other.generation == msg.generation; });
  Store();
  SlotsChanged();
}

void Leader::Impl::SlotsChanged() {
  if (r_.stage == Stage::kSuperseding) {
    const Gen* older = FindGeneration(supersede_);
    if (older == nullptr || older->state == Gen::State::kDurable) return PassBarrierOne();
  }
  TryStart();
  ServeWaitingSaves();
}

void Leader::Impl::CheckGenerationDeadlines() {
  std::vector<uint32_t> overdue;
  for (Gen& gen : r_.generations) {
    if (gen.state == Gen::State::kFilling && now_ >= gen.fill_deadline_ns) {
      overdue.push_back(gen.generation);
    }
    if (gen.commit_at_ns != kNever && now_ >= gen.commit_at_ns) TryCommit(&gen);
    const bool marks = gen.state != Gen::State::kFilling && !gen.pending.empty();
    if (marks && now_ - gen.sent_ns >= config_.retry_ns) SendMarks(&gen, false);
  }
  for (const uint32_t generation : overdue) {
    Gen* gen = FindGeneration(generation);
    const Status why = DeadlineExceeded(
        "the save at boundary " + std::to_string(gen->boundary) +
        " was not staged by all ranks within " + FormatDuration(Nanos(now_ - gen->captured_ns)) +
        "; missing: " + LateText(*gen) +
        ". Every rank must call step() and save as often as the others");
    if (open() && !OpenStop() && r_.op_generation == generation) {
      WithdrawRound(OpPhase::kRolledBack, why);
      continue;
    }
    TellGeneration(*gen, OpPhase::kRolledBack, why);
    Drop(gen, why);
  }
  std::vector<SaveKey> late;
  for (const auto& [save, waiting] : waiting_saves_) {
    if (now_ >= waiting.deadline_ns) late.push_back(save);
  }
  for (const SaveKey& save : late) {
    AnswerSave(save, static_cast<int32_t>(Code::kResourceExhausted),
               config_.slots == 0 ? "no save is possible yet: " + not_ready_why_
                                  : "no staging slot became free in time");
  }
}

}  // namespace ckpt::gang
