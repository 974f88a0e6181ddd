// An agent for tests: it speaks the real protocol on a real connection and pretends that every job
// runs well. No process is started.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "ckpt/v1/agent.grpc.pb.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/mutex.h"
#include "libckpt/os/thread.h"

namespace ckpt::ckptd {

class FakeAgent {
 public:
  FakeAgent(const std::string& address, const std::string& name, uint32_t slots,
            const std::string& cluster_id = "", uint64_t boot_ns = 1)
      : stub_(
            v1::Agents::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))),
        name_(name) {
    stream_ = stub_->Session(&context_);
    v1::AgentMsg hello;
    v1::NodeInfo* node = hello.mutable_node();
    node->set_name(name);
    node->set_address("127.0.0.1");
    node->set_data_address("127.0.0.1:1");
    node->set_slots(slots);
    node->set_staging_budget_bytes(512 << 20);
    node->set_memcpy_gbps(8);
    node->set_boot_ns(boot_ns);
    node->set_cluster_id(cluster_id);
    stream_->Write(hello);
    reader_ = os::Thread("fake-agent", [this] { Read(); });
  }
  ~FakeAgent() { Close(); }

  void Close() {
    context_.TryCancel();
    reader_.Join();
  }
  void Send(const v1::AgentMsg& message) {
    MutexLock lock(mutex_);
    stream_->Write(message);
  }
  // Changes what it says of its copies, of all jobs.
  void SetCopies(const std::function<void(v1::CopyState*)>& change) {
    MutexLock lock(mutex_);
    for (auto& [job, report] : reports_) {
      for (v1::CopyState& copy : *report.mutable_copies()) change(&copy);
      WriteReport(report);
    }
  }
  // Of all jobs that it holds.
  void AddCopy(const v1::CopyState& copy) {
    MutexLock lock(mutex_);
    for (auto& [job, report] : reports_) {
      *report.add_copies() = copy;
      WriteReport(report);
    }
  }
  // What a drain does when it is through.
  void MakeDurable() {
    SetCopies([](v1::CopyState* copy) { copy->set_durable(true); });
  }
  void Finish(const std::string& job) {
    MutexLock lock(mutex_);
    reports_[job].set_state(v1::NODE_JOB_FINISHED);
    WriteReport(reports_[job]);
  }
  // From now on a stop goes as far as staging half of the bytes, until Release.
  void Hold() {
    MutexLock lock(mutex_);
    hold_ = true;
  }
  // What a stop that was held would have done at once; half of it is written.
  void Release(const std::string& job) {
    MutexLock lock(mutex_);
    hold_ = false;
    Released(job);
  }
  // From now on a launch goes as far as starting, until ReleaseStart.
  void HoldStart() {
    MutexLock lock(mutex_);
    hold_start_ = true;
  }
  void ReleaseStart(const std::string& job) {
    MutexLock lock(mutex_);
    hold_start_ = false;
    Started(job);
  }
  // Waits until a stop is held.
  void AwaitHeld() {
    MutexLock lock(mutex_);
    const Deadline deadline("held stop", std::chrono::seconds(60));
    while (!held_ && changed_.WaitUntil(mutex_, deadline)) {
    }
  }
  // Adds to what rank 0 of every job has written; from then on a new epoch begins with none of it.
  void Write(const std::string& text) {
    MutexLock lock(mutex_);
    log_ += text;
    wrote_ = true;
  }
  void Fail(const std::string& job, const std::string& why) {
    MutexLock lock(mutex_);
    reports_[job].set_state(v1::NODE_JOB_FAILED);
    reports_[job].set_message(why);
    WriteReport(reports_[job]);
  }
  // Waits until the stream has ended and returns how.
  grpc::Status Ended() {
    reader_.Join();
    return status_;
  }
  // Waits for the greeting.
  v1::CoordinatorMsg Welcome() {
    MutexLock lock(mutex_);
    const Deadline deadline("welcome", std::chrono::seconds(60));
    while (!welcomed_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    return welcome_;
  }

 private:
  void Read() {
    v1::CoordinatorMsg message;
    while (stream_->Read(&message)) {
      MutexLock lock(mutex_);
      Obey(message);
      changed_.NotifyAll();
    }
    status_ = stream_->Finish();
  }

  void Obey(const v1::CoordinatorMsg& m) CKPT_REQUIRES(mutex_) {
    switch (m.kind_case()) {
      case v1::CoordinatorMsg::kWelcome:
        welcome_ = m;
        welcomed_ = true;
        return;
      case v1::CoordinatorMsg::kLaunch:
        Accept(m.launch().op_id(), m.launch().job(), m.launch().epoch());
        return OnLaunch(m.launch());
      case v1::CoordinatorMsg::kStop:
        Accept(m.stop().op_id(), m.stop().job(), m.stop().epoch());
        return OnStop(m.stop());
      case v1::CoordinatorMsg::kFetch:
        return OnFetch(m.fetch());
      case v1::CoordinatorMsg::kReadLog:
        return OnReadLog(m.read_log());
      default:
        return;
    }
  }

  void OnLaunch(const v1::Launch& launch) CKPT_REQUIRES(mutex_) {
    v1::JobReport& report = reports_[launch.job()];
    if (wrote_ && launch.epoch() > 1) log_.clear();
    report.Clear();
    report.set_job(launch.job());
    report.set_epoch(launch.epoch());
    report.set_node_rank(launch.node_rank());
    if (launch.node_rank() == 0) report.set_gang_address("127.0.0.1:7");
    if (!launch.expect().empty()) report.set_resumed_from("ram " + launch.expect());
    report.set_state(v1::NODE_JOB_STARTING);
    WriteReport(report);
    if (hold_start_) return;
    Started(launch.job());
  }

  void Started(const std::string& job) CKPT_REQUIRES(mutex_) {
    v1::JobReport& report = reports_[job];
    report.set_state(v1::NODE_JOB_RUNNING);
    report.set_step(100);
    v1::Method* method = report.add_methods();
    method->set_name("suspend");
    method->set_yes(true);
    WriteReport(report);
  }

  void OnStop(const v1::Stop& stop) CKPT_REQUIRES(mutex_) {
    v1::JobReport& report = reports_[stop.job()];
    if (stop.kind() == v1::STOP_WITHDRAW) {
      if (!held_ || report.state() != v1::NODE_JOB_STOPPING) return;
      report.set_state(v1::NODE_JOB_RUNNING);
      report.set_suspend_failed(true);
      report.set_message("withdrawn by operator");
      report.clear_staging_done();
      report.clear_staging_total();
      return WriteReport(report);
    }
    report.set_op_id(stop.op_id());
    report.clear_suspend_failed();
    report.clear_message();
    if (stop.kind() == v1::STOP_KILL) {
      report.set_state(v1::NODE_JOB_FAILED);
      report.set_message("killed");
      return WriteReport(report);
    }
    v1::PhaseTimes* times = report.mutable_times();
    times->set_noticed_ns(1'000'000);
    times->set_cut_ns(3'000'000);
    report.set_state(v1::NODE_JOB_STOPPING);
    if (hold_) {
      report.set_staging_done(32 << 20);
      report.set_staging_total(64 << 20);
      held_ = true;
      return WriteReport(report);
    }
    WriteReport(report);
    Released(stop.job());
  }

  void Released(const std::string& job) CKPT_REQUIRES(mutex_) {
    v1::JobReport& report = reports_[job];
    v1::PhaseTimes* times = report.mutable_times();
    times->set_staged_ns(8'000'000);
    times->set_staged_bytes(64 << 20);
    times->set_comms_down_ns(9'000'000);
    WriteReport(report);
    times->set_released_ns(20'000'000);
    report.set_state(v1::NODE_JOB_RELEASED);
    v1::CopyState* copy = report.add_copies();
    copy->set_epoch(report.epoch());
    copy->set_bytes_durable(16 << 20);
    copy->set_bytes_to_write(32 << 20);
    copy->set_attempt(1);
    copy->set_step(100);
    copy->set_bytes(64 << 20);
    copy->set_staged_gang(true);
    copy->add_ram_nodes(name_);
    WriteReport(report);
  }

  void OnFetch(const v1::Fetch& fetch) CKPT_REQUIRES(mutex_) {
    v1::AgentMsg message;
    message.mutable_fetch()->set_job(fetch.job());
    message.mutable_fetch()->set_op_id(fetch.op_id());
    message.mutable_fetch()->set_done(true);
    message.mutable_fetch()->set_bytes_done(32 << 20);
    message.mutable_fetch()->set_bytes_total(32 << 20);
    stream_->Write(message);
  }

  void OnReadLog(const v1::ReadLog& request) CKPT_REQUIRES(mutex_) {
    v1::AgentMsg message;
    v1::LogChunk* chunk = message.mutable_log();
    chunk->set_request(request.request());
    const size_t offset = std::min<size_t>(request.offset(), log_.size());
    chunk->set_data(log_.substr(offset, 8));
    chunk->set_next_offset(offset + chunk->data().size());
    if (request.rank() == 1) chunk->set_error("rank 1 has written nothing");
    stream_->Write(message);
  }

  void Accept(uint64_t op_id, const std::string& job, uint64_t epoch) CKPT_REQUIRES(mutex_) {
    v1::AgentMsg message;
    message.mutable_result()->set_op_id(op_id);
    message.mutable_result()->set_job(job);
    message.mutable_result()->set_epoch(epoch);
    message.mutable_result()->set_accepted(true);
    stream_->Write(message);
  }

  void WriteReport(const v1::JobReport& report) CKPT_REQUIRES(mutex_) {
    v1::AgentMsg message;
    *message.mutable_job() = report;
    stream_->Write(message);
  }

  std::unique_ptr<v1::Agents::Stub> stub_;
  const std::string name_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMsg, v1::CoordinatorMsg>> stream_;
  grpc::Status status_;
  Mutex mutex_;  // also of the writing half
  CondVar changed_;
  std::map<std::string, v1::JobReport> reports_ CKPT_GUARDED_BY(mutex_);
  v1::CoordinatorMsg welcome_ CKPT_GUARDED_BY(mutex_);
  bool welcomed_ CKPT_GUARDED_BY(mutex_) = false;
  bool wrote_ CKPT_GUARDED_BY(mutex_) = false;
  bool hold_start_ CKPT_GUARDED_BY(mutex_) = false;
  bool hold_ CKPT_GUARDED_BY(mutex_) = false, held_ CKPT_GUARDED_BY(mutex_) = false;
  std::string log_ CKPT_GUARDED_BY(mutex_) = "step 1\nstep 2\n";
  os::Thread reader_;
};

}  // namespace ckpt::ckptd
