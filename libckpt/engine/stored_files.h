// The verified files of a committed checkpoint: COMMIT names MANIFEST by digest, MANIFEST each
// index. Nothing is believed before its digest is checked, and no size before it is compared with
// the real file.
#pragma once

#include <memory>
#include <string>

#include "libckpt/format/index.h"
#include "libckpt/format/manifest.h"
#include "libckpt/storage/store.h"

namespace ckpt::engine {

// kDataLoss if it is not the one that COMMIT names; kNotFound if it is not committed.
Result<format::Manifest> ReadVerifiedManifest(storage::Store* store, const AttemptId& id);
Result<format::ShardIndex> ReadVerifiedIndex(storage::Store* store,
                                             const format::Manifest& manifest,
                                             const format::ManifestFile& entry);
// kDataLoss unless it has just so many bytes.
Result<std::unique_ptr<storage::FileReader>> OpenSized(storage::Store* store, const AttemptId& id,
                                                       const std::string& name, uint64_t bytes);
// The file that holds the chunks an index refers to. kDataLoss naming the checkpoint if it is gone.
Result<std::unique_ptr<storage::FileReader>> OpenOrigin(storage::Store* store,
                                                        const format::Origin& origin);

// Width of the elements of a chunk, and whether all of them are floats; 1 and false for the header.
struct ChunkElements {
  uint32_t bytes = 1;
  bool floats = false;
};
ChunkElements ElementsOf(const std::vector<format::ShardTensor>& tensors, uint64_t begin,
                         uint64_t end);

}  // namespace ckpt::engine
