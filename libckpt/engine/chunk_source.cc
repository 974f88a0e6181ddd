#include "libckpt/engine/chunk_source.h"

#include "libckpt/engine/parallel.h"

namespace ckpt::engine {
namespace {

constexpr uint32_t kOpenThreads = 8;  // each waits for small reads

}  // namespace

void SourceSet::AddOpened(std::unique_ptr<ChunkSource> source) {
  Entry& entry = entries_.emplace_back(source->rank(), Open());
  MutexLock lock(entry.mutex);
  entry.source = std::move(source);
}

Result<const ChunkSource*> SourceSet::Get(uint32_t source) const {
  const Entry& entry = entries_[source];
  {
    MutexLock lock(entry.mutex);
    if (entry.source != nullptr) return static_cast<const ChunkSource*>(entry.source.get());
  }
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> opened, entry.open());
  MutexLock lock(entry.mutex);
  // Another thread may have been faster; its pointers are in use.
  if (entry.source == nullptr) entry.source = std::move(opened);
  return static_cast<const ChunkSource*>(entry.source.get());
}

Status SourceSet::OpenAll(const std::vector<uint32_t>& wanted) const {
  const uint64_t count = wanted.empty() ? size() : wanted.size();
  return ParallelFor(count, kOpenThreads, [&](uint64_t i, uint32_t) {
    return Get(wanted.empty() ? static_cast<uint32_t>(i) : wanted[i]).status();
  });
}

}  // namespace ckpt::engine
