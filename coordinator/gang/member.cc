#include "coordinator/gang/member.h"

#include <algorithm>

#include "coordinator/gang/member_impl.h"

namespace ckpt::gang {

Member::Member(const MemberConfig& config, Pages* pages)
    : impl_(std::make_unique<Impl>(config, pages)) {}
Member::~Member() = default;
Member::Member(Member&&) noexcept = default;

MemberActions Member::Step(int64_t now_ns, const MemberEvent& event) {
  return impl_->Step(now_ns, event);
}
int64_t Member::next_deadline_ns() const { return impl_->next_deadline_ns(); }
std::string Member::phase() const { return impl_->phase(); }
bool Member::last_copy() const { return impl_->last_copy(); }

Member::Impl::Impl(const MemberConfig& config, Pages* pages)
    : config_(config), pages_(pages), ranks_(config.rank_count) {}

MemberActions Member::Impl::Step(int64_t now_ns, const MemberEvent& event) {
  now_ = std::max(now_, now_ns);
  out_.clear();
  std::visit([this](const auto& e) { On(e); }, event);
  return std::move(out_);
}

int64_t Member::Impl::next_deadline_ns() const {
  int64_t next = std::min(deadline_, crash_deadline_);
  if (phase_ == Phase::kProposed || phase_ == Phase::kCommitted || phase_ == Phase::kQuiesced) {
    next = std::min(next, now_ + config_.poll_ns);
  }
  for (const auto& [number, fact] : facts_) {
    if (!fact.acked && connected_) next = std::min(next, fact.sent_ns + config_.retry_ns);
  }
  for (const RankState& rank : ranks_) {
    if (rank.wants_save) next = std::min(next, rank.save_deadline);
  }
  for (const auto& [number, generation] : generations_) {
    if (generation.dropping && !generation.dropped) next = std::min(next, now_ + config_.poll_ns);
    if (Watched(generation) && !Ended()) next = std::min(next, now_ + config_.retry_ns);
  }
  return next;
}

std::string Member::Impl::phase() const {
  switch (phase_) {
    case Phase::kProposed:
    case Phase::kCommitted:
      return "notified";
    case Phase::kQuiesced:
      return "at cut";
    case Phase::kStaging:
      return "staging";
    case Phase::kSealed:
      return kind_ == Kind::kSave ? "running" : "sealed";
    case Phase::kDowning:
      return "taking communicators down";
    case Phase::kDown:
      return "communicators down";
    case Phase::kReleasing:
      return "releasing";
    case Phase::kReleased:
      return "released";
    case Phase::kRebuilding:
      return "rebuilding communicators";
    case Phase::kForward:
    case Phase::kEnding:
      return all_released_ ? "ended" : "ending";
    case Phase::kRunning:
    case Phase::kRefused:
    case Phase::kFailed:
    case Phase::kBack:
    case Phase::kRebuilt:
      break;
  }
  return "running";
}

Member::Impl::RankState* Member::Impl::Find(Rank rank) {
  const uint32_t index = rank.value() - config_.first_rank.value();
  return index < ranks_.size() ? &ranks_[index] : nullptr;
}

// Voted SEALED for a stop, and no outcome has set it free yet.
bool Member::Impl::bound() const {
  return (phase_ == Phase::kSealed && kind_ == Kind::kStop) || phase_ == Phase::kDowning ||
         phase_ == Phase::kDown || phase_ == Phase::kReleasing || phase_ == Phase::kReleased ||
         phase_ == Phase::kRebuilding;
}

bool Member::Impl::last_copy() const {
  const bool down = phase_ == Phase::kDowning || phase_ == Phase::kDown;
  return Ended() || (down && kills_);
}

bool Member::Impl::Ended() const {
  return phase_ == Phase::kForward || phase_ == Phase::kEnding || phase_ == Phase::kReleasing ||
         phase_ == Phase::kReleased;
}

void Member::Impl::Send(Msg msg) {
  msg.from = config_.id;
  if (connected_) out_.push_back(SendToLeader{std::move(msg)});
}

void Member::Impl::Say(std::string_view phase, std::string text) {
  out_.push_back(MemberReport{std::string(phase), operation_, round_, std::move(text)});
}

void Member::Impl::AddFact(Msg msg, int64_t until_ns) {
  msg.type = MsgType::kFact;
  msg.number = next_fact_++;
  Fact& fact = facts_[msg.number];
  fact.msg = std::move(msg);
  fact.until_ns = until_ns;
  SendFact(&fact);
}

void Member::Impl::SendFact(Fact* fact) {
  fact->sent_ns = now_;
  if (fact->until_ns != 0) fact->msg.left_ns = std::max<int64_t>(1, fact->until_ns - now_);
  Send(fact->msg);
}

void Member::Impl::ResendFacts() {
  if (!connected_) return;
  for (auto& [number, fact] : facts_) {
    if (!fact.acked && now_ - fact.sent_ns >= config_.retry_ns) SendFact(&fact);
  }
}

void Member::Impl::ForgetFacts(const std::function<bool(const Msg&)>& which) {
  std::erase_if(facts_, [&](const auto& entry) { return which(entry.second.msg); });
}

void Member::Impl::OnAck(const Msg& msg) {
  for (const uint64_t number : msg.numbers) {
    const auto it = facts_.find(number);
    if (it != facts_.end()) it->second.acked = true;
  }
}

void Member::Impl::On(const FromLeader& event) {
  const Msg& msg = event.msg;
  TakeExtension(msg);
  switch (msg.type) {
    case MsgType::kAsk:
      return OnAsk(msg);
    case MsgType::kPropose:
      return OnPropose(msg);
    case MsgType::kCommit:
      return OnCommit(msg);
    case MsgType::kWithdraw:
      return OnWithdraw(msg);
    case MsgType::kDecision:
      return OnDecision(msg);
    case MsgType::kSaveAnswer:
      return OnSaveAnswer(msg);
    case MsgType::kGeneration:
      return OnGeneration(msg);
    case MsgType::kDrop:
      return OnDrop(msg);
    case MsgType::kAck:
      return OnAck(msg);
    case MsgType::kPlaces:
    case MsgType::kVote:
    case MsgType::kDropped:
    case MsgType::kFact:
      return;  // a leader never says these
  }
}

void Member::Impl::On(const Tick&) {
  PollWords();
  RefuseOverdueSaves();
  WatchSaves();
  CheckOwnDeadline();
  for (const auto& [number, generation] : generations_) {
    if (generation.dropping && !generation.dropped) FinishDrop(number);
  }
  ResendFacts();
}

void Member::Impl::On(const RankPoke&) { PollWords(); }

void Member::Impl::On(const RankSealed& event) {
  RankState* state = Find(event.rank);
  if (state == nullptr) return;
  NoteSealed(event.rank, state, event);
}

void Member::Impl::On(const RankStageFailed& event) {
  RankState* state = Find(event.rank);
  if (state == nullptr) return;
  state->filling.erase(event.generation);
  const auto it = generations_.find(event.generation);
  if (it == generations_.end() || it->second.attempt != event.attempt) return;
  const Status why = Status(event.status).Annotate("rank " + std::to_string(event.rank.value()));
  if (it->second.dropping) return FinishDrop(event.generation);
  if (it->second.is_save) {
    Msg fact{.fact = FactKind::kStageFailed};
    fact.generation = event.generation;
    fact.attempt = event.attempt;
    fact.rank = event.rank.value();
    fact.code = static_cast<int32_t>(why.code());
    fact.text = why.message();
    AddFact(std::move(fact));
  } else if (phase_ == Phase::kStaging && event.generation == generation_) {
    FailBack(why);
  }
}

void Member::Impl::On(const RankFinished& event) {
  RankState* state = Find(event.rank);
  if (state == nullptr || state->finished) return;
  state->finished = true;
  state->filling.clear();
  Msg fact{.fact = FactKind::kFinished};
  fact.rank = event.rank.value();
  AddFact(std::move(fact));
  PollWords();
}

// The newest word of a rank is the only one that is repeated.
void Member::Impl::On(const RankInPhase& event) {
  const RankState* state = Find(event.rank);
  if (state == nullptr || state->exited) return;
  ForgetFacts([&](const Msg& fact) {
    return fact.fact == FactKind::kPhase && fact.rank == event.rank.value();
  });
  Msg fact{.fact = FactKind::kPhase};
  fact.rank = event.rank.value();
  fact.text = event.kind;
  const bool timed = !event.kind.empty() && event.expected_ns > 0;
  AddFact(std::move(fact), timed ? now_ + std::min(event.expected_ns, kLeftNsMax) : 0);
}

void Member::Impl::On(const RankExited& event) {
  RankState* state = Find(event.rank);
  if (state == nullptr || state->exited) return;
  state->exited = true;
  state->filling.clear();
  state->wants_save = false;
  Msg fact{.fact = FactKind::kExited};
  fact.rank = event.rank.value();
  fact.code = event.exit_code;
  fact.step = event.signal;
  fact.slot = state->finished ? 1 : 0;
  AddFact(std::move(fact));
  const bool clean = event.exit_code == 0 && event.signal == 0;
  if (!clean && !connected_ && !Ended()) {
    crash_deadline_ = std::min(crash_deadline_, now_ + config_.patience_ns);
  }
  PollWords();
}

void Member::Impl::On(const AllReleased&) {
  if (all_released_) return;
  all_released_ = true;
  AddFact(Msg{.fact = FactKind::kReleased});
  if (phase_ == Phase::kReleasing) SetPhase(Phase::kReleased, kNever);
  if (phase_ == Phase::kReleased) SendVote();
  Say("released");
}

void Member::Impl::On(const LeaderLost&) {
  connected_ = false;
  const bool crashed = std::any_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.exited && !rank.finished;
  });
  if (crashed && !Ended()) crash_deadline_ = std::min(crash_deadline_, now_ + config_.patience_ns);
}

// A leader that returned knows only what it stored: everything that still matters is said again.
void Member::Impl::On(const LeaderBack&) {
  connected_ = true;
  crash_deadline_ = kNever;
  for (auto& [number, fact] : facts_) {
    fact.acked = false;
    SendFact(&fact);
  }
  if (round_ != 0) SendVote();
}

}  // namespace ckpt::gang
