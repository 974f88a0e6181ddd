#include "coordinator/agent/data_client.h"

#include <algorithm>
#include <optional>

#include "libckpt/base/mutex.h"
#include "libckpt/os/socket.h"
#include "libckpt/os/thread.h"

namespace ckpt::agent {
namespace {

constexpr auto kConnectTime = std::chrono::seconds(10);
constexpr auto kAnswerTime = std::chrono::seconds(30);
constexpr uint64_t kUnitBytes = 16 * kDataChunkBytes;  // what one request asks for
constexpr uint64_t kHeadBytes = kDataChunkBytes;       // comes first, and tells what else is needed
constexpr size_t kConnectionsMax = 16;
constexpr size_t kStreamsMin = 2;           // into one memory: one receives while the other writes
constexpr size_t kPieceBytes = 256 * 1024;  // received, hashed and stored while the cache has it

class Connection {
 public:
  static Result<Connection> Open(const FetchPlan& plan) {
    CKPT_ASSIGN_OR_RETURN(const os::HostPort address, os::ParseHostPort(plan.from));
    Connection connection;
    CKPT_ASSIGN_OR_RETURN(connection.fd_,
                          os::ConnectTcp(address, Deadline("fetch: connect", kConnectTime)));
    const Deadline deadline("fetch: hello", kAnswerTime);
    CKPT_RETURN_IF_ERROR(SendMessage(connection.fd(), EncodeHello(plan.token), deadline));
    CKPT_ASSIGN_OR_RETURN(const std::string answer, ReceiveMessage(connection.fd(), deadline));
    CKPT_RETURN_IF_ERROR(DecodeStatus(answer));
    return connection;
  }

  Result<DataAnswer> Ask(const DataRequest& request) {
    const Deadline deadline("fetch: answer", kAnswerTime);
    CKPT_RETURN_IF_ERROR(SendMessage(fd(), EncodeRequest(request), deadline));
    CKPT_ASSIGN_OR_RETURN(const std::string bytes, ReceiveMessage(fd(), deadline));
    CKPT_ASSIGN_OR_RETURN(DataAnswer answer, DecodeAnswer(bytes));
    CKPT_RETURN_IF_ERROR(answer.status);
    return answer;
  }
  int fd() const { return fd_.get(); }

 private:
  os::UniqueFd fd_;
};

struct Target {
  uint32_t rank = 0;
  AttemptId id;
  os::Memfd memory;
};

struct Unit {
  size_t target = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
using Units = std::vector<std::vector<Unit>>;  // by target
uint64_t BytesOf(const Units& units) {
  uint64_t bytes = 0;
  for (const auto& of_target : units) {
    for (const Unit& unit : of_target) bytes += unit.bytes;
  }
  return bytes;
}

// What the streams share. Each keeps to a target of its own as long as it can: the kernel lets only
// one at a time write into a memory.
class Work {
 public:
  explicit Work(Units units) : units_(std::move(units)), next_(units_.size()) {}
  std::optional<Unit> Next(size_t stream) {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < units_.size() && status_.ok(); ++i) {
      const size_t target = (stream + i) % units_.size();
      if (next_[target] < units_[target].size()) return units_[target][next_[target]++];
    }
    return std::nullopt;
  }
  void Fail(Status status) {
    MutexLock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  Status status() const {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  mutable Mutex mutex_;
  const Units units_;
  std::vector<size_t> next_ CKPT_GUARDED_BY(mutex_);  // by target
  Status status_ CKPT_GUARDED_BY(mutex_);             // the first error
};

DataRequest RequestFor(const FetchPlan& plan, uint32_t rank) {
  DataRequest request;
  request.job = plan.job;
  request.epoch = plan.epoch;
  request.attempt = plan.attempt;
  request.rank = rank;
  return request;
}

// Sizes first: nothing is allocated that would not fit. Pages come with what is written into them.
Result<std::vector<Target>> MakeTargets(FetchPlan* plan, FetchProgress* progress) {
  CKPT_ASSIGN_OR_RETURN(Connection connection, Connection::Open(*plan));
  std::vector<Target> targets;
  std::vector<uint64_t> sizes;
  uint64_t total = 0;
  for (const uint32_t rank : plan->ranks) {
    CKPT_ASSIGN_OR_RETURN(const DataAnswer answer, connection.Ask(RequestFor(*plan, rank)));
    plan->epoch = answer.id.epoch.value();
    plan->attempt = answer.id.attempt.value();
    if (AddOverflows(total, answer.region_bytes, &total)) return DataLoss("sizes overflow");
    sizes.push_back(answer.region_bytes);
    targets.push_back({rank, answer.id, {}});
    if (!(targets.front().id == answer.id)) {
      return DataLoss("fetching job " + plan->job + ": rank " + std::to_string(rank) +
                      " is at another step than rank " + std::to_string(targets.front().rank));
    }
  }
  CKPT_RETURN_IF_ERROR(plan->reserve(total).Annotate("fetching job " + plan->job));
  progress->bytes_total = total;
  for (size_t i = 0; i < targets.size(); ++i) {
    CKPT_ASSIGN_OR_RETURN(targets[i].memory, os::Memfd::Create("ckpt-fetched", sizes[i]));
  }
  return targets;
}

// What a copy needs of the region that begins with this head. All of it if the head does not tell.
std::vector<engine::RegionPart> PartsOf(const Target& target) {
  const engine::RegionPart all{0, target.memory.bytes()};
  const Result<os::Mapping> mapping = target.memory.Map();
  if (!mapping.ok()) return {all};
  const Result<engine::StagingRegion> region = engine::StagingRegion::Open(mapping->bytes());
  return region.ok() ? region->UsedParts() : std::vector<engine::RegionPart>{all};
}

// Whole chunks, those of the head left out.
Units MakeUnits(const std::vector<Target>& targets) {
  Units units(targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    uint64_t at = kHeadBytes;
    for (const engine::RegionPart& part : PartsOf(targets[i])) {
      at = std::max(at, part.offset / kDataChunkBytes * kDataChunkBytes);
      const uint64_t end =
          std::min(targets[i].memory.bytes(), AlignUp(part.offset + part.bytes, kDataChunkBytes));
      while (at < end) {
        const uint64_t bytes = std::min(kUnitBytes, end - at);
        units[i].push_back({i, at, bytes});
        at += bytes;
      }
    }
  }
  return units;
}

Status ReadChunk(int fd, const Target& target, uint64_t offset, uint64_t bytes,
                 std::vector<std::byte>* buffer, const Deadline& deadline) {
  DigestStream digest(offset);
  for (uint64_t at = offset; at < offset + bytes; at += buffer->size()) {
    const MutableByteSpan piece =
        MutableByteSpan(*buffer).first(std::min<uint64_t>(buffer->size(), offset + bytes - at));
    CKPT_RETURN_IF_ERROR(os::RecvAll(fd, piece, deadline));
    digest.Update(piece);
    CKPT_RETURN_IF_ERROR(target.memory.Write(at, piece));
  }
  Digest wanted;
  CKPT_RETURN_IF_ERROR(os::RecvAll(fd, std::as_writable_bytes(std::span(wanted.bytes)), deadline));
  if (digest.Finish() == wanted) return OkStatus();
  return DataLoss("rank " + std::to_string(target.rank) + ", bytes " + std::to_string(offset) +
                  " to " + std::to_string(offset + bytes) + " arrived damaged");
}

Status FetchUnit(Connection* connection, const FetchPlan& plan, const Target& target,
                 const Unit& unit, FetchProgress* progress) {
  DataRequest request = RequestFor(plan, target.rank);
  request.kind = DataRequestKind::kRead;
  request.offset = unit.offset;
  request.bytes = unit.bytes;
  CKPT_ASSIGN_OR_RETURN(const DataAnswer answer, connection->Ask(request));
  if (!(answer.id == target.id) || answer.region_bytes != target.memory.bytes()) {
    return Unavailable("rank " + std::to_string(target.rank) +
                       ": the copy was replaced while it was being fetched");
  }
  const Deadline deadline("fetching a generation", TransferTime(unit.bytes));
  std::vector<std::byte> buffer(kPieceBytes);
  for (uint64_t at = unit.offset; at < unit.offset + unit.bytes; at += kDataChunkBytes) {
    if (progress->cancelled) return Cancelled("the fetch was cancelled");
    const uint64_t bytes = std::min(kDataChunkBytes, unit.offset + unit.bytes - at);
    CKPT_RETURN_IF_ERROR(ReadChunk(connection->fd(), target, at, bytes, &buffer, deadline));
    progress->bytes_done += bytes;
  }
  return OkStatus();
}

void RunStream(size_t stream, const FetchPlan& plan, const std::vector<Target>& targets, Work* work,
               FetchProgress* progress) {
  Result<Connection> connection = Connection::Open(plan);
  if (!connection.ok()) return work->Fail(connection.status());
  while (const std::optional<Unit> unit = work->Next(stream)) {
    const Status status = FetchUnit(&*connection, plan, targets[unit->target], *unit, progress);
    if (!status.ok()) return work->Fail(status);
  }
}

// The head of each region.
Status FetchHeads(const FetchPlan& plan, const std::vector<Target>& targets,
                  FetchProgress* progress) {
  CKPT_ASSIGN_OR_RETURN(Connection connection, Connection::Open(plan));
  for (size_t i = 0; i < targets.size(); ++i) {
    const Unit head{i, 0, std::min(kHeadBytes, targets[i].memory.bytes())};
    CKPT_RETURN_IF_ERROR(FetchUnit(&connection, plan, targets[i], head, progress));
  }
  return OkStatus();
}

// What arrived must be what it was asked for: a whole generation of that rank.
Result<std::vector<HeldRegion>> CheckTargets(const FetchPlan& plan, std::vector<Target> targets) {
  std::vector<HeldRegion> regions;
  for (Target& target : targets) {
    CKPT_ASSIGN_OR_RETURN(const RegionInfo info, InspectRegion(target.memory));
    if (info.rank != target.rank || !(info.id == target.id) || !info.Whole()) {
      return DataLoss("rank " + std::to_string(target.rank) + ": the region that arrived is " +
                      info.id.ToString() + " of rank " + std::to_string(info.rank));
    }
    const HeldKey key{plan.job, info.id.epoch.value(), target.rank, 0};
    regions.push_back({key, std::move(target.memory), true});
  }
  return regions;
}

}  // namespace

Result<std::vector<HeldRegion>> FetchGeneration(const FetchPlan& asked, FetchProgress* progress) {
  FetchPlan plan = asked;
  if (plan.ranks.empty()) return InvalidArgument("fetching job " + plan.job + ": no ranks");
  CKPT_ASSIGN_OR_RETURN(std::vector<Target> targets, MakeTargets(&plan, progress));
  const std::string what = "fetching job " + plan.job + " from " + plan.from;
  CKPT_RETURN_IF_ERROR(FetchHeads(plan, targets, progress).Annotate(what));
  Units units = MakeUnits(targets);
  progress->bytes_total = progress->bytes_done + BytesOf(units);
  const size_t stream_count = std::min({std::max(targets.size(), kStreamsMin), kConnectionsMax,
                                        std::max<size_t>(plan.connection_count, 1)});
  Work work(std::move(units));
  {
    std::vector<os::Thread> streams;
    for (size_t i = 0; i < stream_count; ++i) {
      streams.emplace_back("ckpt-fetch/" + std::to_string(i),
                           [&, i] { RunStream(i, plan, targets, &work, progress); });
    }
  }  // joined
  CKPT_RETURN_IF_ERROR(work.status().Annotate(what));
  return CheckTargets(plan, std::move(targets));
}

}  // namespace ckpt::agent
