#include "coordinator/ckptd/coordinator_service.h"

#include "coordinator/ckptd/convert.h"
#include "coordinator/ckptd/event_watch.h"
#include "coordinator/ckptd/status_convert.h"
#include "libckpt/base/version.h"

namespace ckpt::ckptd {
namespace {

constexpr int64_t kOperationWaitMsMax = 600'000;
constexpr uint64_t kDataBytesMin = uint64_t{64} << 20;  // free, for records

template <typename Stop>
Stop StopFromProto(const v1::StopRequest& in) {
  Stop stop;
  stop.op_id = in.op_id();
  stop.job = in.job();
  stop.epoch = in.epoch();
  stop.deadline_ms = in.deadline_ms();
  return stop;
}

}  // namespace

grpc::ServerUnaryReactor* CoordinatorService::OnLoop(Context* context,
                                                     std::function<Status()> body) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const Status posted = loop_->Post([this, reactor, body = std::move(body)] {
    const Status stored = loop_->CheckStored();
    reactor->Finish(ToGrpc(stored.ok() ? body() : stored));
  });
  if (!posted.ok()) reactor->Finish(ToGrpc(posted));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::Operate(Context* context, core::Event event,
                                                      v1::Operation* out) {
  return OnLoop(context, [this, event = std::move(event), out]() -> Status {
    CKPT_ASSIGN_OR_RETURN(const core::Reply reply, loop_->Apply(event));
    const core::Operation* operation = loop_->core().FindOperation(reply.op_id);
    if (operation == nullptr) return Internal("the operation is not on record");
    ToProto(loop_->core(), *operation, out);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::PutJob(Context* context,
                                                     const v1::PutJobRequest* request,
                                                     v1::Job* out) {
  return OnLoop(context, [this, request, out]() -> Status {
    CKPT_ASSIGN_OR_RETURN(const core::Reply reply,
                          loop_->Apply(core::PutJob{request->op_id(), FromProto(request->spec())}));
    ToProto(loop_->core(), *loop_->core().FindJob(reply.job), out);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::GetJob(Context* context,
                                                     const v1::GetJobRequest* request,
                                                     v1::Job* out) {
  return OnLoop(context, [this, request, out]() -> Status {
    const core::Job* job = loop_->core().FindJob(request->name());
    if (job == nullptr) {
      return NotFound("no job is named " + request->name() + "; `ckptctl jobs` lists them");
    }
    ToProto(loop_->core(), *job, out);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::ListJobs(Context* context, const v1::ListJobsRequest*,
                                                       v1::ListJobsResponse* out) {
  return OnLoop(context, [this, out] {
    for (const auto& [name, job] : loop_->core().jobs()) {
      ToProto(loop_->core(), job, out->add_jobs());
    }
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::ListNodes(Context* context,
                                                        const v1::ListNodesRequest*,
                                                        v1::ListNodesResponse* out) {
  return OnLoop(context, [this, out] {
    for (const auto& [name, node] : loop_->core().nodes()) {
      ToProto(loop_->core(), node, out->add_nodes());
      loop_->AddHealth(name, out->mutable_nodes(out->nodes_size() - 1));
    }
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Quote(Context* context,
                                                    const v1::QuoteRequest* request,
                                                    v1::Plan* out) {
  return OnLoop(context, [this, request, out]() -> Status {
    CKPT_ASSIGN_OR_RETURN(const core::Reply reply,
                          loop_->Apply(core::Quote{request->job(), request->deadline_ms()}));
    ToProto(reply.plan, out);
    return OkStatus();
  });
}

grpc::ServerUnaryReactor* CoordinatorService::Apply(Context* context, const v1::ApplyRequest* r,
                                                    v1::Operation* out) {
  return Operate(context, core::Apply{r->op_id(), r->plan_id(), r->deadline_ms()}, out);
}

grpc::ServerUnaryReactor* CoordinatorService::Suspend(Context* context, const v1::StopRequest* r,
                                                      v1::Operation* out) {
  return Operate(context, StopFromProto<core::Suspend>(*r), out);
}

grpc::ServerUnaryReactor* CoordinatorService::Checkpoint(Context* context, const v1::StopRequest* r,
                                                         v1::Operation* out) {
  return Operate(context, StopFromProto<core::Checkpoint>(*r), out);
}

grpc::ServerUnaryReactor* CoordinatorService::Cancel(Context* context, const v1::StopRequest* r,
                                                     v1::Operation* out) {
  return Operate(context, StopFromProto<core::Cancel>(*r), out);
}

grpc::ServerUnaryReactor* CoordinatorService::Withdraw(Context* context,
                                                       const v1::WithdrawRequest* r,
                                                       v1::Operation* out) {
  return Operate(context, core::Withdraw{r->op_id()}, out);
}

grpc::ServerUnaryReactor* CoordinatorService::Resume(Context* context, const v1::ResumeRequest* r,
                                                     v1::Operation* out) {
  core::Resume resume{
      r->op_id(), r->job(), {r->nodes().begin(), r->nodes().end()}, r->from_store()};
  return Operate(context, std::move(resume), out);
}

grpc::ServerUnaryReactor* CoordinatorService::Migrate(Context* context, const v1::MigrateRequest* r,
                                                      v1::Operation* out) {
  return Operate(
      context, core::Migrate{r->op_id(), r->job(), r->from_node(), r->to_node(), r->deadline_ms()},
      out);
}

grpc::ServerUnaryReactor* CoordinatorService::GetOperation(Context* context,
                                                           const v1::GetOperationRequest* request,
                                                           v1::Operation* out) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto answer = [this, reactor, request, out](const Status& stored) {
    if (!stored.ok()) return reactor->Finish(ToGrpc(stored));
    const core::Operation* operation = loop_->core().FindOperation(request->op_id());
    if (operation == nullptr) {
      reactor->Finish(ToGrpc(NotFound("no operation " + std::to_string(request->op_id()) +
                                      " is on record (they are kept for 7 days)")));
      return;
    }
    ToProto(loop_->core(), *operation, out);
    reactor->Finish(grpc::Status::OK);
  };
  const int64_t wait_ms = std::clamp<int64_t>(request->wait_ms(), 0, kOperationWaitMsMax);
  const Status posted = loop_->Post(
      [this, request, wait_ms, answer] { loop_->WhenEnded(request->op_id(), wait_ms, answer); });
  if (!posted.ok()) reactor->Finish(ToGrpc(posted));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::ReadLog(Context* context,
                                                      const v1::ReadLogRequest* request,
                                                      v1::ReadLogResponse* out) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto answer = [reactor, out](Result<v1::LogChunk> chunk) {
    Status status = chunk.status();
    if (status.ok() && !chunk->error().empty()) status = NotFound(chunk->error());
    if (status.ok()) {
      out->set_data(chunk->data());
      out->set_next_offset(chunk->next_offset());
    }
    reactor->Finish(ToGrpc(status));
  };
  const Status posted = loop_->Post([this, request, out, answer] {
    if (Status stored = loop_->CheckStored(); !stored.ok()) return answer(std::move(stored));
    const core::Job* job = loop_->core().FindJob(request->job());
    if (job == nullptr) {
      answer(NotFound("no job is named " + request->job() + "; `ckptctl jobs` lists them"));
      return;
    }
    for (const core::NodePlacement& place : core::PlacementOf(*job)) {
      const uint32_t rank = request->rank();
      if (rank < place.first_rank || rank >= place.first_rank + place.rank_count) continue;
      v1::ReadLog read;
      read.set_job(request->job());
      read.set_epoch(request->epoch() == 0 ? job->epoch : request->epoch());
      read.set_rank(rank);
      read.set_offset(request->offset());
      out->set_epoch(read.epoch());
      loop_->ReadLog(place.node, std::move(read), answer);
      return;
    }
    answer(NotFound("job " + request->job() +
                    (job->epoch == 0 ? " has never been launched: it has no log"
                                     : " has no rank " + std::to_string(request->rank()))));
  });
  if (!posted.ok()) reactor->Finish(ToGrpc(posted));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorService::GetStatus(Context* context,
                                                        const v1::GetStatusRequest*,
                                                        v1::CoordinatorStatus* out) {
  // Here, not on the loop: a disk that hangs must not stop it.
  ToProto(os::CheckFolder("coordinator: data", data_, kDataBytesMin), out->add_findings());
  return OnLoop(context, [this, out] {
    out->set_version(std::string(kVersion));
    out->set_cluster_id(loop_->core().cluster_id());
    out->set_term(loop_->core().term());
    out->set_wall_ns(WallNs());
    out->set_uptime_ms((BoottimeNs() - started_ns_) / 1'000'000);
    out->set_revision(loop_->core().revision());
    return OkStatus();
  });
}

grpc::ServerWriteReactor<v1::Event>* CoordinatorService::WatchEvents(
    Context*, const v1::WatchEventsRequest* request) {
  return StartEventWatch(loop_, *request);
}

}  // namespace ckpt::ckptd
