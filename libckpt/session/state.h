// What a program tracks: tensors by address, values, blobs. A description; no tensor's bytes are
// copied.
//
// I1  Names are unique among tensors, among values and among blobs.
// I2  What was accepted here can be encoded: tensors, values and names are checked when they are
// added, so that a save never fails on them later.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "libckpt/base/status.h"
#include "libckpt/engine/engine.h"
#include "libckpt/format/types.h"

namespace ckpt::session {

class State {
 public:
  Status AddTensor(engine::LiveTensor tensor);
  // The same tensor at another address.
  Status MoveTensor(const std::string& name, void* data);
  // Sets or replaces. `json` is the canonical text of v1.md.
  Status SetValue(const std::string& name, format::Scope scope, std::string_view json);
  Status SetBlob(const std::string& name, format::Scope scope, std::string media_type,
                 std::string bytes);
  void ReplaceValues(format::RankValues values) { values_ = std::move(values); }

  format::RankLayout Layout(Rank rank) const;
  const std::vector<engine::LiveTensor>& tensors() const { return tensors_; }
  const format::RankValues& values() const { return values_; }

 private:
  std::vector<engine::LiveTensor> tensors_;
  std::unordered_map<std::string, size_t> tensor_index_;  // by name
  format::RankValues values_;
};

}  // namespace ckpt::session
