// Records of the version before this one are read as what they were.
#include "coordinator/core/records.h"

#include <gtest/gtest.h>

#include "coordinator/core/records_v1.h"

namespace ckpt::core {
namespace {

std::string Bytes(std::string_view hex) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1])));
  }
  return bytes;
}

TEST(RecordsV1, AJobComesBackWithWhatItDidNotKnowYetUnset) {
  const std::string bytes = Bytes(records_v1::kJob);
  const Result<Job> job = DecodeJob(bytes);
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(job->spec.name, "train");
  EXPECT_EQ(job->spec.command, (std::vector<std::string>{"train", "--lr", "1"}));
  EXPECT_EQ(job->spec.ranks, 2u);
  EXPECT_EQ(job->spec.restarts_max, 5u);
  EXPECT_EQ(job->spec.max_price, 77);
  EXPECT_EQ(job->state, JobState::kSuspended);
  EXPECT_EQ(job->reason, "asked by an operator");
  EXPECT_EQ(job->epoch, 4u);
  EXPECT_EQ(job->preempted_count, 2u);
  EXPECT_EQ(job->restart_count, 1u);
  EXPECT_EQ(job->lost_gpu_seconds, 1.5);
  ASSERT_EQ(job->copies.size(), 1u);
  const CopyState& copy = job->copies.begin()->second.at(0);
  EXPECT_EQ(copy.step, 120);
  EXPECT_TRUE(copy.staged_gang);
  EXPECT_FALSE(copy.lost);
  EXPECT_EQ(job->drain.op, 0u);
  EXPECT_EQ(job->lost_steps, 0);
  const Result<Job> again = DecodeJob(EncodeJob(*job));  // as this version writes it
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->spec.restarts_max, 5u);
  for (size_t cut = 0; cut < bytes.size(); ++cut)
    EXPECT_FALSE(DecodeJob(bytes.substr(0, cut)).ok());
}

TEST(RecordsV1, MetaNodesOperationsAndEventsComeBack) {
  const Result<Meta> meta = DecodeMeta(Bytes(records_v1::kMeta));
  ASSERT_TRUE(meta.ok());
  EXPECT_EQ(meta->cluster_id, "cluster");
  EXPECT_EQ(meta->term, 7u);
  const Result<Node> node = DecodeNode(Bytes(records_v1::kNode));
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(node->info.name, "a");
  EXPECT_EQ(node->info.memcpy_gbps, 8);
  const Result<Operation> op = DecodeOperation(Bytes(records_v1::kOperation));
  ASSERT_TRUE(op.ok());
  EXPECT_EQ(op->op_id, 9u);
  EXPECT_EQ(op->victims.at(0).job, "v");
  EXPECT_EQ(op->victims.at(0).lost_gpu_seconds, 0);
  EXPECT_EQ(op->from_node, "a");
  const Result<EventRecord> event = DecodeEvent(Bytes(records_v1::kEvent));
  ASSERT_TRUE(event.ok());
  EXPECT_EQ(event->kind, "suspended");
}

}  // namespace
}  // namespace ckpt::core
