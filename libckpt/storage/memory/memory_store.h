// A store in RAM, for tests and simulators: the same protocol over shared state, with as many
// handles as there are actors.
#pragma once

#include <memory>

#include "libckpt/storage/epoch_store.h"

namespace ckpt::storage {

// One job's place. Threads: safe.
class MemoryJob;

std::shared_ptr<MemoryJob> NewMemoryJob();
// A handle of one actor (a leader, a rank, a reader).
std::unique_ptr<EpochStore> NewMemoryStore(std::shared_ptr<MemoryJob> job,
                                           EpochStoreOptions options = {});

// What a test does behind the store's back. Keys as in JobDirectory.
void PlantFile(MemoryJob& job, const std::string& key, std::string bytes);
Status RemoveFile(MemoryJob& job, const std::string& key);
// Renames a directory of the job, as an old run's retention does; kNotFound, kAlreadyExists.
Status PlantRename(MemoryJob& job, const std::string& from, const std::string& to);
std::vector<std::string> AllKeys(const MemoryJob& job);

}  // namespace ckpt::storage
