// A store of checkpoints of one job: made visible entirely or not at all, fenced by epoch. The
// rules are those of docs/format/v1.md (look, create, look; claims with lists); this is their
// interface, and storage/file is the first implementation. Only the leading ckpt-run (alone: the
// library's rank 0) claims epochs and commits; every writing rank creates files in an attempt.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/bytes.h"
#include "libckpt/base/clock.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/storage/retention.h"

namespace ckpt::storage {

struct StartedWrite {
  uint64_t number = 0;  // 0: it is made
  uint64_t offset = 0;
  ByteSpan data;
};

// Writes one file of an attempt, in any order of offsets; not visible before the attempt's COMMIT.
// What is written in whole pages, from page-aligned memory, goes past the page cache where the file
// system can; only the end of the file may be less than a page.
class FileWriter {
 public:
  virtual ~FileWriter() = default;
  // Threads: safe for disjoint ranges.
  virtual Status Write(uint64_t offset, ByteSpan data) = 0;
  // The same, but may go on after it returns, where depth() > 1: `data` must stay until Await,
  // which is called once for each Start, from any thread, and before Finish. Blocks: while depth()
  // are under way.
  virtual Result<StartedWrite> Start(uint64_t offset, ByteSpan data) {
    CKPT_RETURN_IF_ERROR(Write(offset, data));
    return StartedWrite{0, offset, data};
  }
  virtual Status Await(const StartedWrite& /*write*/) { return OkStatus(); }
  // How many writes may be under way; 1: none goes on by itself, and threads must be as many as
  // writes.
  virtual uint32_t depth() const { return 1; }
  // Syncs data and size, closes. A failed sync is terminal: every later call fails.
  // Durable: the file's data; its directory entry only after the attempt's Commit.
  virtual Status Finish() = 0;
};

// Whether other processes of this node will read the same bytes: then they come from the page cache
// for all but the first, else it is left alone.
enum class Reuse { kOnce, kShared };

// A Fetch that may be under way; number 0: AwaitFetch makes it.
struct StartedFetch {
  uint64_t number = 0;
  uint64_t offset = 0, bytes = 0;
  Reuse reuse = Reuse::kOnce;
  AlignedBuffer* scratch = nullptr;
};

class FileReader {
 public:
  virtual ~FileReader() = default;
  virtual uint64_t size() const = 0;
  // Exactly `out.size()` bytes, or kDataLoss naming file and range. Threads: safe.
  virtual Status Read(uint64_t offset, MutableByteSpan out) const = 0;
  // The same into `scratch`; where the bytes lie in it. Threads: safe, each with its own scratch.
  virtual Result<ByteSpan> Fetch(uint64_t offset, uint64_t bytes, Reuse /*reuse*/,
                                 AlignedBuffer* scratch) const {
    if (offset <= size() && bytes <= size() - offset) scratch->Reserve(bytes);
    const MutableByteSpan out = scratch->span().first(std::min<uint64_t>(bytes, scratch->size()));
    if (out.size() < bytes) return Read(offset, {scratch->data(), bytes});  // says what is wrong
    CKPT_RETURN_IF_ERROR(Read(offset, out));
    return ByteSpan(out);
  }
  // Fetch in two parts: it goes on between them where depth() > 1, and `scratch` is its own until
  // AwaitFetch, which is called once for each. Blocks: while depth() are under way.
  virtual Result<StartedFetch> StartFetch(uint64_t offset, uint64_t bytes, Reuse reuse,
                                          AlignedBuffer* scratch) const {
    return StartedFetch{0, offset, bytes, reuse, scratch};
  }
  virtual Result<ByteSpan> AwaitFetch(const StartedFetch& fetch) const {
    return Fetch(fetch.offset, fetch.bytes, fetch.reuse, fetch.scratch);
  }
  virtual uint32_t depth() const { return 1; }
};

// What an epoch may still see of older epochs, plus what the store knows of the epoch itself.
struct EpochClaim {
  Epoch epoch;
  std::vector<AttemptId> adopted;  // the list of EPOCH.n
};

struct CheckpointInfo {
  AttemptId id;
  bool committed = false;
  bool visible = false;   // by the highest complete EPOCH.n
  bool draining = false;  // carries a DRAINING mark
};

struct AttemptOrigins {
  AttemptId base;                  // what the attempt is compared with
  std::vector<AttemptId> origins;  // rising; `base` among them unless it is gone
};

struct CommitRecord {
  Digest manifest_digest;
  Epoch epoch;              // of the committer
  std::string coordinator;  // managed mode: the coordinator's record, opaque here
};

class Store {
 public:
  virtual ~Store() = default;

  // The job's 128-bit id, minted by whoever comes first. `expected` zero accepts any; another id is
  // kFailedPrecondition.
  virtual Result<JobId> OpenJob(const JobId& expected) = 0;

  // Takes the next free epoch ≥ `at_least`, adopts (carry-over, committed and draining attempts of
  // the previous epoch, and `adopt_also`), creates the COMMITs that `promised` names, and looks.
  // Errors: kAborted if a newer claim appeared. Durable: the claim and its list.
  virtual Result<EpochClaim> ClaimEpoch(
      Epoch at_least, const std::vector<AttemptId>& adopt_also,
      const std::vector<std::pair<AttemptId, CommitRecord>>& promised) = 0;
  // The highest epoch seen in any claim or list; 0 if none.
  virtual Result<Epoch> HighestEpoch() = 0;

  // Creates the attempt's directory exclusively.
  virtual Status BeginAttempt(const AttemptId& id) = 0;
  // For every writing rank, in any process. `size_hint` is preallocated where that works: a full
  // disk is known early.
  virtual Result<std::unique_ptr<FileWriter>> CreateFile(const AttemptId& id,
                                                         const std::string& name,
                                                         uint64_t size_hint) = 0;
  // The older checkpoints that `id` may refer to, named before it does, so that retention spares
  // them: those of `wanted` that are committed here, or what another rank of the attempt has named
  // already. What is returned can be referred to. Durable.
  virtual Result<AttemptOrigins> NameOrigins(const AttemptId& id, const AttemptOrigins& wanted) = 0;
  // Set before a suspend is acknowledged: the next claimant adopts this attempt though it has no
  // COMMIT yet.
  virtual Status MarkDraining(const AttemptId& id) = 0;
  // Removes an attempt that this epoch began and will not commit.
  virtual Status Abort(const AttemptId& id) = 0;

  // Writes MANIFEST, looks, links COMMIT, syncs, looks again, in that order; OK means acknowledged:
  // durable and visible to the committer's epoch and its successors. `claimant` is the committer's
  // epoch. Errors: kFailedPrecondition (fenced by a newer epoch; not applied at the first look),
  // kUnavailable maybe applied (a claim without its list at the deadline).
  virtual Status Commit(const AttemptId& id, std::string_view manifest, const CommitRecord& record,
                        const Deadline& deadline) = 0;

  // Everything that looks like an attempt, newest first; never an error because of foreign names.
  virtual Result<std::vector<CheckpointInfo>> List() = 0;
  virtual Result<std::string> ReadManifest(const AttemptId& id) = 0;
  // The COMMIT of an attempt; kNotFound if it has none.
  virtual Result<CommitRecord> ReadCommit(const AttemptId& id) = 0;
  virtual Result<std::unique_ptr<FileReader>> OpenFile(const AttemptId& id,
                                                       const std::string& name) = 0;

  // Removes what no rule keeps, as the newest epoch; safe beside writers, other removals and kills
  // at any moment. Returns what was removed. Errors: kUnavailable while an epoch is being claimed,
  // kAborted if one was claimed meanwhile: then everything is where it was.
  virtual Result<std::vector<AttemptId>> Retain(const KeepRules& /*rules*/,
                                                const IsWhole& /*is_whole*/) {
    return FailedPrecondition(Describe() + " is no job's store: nothing is removed there");
  }

  // For messages: "/data/ckpt/gpt".
  virtual std::string Describe() const = 0;
};

}  // namespace ckpt::storage
