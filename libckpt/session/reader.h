// An opened checkpoint as the program sees it: loads in place, hands out values and blobs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/status.h"
#include "libckpt/engine/engine.h"
#include "libckpt/os/memfd.h"
#include "libckpt/session/state.h"

namespace ckpt::session {

// Called after each load: what became of it.
using LoadedCallback = std::function<void(const Status&, const AttemptId&)>;

class Reader {
 public:
  // `memory`: mappings that `reader` reads from, kept as long as it. `world`: of the job that
  // reads; 0: as many ranks as the checkpoint has.
  Reader(std::unique_ptr<engine::CheckpointReader> reader, std::vector<os::Mapping> memory,
         Rank rank, uint32_t world, LoadedCallback loaded)
      : memory_(std::move(memory)),
        reader_(std::move(reader)),
        rank_(rank),
        world_(world),
        loaded_(std::move(loaded)) {}

  AttemptId id() const { return reader_->id(); }
  // Gets bytes done and in all of each load, from any thread.
  void OnProgress(std::function<void(uint64_t done, uint64_t total)> progress) {
    progress_ = std::move(progress);
  }
  // Tensors in place and verified, then values and blobs replaced. Nothing is written unless
  // everything fits.
  Status Load(State* state);
  // The tensors that `state` has, whatever else the checkpoint holds; its values and blobs stay.
  Status LoadPart(const State& state);
  // JSON: what the checkpoint holds, without reading a tensor.
  Result<std::string> Contents();
  // Valid as long as the reader. kNotFound.
  Result<const std::string*> ValueJson(const std::string& name);
  Result<const std::string*> Blob(const std::string& name);

 private:
  Status LoadQuietly(State* state);
  Result<const format::RankValues*> Values();

  std::vector<os::Mapping> memory_;
  std::unique_ptr<engine::CheckpointReader> reader_;
  const Rank rank_;
  const uint32_t world_;
  LoadedCallback loaded_;
  std::function<void(uint64_t done, uint64_t total)> progress_;
  std::unique_ptr<format::RankValues> values_;
  std::map<std::string, std::string> json_;
};

// "" or "latest": the newest that opens, what was passed over is logged as `who`'s; "step:N"; a
// checkpoint's name.
Result<std::unique_ptr<engine::CheckpointReader>> OpenSelected(storage::Store* store,
                                                               const std::string& selector,
                                                               const std::string& who);

}  // namespace ckpt::session
