// capture → stage → write; read → verify → place. Pure data movement over the interfaces of device
// and storage: no gang, no sockets. Used by the rank (capture, restore), by ckpt-run and by the
// standalone session (write).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/device/device.h"
#include "libckpt/engine/staging.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/types.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

// A tensor where it lives. `strides` in elements, one for each dim (row-major if empty).
struct LiveTensor {
  format::TensorMeta meta;
  void* data = nullptr;
  std::vector<int64_t> strides;
  device::Device* device = nullptr;
  device::StreamHandle stream =
      nullptr;  // the caller's stream: copies are ordered after what is enqueued on it
};

// Copies every piece of this generation from the tensors into `region`, ordered after the callers'
// streams, and returns when the bytes are there. `region` must be FILLING. Own threads, no OpenMP.
// `progress` gets bytes done (any thread). Errors: the device's, naming tensor and rank; the region
// stays FILLING. `threads` copy host memory, the caller's included; 0 chooses.
Status Capture(const std::vector<LiveTensor>& tensors, StagingRegion* region,
               const std::function<void(uint64_t)>& progress, const Deadline& deadline,
               uint32_t threads = 0);

// What a writing rank reports to the leader; agreement never travels by looking at the file system.
struct ShardReport {
  Rank rank;
  std::string file, index_file;              // names within the attempt's directory
  uint64_t file_bytes = 0, index_bytes = 0;  // what was written
  Digest index_digest;
  uint64_t raw_bytes = 0;                       // what it stands for
  std::vector<format::ManifestOrigin> origins;  // and where else it is stored, by rising id
  std::string values;                           // RankValues::Encode() of the rank
  std::vector<std::pair<std::string, Digest>>
      claims;  // kUnsharded tensors and the digest of their content
  std::string Encode() const;
  static Result<ShardReport> Decode(std::string_view bytes);
};

// What people choose of how shards are stored.
struct WriteSettings {
  // Chunks are compressed by this level of zstd (1 to 19), floats split into planes first, where a
  // sample shows that it gains; 0: not at all, and the shard is a plain safetensors file.
  int compression_level = 0;
  // Chunks that have not changed since the newest checkpoint are not written, but refer to it.
  bool references = false;
  uint32_t threads = 0;  // that digest, compress and write, the caller's included; 0 chooses
};

struct WriteOptions : WriteSettings {
  uint64_t chunk_bytes = kChunkBytesDefault;
  uint64_t block_bytes = kWriteBlockBytes;  // of the file, written at once: whole pages
  std::function<void(uint64_t done, uint64_t total)> progress;
  std::function<bool()> cancelled;  // polled between chunks
  // Not empty: goes into the files' names, so that they lie beside what another process may have
  // left half-written of the same attempt. MANIFEST names those that count.
  std::string tag;
  // Called by each writing thread after a part that took it so long; may wait.
  std::function<void(Nanos took)> pace;
};

// Writes the shard of the rank whose region this is (SEALED or later) and its index, digests taken
// from the region. Durable: both files' data (FileWriter::Finish).
Result<ShardReport> WriteShard(StagingRegion* region, storage::Store* store,
                               const WriteOptions& options);

// The MANIFEST of an attempt from what all ranks reported. kFailedPrecondition naming tensor or
// value and both ranks if two ranks claim one un-sharded name with different content.
Result<std::string> BuildManifest(const JobId& job, const AttemptId& id,
                                  const std::vector<format::RankLayout>& layouts,
                                  const std::vector<ShardReport>& shards, bool managed);

struct LoadOptions {
  bool verify = true;
  std::function<void(uint64_t done, uint64_t total)> progress;
  uint32_t threads = 0;  // that read and place, the caller's included; 0 chooses
  // Ranks of the job that loads; 0: as many as the checkpoint has. Under another number a rank's
  // state need not have all that the rank of that number had, only what every rank had.
  uint32_t world = 0;
  // Only what the targets ask for; what else the checkpoint holds is no mistake.
  bool part = false;
};

// A committed checkpoint, opened. Threads: Load and Values are safe for concurrent calls.
class CheckpointReader {
 public:
  virtual ~CheckpointReader() = default;
  virtual AttemptId id() const = 0;
  virtual uint32_t world() const = 0;
  // All tensors with their global shape; `local` is the whole box (for kPerRank: of that rank).
  virtual const std::vector<format::RankLayout>& layouts() const = 0;
  virtual Result<format::RankValues> Values(Rank rank) const = 0;
  // In place: each tensor's local box from whichever shards hold it, at most one chunk of extra
  // memory. Strict: tensors of this rank's layout that are missing here, or that differ in dtype or
  // global shape, and tensors here that the targets lack, are one kInvalidArgument that lists them
  // all, before a byte is written. kDataLoss names shard, tensor, chunk; the targets' content is
  // undefined after it, as after every other error from there on.
  virtual Status Load(Rank rank, const std::vector<LiveTensor>& targets,
                      const LoadOptions& options) = 0;
  // Reads and checks every byte; kDataLoss lists every damaged chunk by shard and tensor.
  virtual Status Verify(const LoadOptions& options) = 0;
};
Result<std::unique_ptr<CheckpointReader>> OpenCheckpoint(storage::Store* store,
                                                         const AttemptId& id);
// The newest visible checkpoint that opens; skipped ones are described in `skipped`. kNotFound if
// there is none at all; kDataLoss if there are some and none opens (never a silent start from
// zero).
// `except` are passed over: a caller whose Load found damage goes on to the one before it.
Result<std::unique_ptr<CheckpointReader>> OpenNewest(storage::Store* store,
                                                     std::vector<std::string>* skipped,
                                                     const std::vector<AttemptId>& except = {});

// The same from staged RAM: `regions` are the regions of one node, of one generation, mapped
// read-only. Digests are compared where they exist.
Result<std::unique_ptr<CheckpointReader>> OpenStaged(std::vector<StagingRegion> regions);
// Whether these regions cover everything that `rank` needs.
bool CoversRank(const std::vector<StagingRegion>& regions, const format::RankLayout& layout);

}  // namespace ckpt::engine
