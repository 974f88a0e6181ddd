#include "libckpt/testing/run_peer/run_peer.h"

#include "libckpt/os/futex.h"
#include "libckpt/plan/plan.h"

namespace ckpt::testing {

Result<std::unique_ptr<RunPeer>> RunPeer::Listen(const Config& config) {
  std::unique_ptr<RunPeer> peer(new RunPeer(config));
  CKPT_RETURN_IF_ERROR(peer->FreshPage());
  CKPT_RETURN_IF_ERROR(peer->ComeBack());
  return peer;
}

Status RunPeer::ComeBack() {
  CKPT_ASSIGN_OR_RETURN(listener_, os::ListenUnix(config_.socket));
  return OkStatus();
}

Status RunPeer::FreshPage() {
  CKPT_ASSIGN_OR_RETURN(page_memfd_, os::Memfd::Create("ckpt-page", kPageBytes));
  CKPT_ASSIGN_OR_RETURN(os::Mapping mapping, page_memfd_.Map());
  page_ = reinterpret_cast<wire::ControlPage*>(mapping.data());
  wire::InitPage(page_, config_.epoch, config_.rank, config_.world);
  page_mappings_.push_back(std::move(mapping));
  return OkStatus();
}

Result<wire::Hello> RunPeer::Welcome(const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(os::UniqueFd fd, os::Accept(listener_.get(), deadline));
  channel_ = wire::Channel(std::move(fd));
  CKPT_ASSIGN_OR_RETURN(wire::Hello hello, Expect<wire::Hello>(deadline));
  wire::Welcome welcome;
  welcome.epoch = config_.epoch;
  welcome.job_id = config_.job_id;
  welcome.store = config_.store;
  welcome.resume = config_.resume;
  welcome.resume_from = config_.resume_from;
  CKPT_RETURN_IF_ERROR(Send(last_request_, welcome, {page_memfd_.fd()}));
  return hello;
}

Status RunPeer::Refuse(const Status& why, const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(os::UniqueFd fd, os::Accept(listener_.get(), deadline));
  channel_ = wire::Channel(std::move(fd));
  CKPT_RETURN_IF_ERROR(Expect<wire::Hello>(deadline).status());
  return Answer(wire::Failed{static_cast<uint32_t>(why.code()), false, why.message()});
}

Status RunPeer::SendSlots(const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(const wire::Layout frame, Expect<wire::Layout>(deadline));
  if (last_fds_.size() != 1) return DataLoss("LAYOUT without its memory");
  CKPT_ASSIGN_OR_RETURN(const os::Memfd memfd, os::Memfd::FromFd(std::move(last_fds_[0])));
  CKPT_ASSIGN_OR_RETURN(const os::Mapping mapping, memfd.Map({.writable = false}));
  CKPT_ASSIGN_OR_RETURN(const format::RankLayout layout,
                        format::RankLayout::Decode(AsText(mapping.bytes().first(frame.bytes))));
  if (layout.Hash() != frame.hash) return DataLoss("LAYOUT with another hash");
  // All ranks are taken to be alike: enough for one rank's own part of the plan.
  std::vector<format::RankLayout> layouts(config_.world, layout);
  for (uint32_t rank = 0; rank < config_.world; ++rank) layouts[rank].rank = Rank(rank);
  CKPT_ASSIGN_OR_RETURN(const plan::GangPlan plan,
                        plan::MakePlan(layouts, std::vector<uint32_t>(config_.world, 0)));
  const plan::RankPlan& mine = plan.ranks[config_.rank];
  for (uint32_t i = 0; i < kStagingSlotsMax; ++i) {
    Slot& slot = slots_[i];
    const uint64_t bytes = AlignUp(engine::StagingRegion::BytesNeeded(layout, mine), kPageBytes);
    CKPT_ASSIGN_OR_RETURN(slot.memfd, os::Memfd::Create("ckpt-slot", bytes));
    CKPT_ASSIGN_OR_RETURN(slot.mapping, slot.memfd.Map());
    CKPT_ASSIGN_OR_RETURN(
        engine::StagingRegion region,
        engine::StagingRegion::Format(
            slot.mapping.bytes(), {config_.job_id, Rank(config_.rank), config_.world, plan.hash},
            layout, mine));
    slot.region = std::make_unique<engine::StagingRegion>(std::move(region));
    CKPT_RETURN_IF_ERROR(Send(0, wire::Staging{.slot = i, .bytes = bytes}, {slot.memfd.fd()}));
  }
  return OkStatus();
}

Status RunPeer::Send(uint32_t request, wire::Body body, std::vector<int> fds) {
  return channel_.Send(wire::Frame{request, std::move(body)}, fds,
                       Deadline("sending to the rank", std::chrono::seconds(30)));
}

Result<wire::Frame> RunPeer::Take(const Deadline& deadline,
                                  const std::function<bool(const wire::Frame&)>& wanted) {
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (!wanted(kept->frame)) continue;
    wire::Incoming<wire::Frame> found = std::move(*kept);
    kept_.erase(kept);
    last_fds_ = std::move(found.fds);
    return std::move(found.frame);
  }
  for (;;) {
    CKPT_ASSIGN_OR_RETURN(wire::Incoming<wire::Frame> incoming, channel_.Receive(deadline));
    if (wanted(incoming.frame)) {
      last_fds_ = std::move(incoming.fds);
      return std::move(incoming.frame);
    }
    kept_.push_back(std::move(incoming));
  }
}

Status RunPeer::ServeRam(const std::vector<const os::Memfd*>& regions, const Deadline& deadline) {
  CKPT_RETURN_IF_ERROR(Expect<wire::RestoreOpen>(deadline).status());
  for (size_t i = 0; i < regions.size(); ++i) {
    const wire::ReadMap map{config_.rank, regions[i]->bytes(), i + 1 == regions.size()};
    CKPT_RETURN_IF_ERROR(Send(last_request_, map, {regions[i]->fd()}));
  }
  return OkStatus();
}

bool RunPeer::Move(const std::function<std::optional<Word>(Word)>& to) {
  for (;;) {
    const Word word = wire::LoadWord(*page_);
    const std::optional<Word> next = to(word);
    if (!next) return false;
    if (!wire::CasWord(page_, word, *next)) continue;
    os::FutexWakeAll(wire::FutexOf(*page_));
    return true;
  }
}

bool RunPeer::Propose(uint32_t cut, WordState proposed, const wire::Order& order) {
  wire::StoreOrder(page_, order);
  return Move([&](Word word) -> std::optional<Word> {
    if (word.state != WordState::kIdle || AtOrPast(word.boundary, cut)) return std::nullopt;
    return Word{word.boundary, cut, proposed};
  });
}

bool RunPeer::Raise(uint32_t cut, const wire::Order& order) {
  wire::StoreOrder(page_, order);
  return Move([&](Word word) -> std::optional<Word> {
    if (!IsProposed(word.state)) return std::nullopt;
    return Word{word.boundary, cut, word.state};
  });
}

bool RunPeer::Commit() {
  return Move([](Word word) -> std::optional<Word> {
    if (!IsProposed(word.state)) return std::nullopt;
    word.state = word.state == WordState::kProposedStop ? WordState::kCommittedStop
                                                        : WordState::kCommittedSave;
    return word;
  });
}

bool RunPeer::Stage() {
  return Move([](Word word) -> std::optional<Word> {
    if (word.state != WordState::kCommittedStop) return std::nullopt;
    word.state = WordState::kStaging;
    return word;
  });
}

bool RunPeer::Withdraw() {
  return Move([](Word word) -> std::optional<Word> {
    if (!IsProposed(word.state) && !IsCommitted(word.state)) return std::nullopt;
    word.state = WordState::kIdle;
    return word;
  });
}

bool RunPeer::Settle() {
  return Move([](Word word) -> std::optional<Word> {
    if (word.state != WordState::kRefused && word.state != WordState::kStaging) return std::nullopt;
    word.state = WordState::kIdle;
    return word;
  });
}

void RunPeer::StoreOutcome(wire::PageOutcome outcome) {
  Result<wire::Order> order = wire::LoadOrder(*page_);
  if (!order.ok()) return;
  order->outcome = outcome;
  wire::StoreOrder(page_, *order);
}

bool RunPeer::Await(const std::function<bool()>& done, const Deadline& deadline) const {
  while (!done()) {
    if (deadline.Expired()) return false;
    // Nobody wakes a boundary that only moves on: look again soon.
    os::FutexWait(wire::FutexOf(*page_), static_cast<uint32_t>(word().Pack()),
                  deadline.Min(Deadline("a look", std::chrono::milliseconds(2))))
        .IgnoreError();
  }
  return true;
}

void RunPeer::HangUp() { channel_.Close(); }

void RunPeer::Die() {
  channel_.Close();
  listener_.Reset();
}

}  // namespace ckpt::testing
