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

Result<std::shared_ptr<const ChunkSource>> SourceSet::Borrow(uint32_t source) const {
  const Entry& entry = entries_[source];
  {
    MutexLock lock(entry.mutex);
    if (entry.source != nullptr) return entry.source;
  }
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<ChunkSource> opened, entry.open());
  return std::shared_ptr<const ChunkSource>(std::move(opened));
}

Result<const ChunkSource*> SourceSet::Get(uint32_t source) const {
  CKPT_ASSIGN_OR_RETURN(std::shared_ptr<const ChunkSource> opened, Borrow(source));
  const Entry& entry = entries_[source];
  MutexLock lock(entry.mutex);
  // Another thread may have been faster; its pointers are in use.
  if (entry.source == nullptr) entry.source = std::move(opened);
  return entry.source.get();
}

Status SourceSet::OpenAll(const std::vector<uint32_t>& wanted) const {
  return ParallelFor(wanted.size(), kOpenThreads,
                     [&](uint64_t i, uint32_t) { return Get(wanted[i]).status(); });
}

Status SourceSet::CheckAll() const {
  return ParallelFor(size(), kOpenThreads, [&](uint64_t i, uint32_t) {
    return Borrow(static_cast<uint32_t>(i)).status();
  });
}

}  // namespace ckpt::engine
