// The calls of schedulers and operators: each becomes a task of the loop, which answers it.
#pragma once

#include "ckpt/v1/coordinator.grpc.pb.h"
#include "coordinator/ckptd/core_loop.h"
#include "libckpt/base/clock.h"

namespace ckpt::ckptd {

class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  // `data` is the folder of the records.
  CoordinatorService(CoreLoop* loop, std::string data) : loop_(loop), data_(std::move(data)) {}

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;
  Unary* PutJob(Context*, const v1::PutJobRequest*, v1::Job*) override;
  Unary* GetJob(Context*, const v1::GetJobRequest*, v1::Job*) override;
  Unary* ListJobs(Context*, const v1::ListJobsRequest*, v1::ListJobsResponse*) override;
  Unary* ListNodes(Context*, const v1::ListNodesRequest*, v1::ListNodesResponse*) override;
  Unary* Quote(Context*, const v1::QuoteRequest*, v1::Plan*) override;
  Unary* Apply(Context*, const v1::ApplyRequest*, v1::Operation*) override;
  Unary* Suspend(Context*, const v1::StopRequest*, v1::Operation*) override;
  Unary* Resume(Context*, const v1::ResumeRequest*, v1::Operation*) override;
  Unary* Checkpoint(Context*, const v1::StopRequest*, v1::Operation*) override;
  Unary* Migrate(Context*, const v1::MigrateRequest*, v1::Operation*) override;
  Unary* Cancel(Context*, const v1::StopRequest*, v1::Operation*) override;
  Unary* Withdraw(Context*, const v1::WithdrawRequest*, v1::Operation*) override;
  Unary* GetOperation(Context*, const v1::GetOperationRequest*, v1::Operation*) override;
  Unary* ReadLog(Context*, const v1::ReadLogRequest*, v1::ReadLogResponse*) override;
  Unary* GetStatus(Context*, const v1::GetStatusRequest*, v1::CoordinatorStatus*) override;
  grpc::ServerWriteReactor<v1::Event>* WatchEvents(Context*,
                                                   const v1::WatchEventsRequest*) override;

 private:
  // Runs `body` on the loop and finishes the call with what it returns.
  Unary* OnLoop(Context* context, std::function<Status()> body);
  Unary* Operate(Context* context, core::Event event, v1::Operation* out);

  CoreLoop* loop_;
  const std::string data_;
  const int64_t started_ns_ = BoottimeNs();
};

}  // namespace ckpt::ckptd
