// Generations, and the saves that the program asks for.
#include <algorithm>

#include "coordinator/gang/member_impl.h"

namespace ckpt::gang {
namespace {

constexpr size_t kAnswersKept = 64;
constexpr size_t kGenerationsKept = 64;
constexpr int64_t kAnswerTravelsNs = 1'000'000'000;

std::string RankName(Rank rank) { return "rank " + std::to_string(rank.value()); }

bool IsWish(const Msg& fact, const SaveKey& save) {
  return fact.fact == FactKind::kWantsSave && SaveKey(fact.boundary, fact.sequence) == save;
}

}  // namespace

void Member::Impl::On(const RankWantsSave& event) {
  RankState* state = Find(event.rank);
  if (state == nullptr || state->exited) return;
  const SaveKey save{event.boundary, event.sequence};
  state->save = save;
  const auto known = answers_.find(save);
  if (known != answers_.end()) return AnswerRank(event.rank, state, known->second);
  state->wants_save = false;
  const bool first = std::none_of(ranks_.begin(), ranks_.end(), [&](const RankState& other) {
    return other.wants_save && other.save == save;
  });
  state->wants_save = true;
  state->save_deadline =
      event.deadline_ns > now_ ? event.deadline_ns : now_ + config_.save_answer_ns;
  if (!first) return;
  Msg fact{.fact = FactKind::kWantsSave};
  fact.rank = event.rank.value();
  fact.boundary = event.boundary;
  fact.sequence = event.sequence;
  fact.slot = event.wait ? 1 : 0;
  // The leader knows best why it cannot be: its answer comes before we give up.
  const int64_t left_ns = state->save_deadline - now_;
  fact.left_ns = left_ns - std::min(left_ns / 5, kAnswerTravelsNs);
  AddFact(std::move(fact));
}

void Member::Impl::OnSaveAnswer(const Msg& msg) {
  const SaveKey save{msg.boundary, msg.sequence};
  ForgetFacts([&](const Msg& fact) { return IsWish(fact, save); });
  Answer answer{static_cast<uint32_t>(msg.code), msg.generation, msg.slot, msg.attempt, msg.text};
  const auto [it, added] = answers_.emplace(save, answer);
  if (!added) {
    if (it->second.local && answer.code == 0) GrantLate(save, answer);
    return;
  }
  if (answer.code == 0) {
    Generation& entry = generations_[answer.generation];
    entry.attempt = answer.attempt;
    entry.slot = answer.slot;
    entry.is_save = true;
    entry.save = save;
    entry.granted_ns = now_;
  }
  EachRank([&](Rank rank, RankState& state) {
    if (state.wants_save && state.save == save) AnswerRank(rank, &state, answer);
  });
  WatchSaves();
  while (answers_.size() > kAnswersKept) {
    answers_.erase(
        std::min_element(answers_.begin(), answers_.end(), [](const auto& a, const auto& b) {
          return Later(b.first.first, a.first.first) ||
                 (a.first.first == b.first.first && a.first.second < b.first.second);
        }));
  }
}

// Ranks of this member were told no before the leader said yes: the attempt cannot be whole.
void Member::Impl::GrantLate(const SaveKey& save, const Answer& answer) {
  if (generations_.contains(answer.generation)) return;
  Generation& entry = generations_[answer.generation];
  entry.attempt = answer.attempt;
  entry.slot = answer.slot;
  entry.is_save = true;
  Msg fact{.fact = FactKind::kStageFailed};
  fact.generation = answer.generation;
  fact.attempt = answer.attempt;
  fact.rank = config_.first_rank.value();
  fact.code = static_cast<int32_t>(Code::kDeadlineExceeded);
  fact.text = "the save at boundary " + std::to_string(save.first) + " was granted too late";
  AddFact(std::move(fact));
}

void Member::Impl::AnswerRank(Rank rank, RankState* state, const Answer& answer) {
  state->wants_save = false;
  const auto [boundary, sequence] = state->save;
  if (answer.code != 0) {
    out_.push_back(RefuseSave{rank, boundary, Status(CodeOf(answer.code), answer.text), sequence});
    return;
  }
  const auto it = generations_.find(answer.generation);
  if (it == generations_.end() || it->second.dropping) {
    out_.push_back(RefuseSave{rank, boundary, Aborted("this save was dropped: another rank failed"),
                              sequence});
    return;
  }
  it->second.asked.insert(rank.value());
  state->filling.insert(answer.generation);
  out_.push_back(
      GrantSave{rank, boundary, answer.generation, answer.slot, answer.attempt, sequence});
}

void Member::Impl::RefuseOverdueSaves() {
  EachRank([&](Rank, RankState& state) {
    if (!state.wants_save || now_ < state.save_deadline) return;
    const SaveKey save = state.save;
    const Answer refusal{static_cast<uint32_t>(Code::kDeadlineExceeded), 0,   0, 0,
                         "no staging slot was granted in time",          true};
    answers_.emplace(save, refusal);
    ForgetFacts([&](const Msg& fact) { return IsWish(fact, save); });
    EachRank([&](Rank rank, RankState& other) {
      if (other.wants_save && other.save == save) AnswerRank(rank, &other, refusal);
    });
  });
}

// ---- a save that not all ranks make

bool Member::Impl::Watched(const Generation& entry) {
  return entry.save.second != 0 && !entry.reported && !entry.skipped && !entry.dropping &&
         !entry.complete;
}

void Member::Impl::WatchSaves() {
  if (Ended()) return;
  for (auto& [number, entry] : generations_) {
    if (Watched(entry)) WatchSave(number, &entry);
  }
}

// A rank that has passed the boundary without asking never will: the others are told now. One that
// has not come there yet may still come, and is named when that takes long.
void Member::Impl::WatchSave(uint32_t generation, Generation* entry) {
  const uint32_t at = entry->save.first;
  const std::string save = "the save at boundary " + std::to_string(at);
  Msg late{.fact = FactKind::kLate};
  EachRank([&](Rank rank, const RankState& state) {
    if (!Watched(*entry) || entry->sealed.contains(rank.value())) return;
    const uint32_t boundary = pages_->Load(rank).boundary;
    const bool asked = entry->asked.contains(rank.value());
    const bool over = state.finished || state.exited;
    const std::string who = RankName(rank);
    if (!asked && (over || Later(boundary, at))) {
      entry->skipped = true;
      Msg fact{.fact = FactKind::kStageFailed};
      fact.generation = generation;
      fact.attempt = entry->attempt;
      fact.rank = rank.value();
      fact.code = static_cast<int32_t>(Code::kFailedPrecondition);
      fact.text = who + " did not ask for " + save + " that other ranks asked for, and " +
                  (over ? "has ended" : "is at boundary " + std::to_string(boundary)) +
                  " by now: every rank must save after the same call of step()";
      return AddFact(std::move(fact));
    }
    late.places.push_back({rank.value(), boundary, over});
    std::string where = " is at boundary " + std::to_string(boundary);
    if (boundary == at) where = " is there and has not asked for it";
    if (asked) where = " is staging it";
    late.text += (late.text.empty() ? "" : ", ") + who + where;
  });
  if (!Watched(*entry) || now_ - entry->granted_ns < config_.late_ns) return;
  std::vector<uint32_t> ranks;
  for (const Place& place : late.places) ranks.push_back(place.rank);
  if (ranks.empty() || ranks == std::exchange(entry->late, ranks)) return;
  ForgetFacts([&](const Msg& fact) {
    return fact.fact == FactKind::kLate && fact.generation == generation;
  });
  late.generation = generation;
  late.attempt = entry->attempt;
  AddFact(std::move(late));
}

void Member::Impl::NoteSealed(Rank rank, RankState* state, const RankSealed& event) {
  state->filling.erase(event.generation);
  const auto it = generations_.find(event.generation);
  if (it == generations_.end() || it->second.attempt != event.attempt) return;
  Generation& entry = it->second;
  if (entry.dropping) return FinishDrop(event.generation);
  state->sealed = event.generation;
  state->step = event.step;
  entry.sealed.insert(rank.value());
  if (entry.reported || entry.sealed.size() != ranks_.size()) return;
  entry.reported = true;
  Mark(event.generation, entry, GenerationMark::kSealed);
  if (!entry.is_save) return CheckSealed();
  Msg fact{.fact = FactKind::kSealed};
  fact.generation = event.generation;
  fact.attempt = event.attempt;
  fact.step = event.step;
  AddFact(std::move(fact));
  if (phase_ == Phase::kCommitted && event.generation == generation_) {
    SetPhase(Phase::kSealed, kNever);
    SendVote();
  }
}

void Member::Impl::Mark(uint32_t generation, const Generation& entry, GenerationMark mark) {
  out_.push_back(MarkGeneration{generation, entry.slot, entry.attempt, mark, entry.why});
}

namespace {

// Why an attempt was given up; a leader that returned does not know it any more.
Status WhyOf(const Msg& msg) {
  const bool known = msg.number != 0 && msg.number <= static_cast<uint64_t>(Code::kUnauthenticated);
  return Status(known ? static_cast<Code>(msg.number) : Code::kAborted,
                msg.text.empty() ? "the attempt was given up" : msg.text);
}

}  // namespace

void Member::Impl::OnGeneration(const Msg& msg) {
  Msg ack{.type = MsgType::kAck};
  ack.generation = msg.generation;
  ack.attempt = msg.attempt;
  ack.code = msg.code;
  Send(std::move(ack));
  const auto it = generations_.find(msg.generation);
  if (it == generations_.end() || it->second.dropping) return;
  Generation& entry = it->second;
  if (!entry.complete) {
    entry.complete = true;
    Mark(msg.generation, entry, GenerationMark::kGangComplete);
    ForgetFacts([&](const Msg& fact) {
      return fact.fact == FactKind::kSealed && fact.generation == msg.generation;
    });
    if (msg.code == 1) {
      entry.writing = true;
      out_.push_back(WriteShards{msg.generation, entry.slot, entry.attempt});
    }
  }
  if (msg.code == 3 && entry.why.ok()) {
    entry.why = WhyOf(msg);
    Mark(msg.generation, entry, GenerationMark::kNotDurable);
  }
  if (msg.code != 2 || entry.durable) return;
  entry.durable = true;
  Mark(msg.generation, entry, GenerationMark::kDurable);
  ForgetFacts([&](const Msg& fact) {
    return fact.fact == FactKind::kShards && fact.attempt == msg.attempt;
  });
  while (generations_.size() > kGenerationsKept) generations_.erase(generations_.begin());
}

void Member::Impl::On(const ShardsWritten& event) {
  for (auto& [number, entry] : generations_) {
    if (entry.attempt != event.attempt || !entry.writing) continue;
    entry.writing = false;
    if (entry.dropping) return FinishDrop(number);
    Msg fact{.fact = FactKind::kShards};
    fact.attempt = event.attempt;
    fact.generation = number;
    fact.code = static_cast<int32_t>(event.status.code());
    fact.text = event.status.message();
    fact.payload = event.payload;
    return AddFact(std::move(fact));
  }
}

// Whether a rank still fills this generation's slot or a writer reads it.
bool Member::Impl::Touched(uint32_t generation, const Generation& entry) {
  if (entry.writing && !config_.mutations.free_draining) return true;
  if (config_.mutations.forget_filling) return false;
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [&](const RankState& state) { return state.filling.contains(generation); });
}

void Member::Impl::OnDrop(const Msg& msg) {
  Generation& entry = generations_[msg.generation];
  entry.attempt = msg.attempt;
  entry.slot = msg.slot;
  if (!entry.dropping) {
    entry.dropping = true;
    if (entry.why.ok()) entry.why = WhyOf(msg);
    ForgetFacts([&](const Msg& fact) { return fact.attempt == msg.attempt; });
    const bool open_cut = msg.generation == generation_ && kind_ == Kind::kSave;
    if (open_cut) {
      VoidCut();
      SetPhase(Phase::kFailed, kNever);
    }
    if (entry.writing && !entry.stopping) {
      entry.stopping = true;
      out_.push_back(StopWriters{msg.attempt});
    }
  }
  FinishDrop(msg.generation);
}

void Member::Impl::FinishDrop(uint32_t generation) {
  Generation& entry = generations_[generation];
  if (Touched(generation, entry)) return;
  if (!entry.dropped) {
    entry.dropped = true;
    Mark(generation, entry, GenerationMark::kAborted);
    out_.push_back(FreeSlot{entry.slot, generation});
  }
  Msg reply{.type = MsgType::kDropped};
  reply.generation = generation;
  reply.attempt = entry.attempt;
  Send(std::move(reply));
}

}  // namespace ckpt::gang
