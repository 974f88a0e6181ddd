// How answers are printed: as JSON for programs, as text for people.
#pragma once

#include <google/protobuf/message.h>

#include <ostream>
#include <string>
#include <vector>

#include "ckpt/v1/coordinator.pb.h"

namespace ckpt::ckptctl {

// One JSON object: every field under its proto name, numbers as numbers, enums as short lower-case
// words ("running"), bytes as hex. Fields that are not set have their default values.
std::string ToJson(const google::protobuf::Message& message, int indent = 2);

// Columns padded to their widest cell; the first row is the header.
void PrintTable(std::ostream& out, const std::vector<std::vector<std::string>>& rows);

// "12:34:56.789", UTC.
std::string ClockTime(int64_t wall_ns);
std::string StateWord(v1::JobState state);
bool IsEnded(v1::JobState state);
std::string DescribePlacement(const v1::Placement& placement);
// "in RAM of a b, not durable" | "durable, and in RAM of a b" | "durable" | "incomplete".
std::string DescribeCopy(const v1::CopyState& copy);
// The phases of a stop with the milliseconds since its notice.
std::string DescribeTimes(const v1::PhaseTimes& times);

void PrintJobs(std::ostream& out, const v1::ListJobsResponse& jobs);
void PrintJob(std::ostream& out, const v1::Job& job);
void PrintNodes(std::ostream& out, const v1::ListNodesResponse& nodes);
void PrintPlan(std::ostream& out, const v1::Plan& plan);
void PrintOperation(std::ostream& out, const v1::Operation& operation);
void PrintEvent(std::ostream& out, const v1::Event& event);

}  // namespace ckpt::ckptctl
