// How a rank reads what it resumes from: the memory that ckpt-run maps out to it, or the store
// (gang_session.h).
#include "libckpt/session/gang_session.h"

namespace ckpt::session {
namespace {

constexpr Nanos kRestoreOpenMax = std::chrono::minutes(5);

}  // namespace

void GangSession::Restored(const Status& status, Step step) {
  link_->Post(wire::Restored{step.value(), static_cast<uint32_t>(status.code()), status.message()})
      .IgnoreError();
}

Result<std::unique_ptr<Reader>> GangSession::OpenFromRam() {
  const auto last = [](const wire::Frame& frame) {
    const auto* map = std::get_if<wire::ReadMap>(&frame.body);
    return map == nullptr || map->last;
  };
  CKPT_ASSIGN_OR_RETURN(std::vector<Link::Incoming> answers,
                        link_->CallMany(wire::RestoreOpen{}, last,
                                        Deadline("ckpt-run's staged regions", kRestoreOpenMax)));
  std::vector<os::Mapping> memory;
  std::vector<engine::StagingRegion> regions;
  for (Link::Incoming& answer : answers) {
    const auto* map = std::get_if<wire::ReadMap>(&answer.frame.body);
    if (map == nullptr || answer.fds.size() != 1)
      return DataLoss("ckpt-run answered RESTORE_OPEN with something else than READ_MAP");
    CKPT_ASSIGN_OR_RETURN(const os::Memfd region_memory,
                          os::Memfd::FromFd(std::move(answer.fds[0]), map->bytes));
    CKPT_ASSIGN_OR_RETURN(os::Mapping mapping, region_memory.Map({.writable = false}));
    CKPT_ASSIGN_OR_RETURN(engine::StagingRegion region,
                          engine::StagingRegion::Open(mapping.bytes()));
    if (const JobId& job = region.identity().job; job != welcome_.job_id)
      return DataLoss("a staged region of rank " + std::to_string(map->rank) + " is of job " +
                      job.ToString() + ", not of " + welcome_.job_id.ToString());
    memory.push_back(std::move(mapping));
    regions.push_back(std::move(region));
  }
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<engine::CheckpointReader> reader,
                        engine::OpenStaged(std::move(regions)));
  return std::make_unique<Reader>(
      std::move(reader), std::move(memory), options_.rank, options_.world,
      [this](const Status& status, const AttemptId& id) { Restored(status, id.step); });
}

Result<std::unique_ptr<Reader>> GangSession::OpenResume() {
  if (welcome_.resume == wire::ResumeKind::kRam) return OpenFromRam();
  CKPT_ASSIGN_OR_RETURN(storage::Store * store, StoreForReading());
  CKPT_ASSIGN_OR_RETURN(std::unique_ptr<engine::CheckpointReader> reader,
                        engine::OpenCheckpoint(store, welcome_.resume_from));
  return std::make_unique<Reader>(
      std::move(reader), std::vector<os::Mapping>(), options_.rank, options_.world,
      [this](const Status& status, const AttemptId& id) { Restored(status, id.step); });
}

Result<std::unique_ptr<Reader>> GangSession::DoOpenReader(const std::string& selector) {
  if (!selector.empty()) {
    CKPT_ASSIGN_OR_RETURN(storage::Store * store, StoreForReading());
    return OpenFromStore(store, selector);
  }
  if (welcome_.resume == wire::ResumeKind::kNone)
    return NotFound(Who() + ": a fresh start, there is nothing to resume from");
  Result<std::unique_ptr<Reader>> reader = OpenResume();
  if (!reader.ok()) Restored(reader.status(), welcome_.resume_from.step);
  return reader;
}

Result<storage::Store*> GangSession::StoreForReading() {
  if (store_ == nullptr) {
    const std::string& path = welcome_.store.empty() ? options_.store : welcome_.store;
    CKPT_ASSIGN_OR_RETURN(std::unique_ptr<storage::Store> store, parts_.open_store(path));
    CKPT_RETURN_IF_ERROR(store->OpenJob(welcome_.job_id).status());
    store_ = std::move(store);
  }
  return store_.get();
}

}  // namespace ckpt::session
