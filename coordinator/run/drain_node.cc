#include "coordinator/run/drain_node.h"

#include <algorithm>
#include <utility>

#include "coordinator/gang/messages.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/log.h"
#include "libckpt/os/process.h"

namespace ckpt::run {
namespace {

constexpr Nanos kDrainReportEvery = std::chrono::milliseconds(200);

}  // namespace

DrainNode::DrainNode(Services* services, Host host)
    : services_(services),
      host_(std::move(host)),
      tag_("d" + JobId::Random().ToString().substr(0, 12)),
      writers_(
          services->loop, services->write, services->store, services->options.store,
          std::make_shared<engine::DrainPace>(),  // nobody trains here
          [this](uint32_t, const Status& status, const std::string& payload) {
            CKPT_PASS("run.drain.written");
            if (!status.ok()) LogWarning(status.ToString());
            services_->loop->CancelTimer(std::exchange(report_timer_, 0));
            host_.to_leader(
                {0, DrainedMsg{static_cast<uint32_t>(status.code()), status.message(), payload,
                               status.ok() ? layouts_ : std::vector<std::string>()}});
            host_.changed();
          },
          [] { return true; }) {
  writers_.UseSettings(services->options.write);
}

DrainNode::~DrainNode() { services_->loop->CancelTimer(report_timer_); }

void DrainNode::Join() {
  const Options& options = services_->options;
  host_.to_leader({0, JoinMsg{.job = options.job,
                              .node = os::HostName(),
                              .node_rank = options.node_rank,
                              .node_count = options.node_count,
                              .rank_count = options.rank_count,
                              .epoch = options.epoch,
                              .ram = copies(),
                              .drain = true}});
}

void DrainNode::OnLeader(const GangMessage& message) {
  if (const auto* welcome = std::get_if<WelcomeMsg>(&message.body)) {
    if (!welcome->error.empty()) {
      return Abandon(1, "the gang's leader refused this node: " + welcome->error);
    }
    joined_ = true;
    job_id_ = welcome->job_id;
  } else if (const auto* drain = std::get_if<DrainMsg>(&message.body)) {
    OnDrain(*drain);
  } else if (const auto* outcome = std::get_if<OutcomeMsg>(&message.body)) {
    OnOutcome(*outcome);
  }
}

void DrainNode::OnDrain(const DrainMsg& m) {
  if (id_) return;
  id_ = m.id;
  SlotSet slots;
  for (const uint32_t rank : m.ranks) {
    const auto slot = std::find_if(held_.begin(), held_.end(), [&](const SlotPtr& held) {
      return held->rank() == rank && HoldsGeneration(held->region()) &&
             held->region().identity().job == job_id_ && held->region().info().id == m.id;
    });
    if (slot == held_.end()) {
      return host_.to_leader(
          {0, DrainedMsg{static_cast<uint32_t>(Code::kFailedPrecondition),
                         "the copy of rank " + std::to_string(rank) + " of " + m.id.ToString() +
                             " that the agent handed over is not of the job whose id " +
                             services_->store->Describe() + " has (" + job_id_.ToString() + ")"}});
    }
    slots.push_back(*slot);
    layouts_.push_back((*slot)->region().layout().Encode());
  }
  CKPT_PASS("run.drain.write");
  writers_.Start(m.id, slots, tag_);
  // ckptd takes one that does not say how far it is for one that does not write.
  report_timer_ = services_->loop->AddPeriodic(kDrainReportEvery, [this] { host_.changed(); });
  host_.changed();
}

void DrainNode::OnOutcome(const OutcomeMsg& m) {
  if (left_) return;
  // Whoever holds this memory need not keep it any longer.
  for (const SlotPtr& slot : held_) {
    if (m.exit_code != 75 || !id_ || slot->region().info().id != *id_) continue;
    if (HoldsGeneration(slot->region())) {
      slot->region().set_state(engine::GenerationState::kDurable);
    }
  }
  left_ = true;
  if (id_) writers_.Stop(id_->attempt.value());
  host_.leave(static_cast<int>(m.exit_code), m.message);
}

void DrainNode::Abandon(int exit_code, const std::string& why) {
  OnOutcome(OutcomeMsg{static_cast<uint32_t>(exit_code), why});
}

std::string DrainNode::WhatIsKept() const {
  return "the copy stays in the memory of the agents; ckpt-run --drain writes it";
}

void DrainNode::LeaderLost() {
  if (joined_) KillHere("node 0 of the drain is out of reach");
}

void DrainNode::Notice(const NoticeMsg& notice) {
  const auto request = static_cast<gang::Request>(notice.request);
  if (request == gang::Request::kSave) return;
  if (request != gang::Request::kKill && joined_ && !noticed_) {
    noticed_ = true;
    const WriteProgress at = id_ ? progress(id_->attempt.value()) : WriteProgress();
    return Say(notice.source + ": the copy is being written (" + FormatBytes(at.bytes_done) +
               " of " + FormatBytes(at.bytes_total) +
               "); it goes on until it is durable, a second signal gives up");
  }
  // Node 0 ends the drain for all; a node that leaves ends it as well.
  KillHere("stopped by " + notice.source);
}

}  // namespace ckpt::run
