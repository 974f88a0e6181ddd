// What readers of stored and of staged checkpoints share: layouts, sources, and everything that is
// done with them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libckpt/engine/catalog.h"
#include "libckpt/engine/engine.h"

namespace ckpt::engine {

// Own values of `rank`, and shared ones of whoever has them. For a rank that `values` has not:
// the shared ones; kFailedPrecondition naming it if there is a per-rank one.
Result<format::RankValues> ValuesOf(const std::vector<format::RankValues>& values, Rank rank);

class SourceReader : public CheckpointReader {
 public:
  // `description` for messages: "checkpoint s10.e1.a1 in /data/ckpt/gpt". `verify_bytes`: the total
  // that Verify's progress names.
  SourceReader(std::string description, AttemptId id, std::vector<format::RankLayout> layouts,
               std::vector<format::RankValues> values, SourceSet sources, uint64_t verify_bytes);

  AttemptId id() const override { return id_; }
  uint32_t world() const override { return static_cast<uint32_t>(layouts_.size()); }
  const std::vector<format::RankLayout>& layouts() const override { return layouts_; }
  Result<format::RankValues> Values(Rank rank) const override;
  Status Load(Rank rank, const std::vector<LiveTensor>& targets,
              const LoadOptions& options) override;
  Status Verify(const LoadOptions& options) override;
  // Whether every source can be opened.
  Status CheckAll() const { return sources_.CheckAll().Annotate(description_); }

 private:
  const std::string description_;
  const AttemptId id_;
  const std::vector<format::RankLayout> layouts_;
  const std::vector<format::RankValues> values_;
  const SourceSet sources_;
  const uint64_t verify_bytes_;
  const Catalog catalog_;
};

}  // namespace ckpt::engine
