// The files of an attempt: written once, synced once, read with their range in the error.
#pragma once

#include <memory>
#include <string>

#include "libckpt/os/file.h"
#include "libckpt/storage/job_directory.h"
#include "libckpt/storage/store.h"

namespace ckpt::storage {

// Creates `name` ("s1.e1.a1/shard…") beneath `directory` and reserves `size_hint` bytes.
Result<std::unique_ptr<FileWriter>> CreateAttemptFile(os::FileSystem& fs,
                                                      const std::string& directory,
                                                      const std::string& name, uint64_t size_hint);
Result<std::unique_ptr<FileReader>> OpenAttemptFile(os::FileSystem& fs,
                                                    const std::string& directory,
                                                    const std::string& name);

// Adds what is needed, what is free and the way out to the error of a full disk; others unchanged.
Status ExplainFullDisk(Status status, const std::string& directory, uint64_t bytes_needed);

// A job's place in a directory. `fs` must outlive it.
std::unique_ptr<JobDirectory> NewPosixDirectory(os::FileSystem& fs, std::string directory);

}  // namespace ckpt::storage
