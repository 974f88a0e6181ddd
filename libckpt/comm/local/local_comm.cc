#include "libckpt/comm/local/local_comm.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "libckpt/base/digest.h"
#include "libckpt/base/ids.h"

namespace ckpt::comm {

// One incarnation: collectives by sequence number, kept until every rank has its result.
class LocalHub {
 public:
  LocalHub(std::string id, uint32_t world) : id_(std::move(id)), world_(world) {}
  const std::string& id() const { return id_; }

  Result<std::vector<std::string>> Gather(uint64_t sequence, uint32_t rank, std::string_view mine,
                                          const Deadline& deadline) {
    MutexLock lock(mutex_);
    if (!aborted_.empty()) return Aborted(aborted_);
    Operation& operation = operations_[sequence];
    operation.parts.resize(world_);
    operation.parts[rank] = std::string(mine);
    if (++operation.arrived == world_) changed_.NotifyAll();
    while (operation.arrived < world_ && aborted_.empty()) {
      if (changed_.WaitUntil(mutex_, deadline) || operation.arrived == world_) continue;
      if (!aborted_.empty()) break;
      // Who has timed out cannot take part any more, so nobody may go on waiting for it.
      const std::string missing = Missing(operation);
      aborted_ = id_ + ": rank " + std::to_string(rank) + " gave up waiting for " + missing;
      changed_.NotifyAll();
      return deadline.Exceeded().Annotate("waiting for " + missing);
    }
    if (operation.arrived < world_) return Aborted(aborted_);
    std::vector<std::string> parts;
    for (const auto& part : operation.parts) parts.push_back(*part);
    if (++operation.taken == world_) operations_.erase(sequence);
    return parts;
  }

  void Abort(std::string why) {
    MutexLock lock(mutex_);
    if (aborted_.empty()) aborted_ = std::move(why);
    changed_.NotifyAll();
  }

 private:
  struct Operation {
    std::vector<std::optional<std::string>> parts;
    uint32_t arrived = 0, taken = 0;
  };
  static std::string Missing(const Operation& operation) {
    std::string ranks;
    for (uint32_t r = 0; r < operation.parts.size(); ++r) {
      if (!operation.parts[r]) ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(r);
    }
    return ranks;
  }

  const std::string id_;
  const uint32_t world_;
  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, Operation> operations_ CKPT_GUARDED_BY(mutex_);
  std::string aborted_ CKPT_GUARDED_BY(mutex_);  // why; empty while alive
};

namespace {

// Hubs by id, as long as some rank holds one: what an address is to real communicators.
class HubDirectory {
 public:
  std::shared_ptr<LocalHub> Make(const std::string& id, uint32_t world) {
    MutexLock lock(mutex_);
    std::erase_if(hubs_, [](const auto& entry) { return entry.second.expired(); });
    auto hub = std::make_shared<LocalHub>(id, world);
    return hubs_.emplace(id, hub).second ? hub : nullptr;
  }
  std::shared_ptr<LocalHub> Find(const std::string& id) {
    MutexLock lock(mutex_);
    const auto it = hubs_.find(id);
    return it == hubs_.end() ? nullptr : it->second.lock();
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<LocalHub>> hubs_ CKPT_GUARDED_BY(mutex_);
};

HubDirectory& Hubs() {
  static HubDirectory directory;
  return directory;
}

}  // namespace

Status LocalKeyValue::Set(const std::string& key, const std::string& value) {
  MutexLock lock(mutex_);
  for (const auto& [known, old] : pairs_) {
    if (known == key) return AlreadyExists("key '" + key + "' is set already");
  }
  pairs_.emplace_back(key, value);
  changed_.NotifyAll();
  return OkStatus();
}

Result<std::string> LocalKeyValue::Wait(const std::string& key, const Deadline& deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    for (const auto& [known, value] : pairs_) {
      if (known == key) return value;
    }
    if (deadline.Expired()) return deadline.Exceeded().Annotate("waiting for key '" + key + "'");
    changed_.WaitUntil(mutex_, deadline);
  }
}

LocalCommunicator::LocalCommunicator(std::string name, uint32_t rank, uint32_t world)
    : name_(std::move(name)), rank_(rank), world_(world) {}

LocalCommunicator::~LocalCommunicator() {
  Down(Deadline("closing a communicator", std::chrono::seconds(10))).IgnoreError();
}

Result<std::shared_ptr<LocalHub>> LocalCommunicator::Enter() {
  MutexLock lock(mutex_);
  if (hub_ == nullptr) return FailedPrecondition("communicator '" + name_ + "' is down");
  if (quiesced_) return FailedPrecondition("communicator '" + name_ + "' is quiesced");
  ++in_flight_;
  return hub_;
}

void LocalCommunicator::Leave() {
  MutexLock lock(mutex_);
  --in_flight_;
  idle_.NotifyAll();
}

Result<std::vector<std::string>> LocalCommunicator::Gather(const std::shared_ptr<LocalHub>& hub,
                                                           std::string_view mine,
                                                           const Deadline& deadline) {
  uint64_t sequence = 0;
  {
    MutexLock lock(mutex_);
    sequence = sequence_++;
  }
  auto parts = hub->Gather(sequence, rank_, mine, deadline);
  if (!parts.ok()) return std::move(parts).status().Annotate("communicator '" + name_ + "'");
  return parts;
}

Result<std::vector<std::string>> LocalCommunicator::AllGather(std::string_view mine,
                                                              const Deadline& deadline) {
  CKPT_ASSIGN_OR_RETURN(const auto hub, Enter());
  auto parts = Gather(hub, mine, deadline);
  Leave();
  return parts;
}

Status LocalCommunicator::AllReduceSum(std::span<double> values, const Deadline& deadline) {
  const std::string_view mine(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  CKPT_ASSIGN_OR_RETURN(const auto parts, AllGather(mine, deadline));
  std::fill(values.begin(), values.end(), 0.0);
  for (const std::string& part : parts) {
    if (part.size() != values.size_bytes()) {
      return InvalidArgument("communicator '" + name_ + "': ranks sum arrays of other sizes");
    }
    for (size_t i = 0; i < values.size(); ++i) {
      double value = 0;
      std::memcpy(&value, part.data() + i * sizeof value, sizeof value);
      values[i] += value;
    }
  }
  return OkStatus();
}

Status LocalCommunicator::Barrier(const Deadline& deadline) {
  return AllGather("", deadline).status();
}

uint32_t LocalCommunicator::in_flight() {
  MutexLock lock(mutex_);
  return in_flight_;
}

Status LocalCommunicator::Quiesce(const Deadline& deadline) {
  MutexLock lock(mutex_);
  quiesced_ = true;
  while (in_flight_ > 0) {
    if (idle_.WaitUntil(mutex_, deadline) || in_flight_ == 0) continue;
    quiesced_ = false;
    return deadline.Exceeded().Annotate("an operation is in flight");
  }
  return OkStatus();
}

Status LocalCommunicator::Down(const Deadline& deadline) {
  std::shared_ptr<LocalHub> hub;
  {
    MutexLock lock(mutex_);
    hub = std::exchange(hub_, nullptr);
  }
  if (hub == nullptr) return OkStatus();
  // Peers that still wait can only be waiting for this rank.
  hub->Abort(hub->id() + ": rank " + std::to_string(rank_) + " took it down");
  MutexLock lock(mutex_);
  while (in_flight_ > 0) {
    if (!idle_.WaitUntil(mutex_, deadline) && in_flight_ > 0) {
      return deadline.Exceeded().Annotate("an operation does not end though it was aborted");
    }
  }
  return OkStatus();
}

Status LocalCommunicator::Up(const std::string& fresh_id, KeyValue* kv, const Deadline& deadline) {
  {
    MutexLock lock(mutex_);
    if (hub_ != nullptr) {
      if (hub_->id() == fresh_id) return OkStatus();
      return FailedPrecondition("communicator '" + name_ + "' is up under another id");
    }
  }
  std::shared_ptr<LocalHub> hub;
  if (rank_ == 0) {
    hub = Hubs().Make(fresh_id, world_);
    if (hub == nullptr) return AlreadyExists("id '" + fresh_id + "' was used before");
    CKPT_RETURN_IF_ERROR(kv->Set("hub", fresh_id));
  } else {
    CKPT_ASSIGN_OR_RETURN(const std::string id, kv->Wait("hub", deadline));
    if (id != fresh_id) return FailedPrecondition("rank 0 builds under the id '" + id + "'");
    hub = Hubs().Find(id);
    if (hub == nullptr) return Unavailable("rank 0 is gone again");
  }
  {
    MutexLock lock(mutex_);
    sequence_ = 0;
  }
  // It is up once everyone is there.
  CKPT_RETURN_IF_ERROR(Gather(hub, "", deadline).status());
  MutexLock lock(mutex_);
  hub_ = std::move(hub);
  quiesced_ = false;
  return OkStatus();
}

// Everyone sends random bytes; everyone digests all of them with the sender's rank, and compares
// the digests: equal only if all ranks see all others, in the same places.
Status LocalCommunicator::Verify(const Deadline& deadline) {
  const std::string nonce = JobId::Random().ToString() + std::to_string(rank_);
  CKPT_ASSIGN_OR_RETURN(const auto nonces, AllGather(nonce, deadline));
  DigestStream stream;
  for (uint32_t r = 0; r < nonces.size(); ++r) {
    const uint64_t length = nonces[r].size();
    stream.Update(std::as_bytes(std::span(&r, 1)));
    stream.Update(std::as_bytes(std::span(&length, 1)));
    stream.Update(AsBytes(nonces[r]));
  }
  const std::string mine = stream.Finish().ToString();
  CKPT_ASSIGN_OR_RETURN(const auto digests, AllGather(mine, deadline));
  for (uint32_t r = 0; r < digests.size(); ++r) {
    if (digests[r] == mine) continue;
    return DataLoss("communicator '" + name_ + "': rank " + std::to_string(r) +
                    " saw other bytes than rank " + std::to_string(rank_));
  }
  if (nonces.size() == world_ && nonces[rank_] == nonce) return OkStatus();
  return DataLoss("communicator '" + name_ + "': its own bytes did not come back");
}

}  // namespace ckpt::comm
