// The directory store: one directory per job on a file system that all nodes share (or the local
// one, for a job of one node). docs/format/commit.md is normative.
//
//   JOB  EPOCH.1.claim  EPOCH.1  s100.e1.a1/{shard-00000.safetensors, …, MANIFEST, COMMIT}
//
// I1  Records are written and synced under a temporary name (".tmp-…"), then linked: a name never
//     stands for half a record, and is never taken from another.
// I2  No answer before the sync of the directory that holds the name.
// I3  Nothing is removed that this process did not make.
#pragma once

#include <memory>
#include <string>

#include "libckpt/os/file.h"
#include "libckpt/storage/epoch_store.h"

namespace ckpt::storage {

// `directory` is the job's ("./ckpt/train"); it need not exist before OpenJob. Touches nothing.
// `fs` must outlive the store.
std::unique_ptr<EpochStore> OpenFileStore(os::FileSystem& fs, std::string directory,
                                          EpochStoreOptions options = {});
std::unique_ptr<EpochStore> OpenFileStore(std::string directory);  // on the machine's file system

// One checkpoint by its own path, also a copy under another name or outside any job: it needs only
// COMMIT, MANIFEST and digests, no list. Read only; List has the one, and it is visible if it is
// committed. Errors: kNotFound if `directory` holds no MANIFEST; its damage otherwise.
Result<std::unique_ptr<Store>> OpenCheckpointDirectory(os::FileSystem& fs, std::string directory);

Result<std::unique_ptr<Store>> OpenCheckpointDirectory(std::string directory);

// A new checkpoint by its own path, for one writer (engine::CopyCheckpoint): BeginAttempt makes the
// directory, which must not exist; Commit makes it a checkpoint that OpenCheckpointDirectory opens.
// Everything else is kFailedPrecondition. Durable: as a save.
std::unique_ptr<Store> NewCheckpointDirectory(os::FileSystem& fs, std::string directory,
                                              const JobId& job);
std::unique_ptr<Store> NewCheckpointDirectory(std::string directory, const JobId& job);

// Whether a directory looks like one checkpoint (holds a MANIFEST or COMMIT) or like a job.
enum class DirectoryKind { kJob, kCheckpoint, kNeither };
Result<DirectoryKind> KindOfDirectory(os::FileSystem& fs, const std::string& directory);
Result<DirectoryKind> KindOfDirectory(const std::string& directory);
// The names of the jobs' directories in `directory`, sorted: for messages.
std::vector<std::string> JobsBeneath(const std::string& directory);

}  // namespace ckpt::storage
