#include "libckpt/engine/stored_files.h"

#include <algorithm>

#include "libckpt/base/fault.h"

namespace ckpt::engine {
namespace {

bool IsFloat(format::DType dtype) {
  switch (dtype) {
    case format::DType::kF16:
    case format::DType::kBF16:
    case format::DType::kF32:
    case format::DType::kF64:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<format::Manifest> ReadVerifiedManifest(storage::Store* store, const AttemptId& id) {
  CKPT_FAULT("engine.open.manifest");
  CKPT_ASSIGN_OR_RETURN(const storage::CommitRecord commit, store->ReadCommit(id));
  CKPT_ASSIGN_OR_RETURN(const std::string bytes, store->ReadManifest(id));
  if (format::ManifestDigest(bytes) != commit.manifest_digest) {
    return DataLoss("MANIFEST is damaged: it is not the one that COMMIT names");
  }
  CKPT_ASSIGN_OR_RETURN(format::Manifest manifest, format::Manifest::Decode(bytes));
  if (manifest.id != id) return DataLoss("MANIFEST is that of " + manifest.id.ToString());
  return manifest;
}

Result<std::unique_ptr<storage::FileReader>> OpenSized(storage::Store* store, const AttemptId& id,
                                                       const std::string& name, uint64_t bytes) {
  CKPT_RETURN_IF_ERROR(CheckName("file", name));
  CKPT_ASSIGN_OR_RETURN(auto file, store->OpenFile(id, name));
  if (file->size() != bytes) {
    return DataLoss(name + " has " + std::to_string(file->size()) + " bytes, the manifest says " +
                    std::to_string(bytes));
  }
  return file;
}

Result<format::ShardIndex> ReadVerifiedIndex(storage::Store* store,
                                             const format::Manifest& manifest,
                                             const format::ManifestFile& entry) {
  CKPT_FAULT("engine.open.index");
  if (entry.index_bytes > kIndexBytesMax) return DataLoss(entry.index_name + " is too large");
  CKPT_ASSIGN_OR_RETURN(auto file,
                        OpenSized(store, manifest.id, entry.index_name, entry.index_bytes));
  std::string bytes(entry.index_bytes, '\0');
  CKPT_RETURN_IF_ERROR(file->Read(0, std::as_writable_bytes(std::span(bytes))));
  // The index ends in its own digest, which Decode compares with the bytes; here it is compared
  // with the manifest's.
  if (format::IndexDigest(bytes) != entry.index_digest) {
    return DataLoss(entry.index_name + " is damaged: it is not the index that the manifest names");
  }
  auto index = format::ShardIndex::Decode(bytes, entry.bytes);
  if (!index.ok()) return std::move(index).status().Annotate(entry.index_name);
  if (index->uid != manifest.uid() || index->shard != entry.shard) {
    return DataLoss(entry.index_name + " belongs to another checkpoint or rank");
  }
  return index;
}

Result<std::unique_ptr<storage::FileReader>> OpenOrigin(storage::Store* store,
                                                        const format::Origin& origin) {
  auto file = OpenSized(store, origin.id, origin.file, origin.file_bytes);
  if (file.ok() ||
      (file.status().code() != Code::kNotFound && file.status().code() != Code::kDataLoss)) {
    return file;
  }
  return DataLoss("refers to " + origin.file + " of checkpoint " + origin.id.ToString() + " (uid " +
                  format::UidToString(origin.uid) + "), which is not there whole (" +
                  file.status().message() +
                  "); bring that checkpoint back to where it was, or take another one; copies that "
                  "'ckptctl cp' makes while both are there refer to nothing");
}

ChunkElements ElementsOf(const std::vector<format::ShardTensor>& tensors, uint64_t begin,
                         uint64_t end) {
  auto tensor =
      std::upper_bound(tensors.begin(), tensors.end(), begin,
                       [](uint64_t at, const format::ShardTensor& t) { return at < t.end; });
  if (begin == 0 || tensor == tensors.end()) return {};
  ChunkElements elements{format::ElementBytes(tensor->dtype), true};
  for (; tensor != tensors.end() && tensor->begin < end; ++tensor) {
    if (tensor->begin != tensor->end) elements.floats = elements.floats && IsFloat(tensor->dtype);
  }
  return elements;
}

}  // namespace ckpt::engine
