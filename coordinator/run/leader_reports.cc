// What the machine reports, as facts for the agent and as lines for people.
#include "coordinator/run/leader_launch.h"
#include "libckpt/base/log.h"

namespace ckpt::run {
namespace {

std::string Ranks(const std::vector<uint32_t>& ranks) {
  std::string text;
  for (const uint32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

void LeaderLaunch::OnReport(const gang::Report& report) {
  using gang::OpPhase;
  const bool stop =
      report.request != gang::Request::kNone && report.request != gang::Request::kSave;
  if (report.attempt != 0 &&
      (report.phase == OpPhase::kStaged || report.phase == OpPhase::kDurable))
    steps_[report.attempt] = report.step;
  switch (report.phase) {
    case OpPhase::kQueued:
      if (stop) times_ = LaunchTimes{.noticed_ns = report.at_ns};
      break;
    case OpPhase::kQuiesced:
      if (stop) times_.cut_ns = report.at_ns;
      break;
    case OpPhase::kStaged:
      if (stop) {
        times_.staged_ns = report.at_ns;
        stop_attempt_ = report.attempt;
      }
      break;
    case OpPhase::kCommsDown:
      times_.comms_down_ns = report.at_ns;
      break;
    case OpPhase::kReleased:
      times_.released_ns = report.at_ns;
      if (report.status.ok()) SetEnd(LaunchEnd::kSuspended, "");
      break;
    case OpPhase::kDurable:
      durable_.insert(report.attempt);
      if (report.attempt == stop_attempt_) times_.durable_ns = report.at_ns;
      break;
    case OpPhase::kNotDurable:
      not_durable_[report.attempt] = report.status.message();
      break;
    case OpPhase::kEnded:
      stop_attempt_ = report.attempt;
      SetEnd(report.request == gang::Request::kKill ? LaunchEnd::kKilled : LaunchEnd::kFailed,
             report.status.message());
      break;
    case OpPhase::kFinished:
      if (report.operation == 0) SetEnd(LaunchEnd::kFinished, "");
      if (report.operation != 0 && stop) refusal_ = report.status.message();
      break;
    case OpPhase::kRolledBack:
    case OpPhase::kRefused:
      // Not because the stop that came first is nearly through.
      if (view().decision == gang::Decision::kRelease) break;
      if (report.operation != 0 && report.operation == operation_) {
        operation_ = 0;
        refusal_ = report.status.message();
        notices_ = gang::NoticeBook();
      }
      break;
    case OpPhase::kNotified:
    case OpPhase::kReleasing:
    case OpPhase::kAgain:
    case OpPhase::kTooLate:
      break;
  }
  SayPhase(report);
  host_.changed();
}

void LeaderLaunch::SetEnd(LaunchEnd end, std::string reason) {
  if (end_ != LaunchEnd::kNone) return;
  end_ = end;
  end_reason_ = std::move(reason);
}

void LeaderLaunch::SayPhase(const gang::Report& report) {
  using gang::OpPhase;
  const std::string id = IdOf(report.attempt, report.step).ToString();
  const bool stop =
      report.request != gang::Request::kNone && report.request != gang::Request::kSave;
  const std::string missing =
      report.missing.empty() ? "" : " (ranks " + Ranks(report.missing) + " are missing)";
  switch (report.phase) {
    case OpPhase::kStaged:
      if (stop) {
        Say("all " + std::to_string(config_.world) + " ranks stopped at boundary " +
            std::to_string(report.cut) + " (step " + std::to_string(report.step) + "), staged " +
            FormatBytes(stage_bytes_) + " in " +
            FormatDuration(Nanos(times_.staged_ns - times_.cut_ns)));
      }
      return;
    case OpPhase::kReleased:
      if (report.status.ok()) {
        Say("all ranks are gone, " + FormatDuration(Nanos(report.at_ns - times_.noticed_ns)) +
            " after the notice; GPUs are free" +
            (durable_.contains(report.attempt)
                 ? ""
                 : "; " + id + " is in RAM of this gang only, writing to " +
                       services_->store->Describe() + " ..."));
      }
      return;
    case OpPhase::kDurable:
      return Say("durable: " + id);
    case OpPhase::kNotDurable:
      return Say(id + " will not become durable: " + report.status.message());
    case OpPhase::kRolledBack:
      return Say(std::string(stop ? "suspend" : "save") +
                 " rolled back, training goes on: " + report.status.message() + missing);
    case OpPhase::kRefused:
      return Say(std::string(gang::Name(report.request)) + " refused: " + report.status.message() +
                 missing);
    case OpPhase::kEnded:
      return Say("the gang ends: " + report.status.message() +
                 (report.attempt != 0 ? "; " + id + " stands" : ""));
    default:
      LogDebug(std::string(gang::Name(report.phase)) + ": " + report.status.ToString());
  }
}

}  // namespace ckpt::run
