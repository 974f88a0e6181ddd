// What `ckptctl import` reads: safetensors files, alone or as a model's directory with its index.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/ckptctl/safetensors.h"
#include "libckpt/engine/import.h"
#include "libckpt/format/types.h"
#include "libckpt/storage/store.h"

namespace ckpt::ckptctl {

struct ImportFile {
  std::string name;  // without its directory
  std::string path;  // as it was named
  std::unique_ptr<storage::FileReader> reader;
  SafetensorsHeader header;
};

struct ImportSource {
  std::vector<ImportFile> files;
  std::vector<engine::ForeignTensor> tensors;  // of all files; they point into `files`
  format::RankValues values;                   // their metadata
  uint64_t bytes = 0;                          // of all tensors
};

// Each of `paths` is a file, a directory of files, or an index ("….index.json"). A directory with
// an index has what that names, and nothing else. Links are followed.
// Errors: naming file and tensor: kNotFound; kDataLoss for what is no whole safetensors file or
// differs from its index; kFailedPrecondition for a name in two files, a checkpoint of our own, a
// dtype that checkpoints do not know.
Result<ImportSource> OpenImport(const std::vector<std::string>& paths);

// The names of the values that hold what files and index say about themselves.
inline constexpr char kFileMetadataValue[] = "safetensors.metadata";
inline constexpr char kIndexMetadataValue[] = "safetensors.index";

}  // namespace ckpt::ckptctl
