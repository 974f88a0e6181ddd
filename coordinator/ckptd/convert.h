// Between the wire's messages and the core's structures, field by field.
#pragma once

#include "ckpt/v1/agent.pb.h"
#include "ckpt/v1/coordinator.pb.h"
#include "coordinator/core/core.h"
#include "coordinator/core/events.h"
#include "libckpt/base/ids.h"
#include "libckpt/os/machine_check.h"

namespace ckpt::ckptd {

core::JobSpec FromProto(const v1::JobSpec& spec);
core::NodeInfo FromProto(const v1::NodeInfo& info);
core::JobReport FromProto(const v1::JobReport& report);
core::FetchReport FromProto(const v1::FetchReport& report);
core::CommandResult FromProto(const v1::CommandResult& result);

void ToProto(const core::JobSpec& spec, v1::JobSpec* out);
void ToProto(const core::CopyState& copy, v1::CopyState* out);
void ToProto(const core::PhaseTimes& times, v1::PhaseTimes* out);
void ToProto(const core::Placement& placement, v1::Placement* out);
void ToProto(const core::Plan& plan, v1::Plan* out);
void ToProto(const core::EventRecord& event, v1::Event* out);
void ToProto(const os::Finding& finding, v1::Finding* out);
// What callers see of an operation, a job or a node: with views that only the core can derive.
void ToProto(const core::Core& core, const core::Operation& operation, v1::Operation* out);
void ToProto(const core::Core& core, const core::Job& job, v1::Job* out);
void ToProto(const core::Core& core, const core::Node& node, v1::Node* out);
// `data_token` goes into what moves copies between nodes.
void ToProto(const core::Command& command, const std::string& data_token, v1::CoordinatorMsg* out);

}  // namespace ckpt::ckptd
