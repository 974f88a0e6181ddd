// What the ranks of a launch say, and what they are told.
#include <signal.h>
#include <string.h>

#include <nlohmann/json.hpp>

#include "coordinator/run/node_launch.h"
#include "libckpt/base/log.h"

namespace ckpt::run {
namespace {

std::string RankName(uint32_t rank) { return "rank " + std::to_string(rank); }

std::string SignalName(uint32_t signal) {
  const char* name = signal < 65 ? sigabbrev_np(static_cast<int>(signal)) : nullptr;
  return name != nullptr ? "SIG" + std::string(name) : "signal " + std::to_string(signal);
}

}  // namespace

void NodeLaunch::Reply(uint32_t rank, uint32_t request, wire::Body body,
                       std::vector<os::UniqueFd> fds) {
  server_->Send(rank, wire::Frame{request, std::move(body)}, std::move(fds));
}

void NodeLaunch::Fail(uint32_t rank, uint32_t request, const Status& why) {
  Reply(rank, request,
        wire::Failed{static_cast<uint32_t>(why.code()), why.outcome() == Outcome::kMaybeApplied,
                     why.message()});
}

void NodeLaunch::OnHello(uint32_t rank, uint32_t request, const wire::Hello& hello) {
  if (services_->options.launcher) {
    if (const Status watched = WatchRank(rank); !watched.ok()) {
      LogWarning(watched.message());
      return Fail(rank, request, watched);
    }
  }
  RankState& state = Of(rank);
  state.registered = true;
  state.methods = hello.methods;
  ever_registered_ = true;
  wire::Welcome welcome{.version = wire::kFrameVersion,
                        .epoch = config_.epoch,
                        .job_id = config_.job_id,
                        .resume = static_cast<wire::ResumeKind>(config_.start.resume_kind),
                        .resume_from = config_.start.resume_from.id,
                        .store = services_->options.store,
                        .notice_id = noticed_ ? uint64_t{1} : 0};
  Result<os::Memfd> page = pages_->memfd(rank).Dup();
  if (!page.ok()) return Fail(rank, request, page.status());
  std::vector<os::UniqueFd> fds;
  fds.push_back(std::move(*page).TakeFd());
  Reply(rank, request, std::move(welcome), std::move(fds));
  if (!SendSlots(rank).ok()) ShareSlots();  // which says why, and goes on trying
  host_.changed();
}

void NodeLaunch::OnFrame(uint32_t rank, wire::Frame frame, std::vector<os::UniqueFd> fds) {
  const uint32_t request = frame.request;
  wire::Body& body = frame.body;
  if (const auto* layout = std::get_if<wire::Layout>(&body)) {
    On(rank, request, *layout, std::move(fds));
  } else if (const auto* get = std::get_if<wire::StagingGet>(&body)) {
    On(rank, request, *get);
  } else if (const auto* sealed = std::get_if<wire::Sealed>(&body)) {
    On(rank, *sealed);
  } else if (const auto* failed = std::get_if<wire::StageFailed>(&body)) {
    On(rank, *failed);
  } else if (const auto* down = std::get_if<wire::CommsDown>(&body)) {
    On(rank, *down);
  } else if (const auto* up = std::get_if<wire::CommsUp>(&body)) {
    On(rank, *up);
  } else if (const auto* notice = std::get_if<wire::Notice>(&body)) {
    Of(rank).signals_seen = pages_->page(rank).signal_count.load();
    On(rank, *notice);
  } else if (auto* set = std::get_if<wire::KvSet>(&body)) {
    host_.to_leader(KvSetMsg{std::move(set->scope), std::move(set->key), std::move(set->value)});
  } else if (const auto* wait = std::get_if<wire::KvWait>(&body)) {
    On(rank, request, *wait);
  } else if (const auto* query = std::get_if<wire::SaveQuery>(&body)) {
    On(rank, request, *query);
  } else if (std::holds_alternative<wire::RestoreOpen>(body)) {
    SendReadMaps(rank, request);
  } else if (const auto* restored = std::get_if<wire::Restored>(&body)) {
    On(rank, *restored);
  } else if (std::holds_alternative<wire::Finished>(body)) {
    Of(rank).finished = true;
    Feed(gang::RankFinished{Rank(rank)});
  } else if (std::holds_alternative<wire::Describe>(body)) {
    SendDescription(rank, request);
  } else if (!std::holds_alternative<wire::Bye>(body)) {
    LogWarning(RankName(rank) + " sent " + std::string(wire::FrameName(body)) +
               ", which is ckpt-run's to send");
  }
}

void NodeLaunch::On(uint32_t rank, uint32_t request, const wire::Layout& m,
                    std::vector<os::UniqueFd> fds) {
  const auto read = [&]() -> Result<std::string> {
    if (fds.size() != 1 || m.bytes == 0 || m.bytes > kManifestBytesMax) {
      return InvalidArgument("a LAYOUT of " + std::to_string(m.bytes) + " bytes with " +
                             std::to_string(fds.size()) + " descriptors");
    }
    CKPT_ASSIGN_OR_RETURN(const os::Memfd memfd, os::Memfd::FromFd(std::move(fds[0])));
    if (memfd.bytes() < m.bytes) return InvalidArgument("a LAYOUT beyond its memory");
    CKPT_ASSIGN_OR_RETURN(const os::Mapping mapping, memfd.Map({.writable = false}));
    return std::string(AsText(mapping.bytes().first(m.bytes)));
  };
  Result<std::string> bytes = read();
  Result<format::RankLayout> layout =
      bytes.ok() ? format::RankLayout::Decode(*bytes) : Result<format::RankLayout>(bytes.status());
  if (layout.ok() && (layout->rank.value() != rank || layout->Hash() != m.hash)) {
    layout = InvalidArgument("a LAYOUT of rank " + std::to_string(layout->rank.value()) +
                             " or with another hash than it says");
  }
  if (!layout.ok()) return Fail(rank, request, Status(layout.status()).Annotate(RankName(rank)));
  RankState& state = Of(rank);
  state.layout = std::move(layout).value();
  state.layout_bytes = std::move(bytes).value();
  state.layout_request = request;
  SendLayouts();
}

void NodeLaunch::On(uint32_t rank, uint32_t request, const wire::StagingGet& m) {
  RankState& state = Of(rank);
  state.save_request = request;
  state.save_boundary = m.boundary;
  state.save_sequence = m.sequence;
  if (!staging_error_.ok()) return Fail(rank, request, staging_error_);
  if (!state.layout) {
    return Fail(rank, request, FailedPrecondition(RankName(rank) + " has tracked nothing to save"));
  }
  Feed(gang::RankWantsSave{Rank(rank), m.boundary, m.wait, m.deadline_boottime_ns, m.sequence});
}

void NodeLaunch::On(uint32_t rank, const wire::Sealed& m) {
  StagingSlot* slot = SlotHolding(rank, m.slot, m.generation);
  const engine::GenerationInfo info = slot ? slot->region().info() : engine::GenerationInfo();
  if (slot == nullptr || slot->region().state() != engine::GenerationState::kSealed ||
      info.generation != m.generation || info.id.attempt.value() != m.attempt ||
      info.id.epoch.value() != config_.epoch || info.id.step.value() != m.step) {
    LogWarning(RankName(rank) + " says SEALED for what its memory does not hold");
    return Feed(gang::RankStageFailed{Rank(rank), m.generation, m.attempt,
                                      DataLoss("SEALED and staging memory differ")});
  }
  const int64_t since = pages_->staging_since_ns(rank);
  if (since != 0 && info.full) Of(rank).stall_ns = BoottimeNs() - since;
  Feed(gang::RankSealed{Rank(rank), m.generation, m.attempt, m.step});
}

void NodeLaunch::On(uint32_t rank, const wire::StageFailed& m) {
  Status why(m.code == 0 || m.code > 16 ? Code::kUnknown : static_cast<Code>(m.code), m.message);
  LogWarning(RankName(rank) + " could not stage: " + why.ToString());
  Feed(gang::RankStageFailed{Rank(rank), m.generation, m.attempt, std::move(why)});
}

namespace {

Status StatusOf(uint32_t code, const std::string& message) {
  if (code == 0) return OkStatus();
  return Status(code > 16 ? Code::kUnknown : static_cast<Code>(code), message);
}

}  // namespace

void NodeLaunch::On(uint32_t rank, const wire::CommsDown& m) {
  Feed(gang::RankCommsDown{Rank(rank), m.operation, m.round, StatusOf(m.code, m.message)});
}

void NodeLaunch::On(uint32_t rank, const wire::CommsUp& m) {
  // A rank has one rebuild at most; the frame names it or its operation.
  Feed(gang::RankCommsUp{Rank(rank), Of(rank).rebuild, StatusOf(m.code, m.message)});
}

void NodeLaunch::On(uint32_t rank, const wire::Notice& m) {
  NoticeSignal(SignalName(m.signal) + " at rank " + std::to_string(rank));
}

void NodeLaunch::NoticeSignal(const std::string& source) {
  noticed_ = true;
  host_.to_leader(NoticeMsg{.request = static_cast<uint32_t>(gang::Request::kSuspend),
                            .left_ns = services_->options.grace.count(),
                            .hard = true,
                            .source = source});
}

void NodeLaunch::On(uint32_t rank, uint32_t request, const wire::KvWait& m) {
  const uint64_t id = next_kv_++;
  const Nanos left = Deadline::At("a key", m.deadline_boottime_ns).Left();
  const os::EventLoop::TimerId timer = services_->loop->AddTimer(left, [this, id, key = m.key] {
    const KvQuestion question = kv_questions_[id];
    kv_questions_.erase(id);
    Fail(question.rank, question.request,
         DeadlineExceeded("no rank has set key '" + key + "' in time"));
  });
  kv_questions_[id] = KvQuestion{rank, request, timer};
  host_.to_leader(KvWaitMsg{id, m.scope, m.key});
}

void NodeLaunch::OnKvValue(const KvValueMsg& m) {
  const auto node = kv_questions_.extract(m.id);
  if (node.empty()) return;
  services_->loop->CancelTimer(node.mapped().timer);
  Reply(node.mapped().rank, node.mapped().request, wire::KvValue{m.value});
}

void NodeLaunch::On(uint32_t rank, uint32_t request, const wire::SaveQuery& m) {
  const auto it = saves_.find(m.attempt);
  wire::SaveState state = it != saves_.end() ? it->second : wire::SaveState{.attempt = m.attempt};
  if (writers_.writing(m.attempt)) {
    const WriteProgress progress = writers_.progress(m.attempt);
    state.bytes_done = progress.bytes_done;
    state.bytes_total = progress.bytes_total;
  }
  Reply(rank, request, state);
}

void NodeLaunch::SendReadMaps(uint32_t rank, uint32_t request) {
  std::vector<const StagingSlot*> found;
  for (const SlotPtr& slot : config_.older) {
    if (HoldsGeneration(slot->region()) && slot->region().identity().job == config_.job_id &&
        slot->region().info().id == config_.start.resume_from.id) {
      found.push_back(slot.get());
    }
  }
  if (static_cast<wire::ResumeKind>(config_.start.resume_kind) != wire::ResumeKind::kRam ||
      found.empty()) {
    return Fail(rank, request, NotFound("this launch does not resume from RAM"));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    Result<os::Memfd> memfd = found[i]->memfd().Dup();
    if (!memfd.ok()) return Fail(rank, request, memfd.status());
    std::vector<os::UniqueFd> fds;
    fds.push_back(std::move(*memfd).TakeFd());
    Reply(rank, request, wire::ReadMap{found[i]->rank(), found[i]->bytes(), i + 1 == found.size()},
          std::move(fds));
  }
}

void NodeLaunch::On(uint32_t rank, const wire::Restored& m) {
  const RestoredMsg restored{rank, m.step, m.code, m.message};
  Of(rank).restored = restored;
  host_.to_leader(restored);
  host_.changed();
}

void NodeLaunch::SendDescription(uint32_t rank, uint32_t request) {
  nlohmann::json capabilities = nlohmann::json::array();
  for (const wire::Capability& method : status().methods) {
    capabilities.push_back(
        {{"method", method.method}, {"yes", method.yes}, {"reason", method.reason}});
  }
  nlohmann::json generations = nlohmann::json::array();
  for (const RamCopy& copy : copies()) {
    generations.push_back({{"id", copy.id.ToString()},
                           {"gang_complete", copy.gang_complete},
                           {"full", copy.full},
                           {"durable", copy.durable}});
  }
  const nlohmann::json description = {{"job", services_->options.job},
                                      {"epoch", config_.epoch},
                                      {"node_rank", services_->options.node_rank},
                                      {"phase", status().phase},
                                      {"capabilities", capabilities},
                                      {"generations", generations}};
  Reply(rank, request, wire::Description{description.dump()});
}

}  // namespace ckpt::run
