// The few steps on one job's place in a store from which claims and commits are made. A store is
// this plus EpochStore; what differs between a directory, RAM and an object store is only how these
// steps are done durably and exclusively.
//
// Keys are "JOB", "EPOCH.3", or a directory and a name in it: "s10.e1.a1/COMMIT".
//
// I1  PutNew is the only way to make a record: never created empty and then filled, never
//     overwritten.
// I2  List looks anew: what was put before the call began is in the answer. It is no snapshot: what
//     is renamed meanwhile may be seen twice or not at all.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libckpt/base/ids.h"
#include "libckpt/storage/store.h"

namespace ckpt::storage {

struct NamedEntry {
  std::string name;
  bool directory = false;
  bool file = false;  // neither: a link or something else that is not ours
};

struct DirectorySize {
  uint64_t files = 0, bytes = 0;
};

class JobDirectory {
 public:
  virtual ~JobDirectory() = default;

  // Makes the job's directory with missing parents; OK if it is there. Durable.
  virtual Status Create() = 0;
  // Of the job's directory; kNotFound if there is none.
  virtual Result<std::vector<NamedEntry>> List() = 0;
  // kNotFound; kResourceExhausted if it is longer than `bytes_max`.
  virtual Result<std::string> Get(const std::string& key, uint64_t bytes_max) = 0;
  // The whole of `bytes` under a new name, or nothing. OK also if the very same content is there:
  // it may be our own earlier success. kAlreadyExists (not applied) for other content. Durable.
  // Errors: maybe applied once the name may be there; then the directory must not be trusted with
  // a retry.
  virtual Status PutNew(const std::string& key, std::string_view bytes) = 0;
  // Takes the name from something that is no record (a torn file).
  virtual Status Replace(const std::string& key, std::string_view bytes) = 0;

  // Makes durable what another one has put: its bytes and its name.
  virtual Status Sync(const std::string& key) = 0;

  // Of directories in the job's directory. Exclusive, durable; kAlreadyExists.
  virtual Status MakeDir(const std::string& name) = 0;
  virtual Status RenameDir(const std::string& from, const std::string& to) = 0;
  // With everything in it; OK if there is none.
  virtual Status RemoveDir(const std::string& name) = 0;

  // The names in a directory of the job's; kNotFound.
  virtual Result<std::vector<NamedEntry>> ListDir(const std::string& name) = 0;
  // What the files directly in it take; kNotFound.
  virtual Result<DirectorySize> Measure(const std::string& name) = 0;
  // When it was last written, by the store's clock (since 1970); 0 where that is not kept.
  virtual Result<int64_t> ModifiedNs(const std::string& key) = 0;

  virtual Result<std::unique_ptr<FileWriter>> CreateFile(const std::string& key,
                                                         uint64_t size_hint) = 0;
  virtual Result<std::unique_ptr<FileReader>> OpenFile(const std::string& key) = 0;

  // "/data/ckpt/gpt"; "/data/ckpt/gpt/EPOCH.3".
  virtual std::string Describe() const = 0;
  std::string Describe(std::string_view key) const { return Describe() + "/" + std::string(key); }
};

}  // namespace ckpt::storage
