#include "coordinator/core/records.h"

#include <bit>
#include <cstdio>
#include <type_traits>

#include "libckpt/base/bytes.h"

namespace ckpt::core {
namespace {

constexpr uint32_t kRecordVersion = 5;

// One list of fields for both directions: `ar(a, b, c)` writes or reads them.
class Writer {
 public:
  template <typename... Ts>
  void operator()(Ts&... values) {
    (One(values), ...);
  }
  std::string Take() && { return std::move(out_).Take(); }
  uint32_t version() const { return kRecordVersion; }

 private:
  void One(std::string& v) { out_.PutString(v); }
  void One(bool& v) { out_.PutBool(v); }
  void One(double& v) { out_.Put<uint64_t>(std::bit_cast<uint64_t>(v)); }
  template <typename T>
  requires std::is_integral_v<T>
  void One(T& v) { out_.Put<T>(v); }
  template <typename T>
  requires std::is_enum_v<T>
  void One(T& v) { out_.Put<uint32_t>(static_cast<uint32_t>(v)); }
  template <typename A, typename B>
  void One(std::pair<A, B>& v) {
    (*this)(v.first, v.second);
  }
  template <typename T, size_t N>
  void One(std::array<T, N>& v) {
    for (T& each : v) One(each);
  }
  template <typename T>
  void One(std::vector<T>& v) {
    out_.Put<uint32_t>(static_cast<uint32_t>(v.size()));
    for (T& each : v) One(each);
  }
  template <typename K, typename V>
  void One(std::map<K, V>& v) {
    out_.Put<uint32_t>(static_cast<uint32_t>(v.size()));
    for (auto& [key, value] : v) {
      K copy = key;
      (*this)(copy, value);
    }
  }
  template <typename T>
  void One(std::set<T>& v) {
    out_.Put<uint32_t>(static_cast<uint32_t>(v.size()));
    for (T each : v) One(each);
  }
  template <typename T>
  requires std::is_class_v<T>
  void One(T& v) { Fields(*this, v); }

  ByteWriter out_;
};

class Reader {
 public:
  Reader(std::string_view bytes, uint32_t version) : in_(bytes), version_(version) {}
  uint32_t version() const { return version_; }
  template <typename... Ts>
  void operator()(Ts&... values) {
    (One(values), ...);
  }
  Status Finish(std::string_view what) const { return in_.Finish(what); }

 private:
  void One(std::string& v) { v = in_.GetString(); }
  void One(bool& v) { v = in_.GetBool(); }
  void One(double& v) { v = std::bit_cast<double>(in_.Get<uint64_t>()); }
  template <typename T>
  requires std::is_integral_v<T>
  void One(T& v) { v = in_.Get<T>(); }
  template <typename T>
  requires std::is_enum_v<T>
  void One(T& v) { v = static_cast<T>(in_.Get<uint32_t>()); }
  template <typename A, typename B>
  void One(std::pair<A, B>& v) {
    (*this)(v.first, v.second);
  }
  template <typename T, size_t N>
  void One(std::array<T, N>& v) {
    for (T& each : v) One(each);
  }
  template <typename T>
  void One(std::vector<T>& v) {
    v.resize(in_.GetCount(1));
    for (T& each : v) One(each);
  }
  template <typename K, typename V>
  void One(std::map<K, V>& v) {
    for (uint32_t left = in_.GetCount(1); left > 0 && !in_.failed(); --left) {
      K key{};
      V value{};
      (*this)(key, value);
      v.emplace(std::move(key), std::move(value));
    }
  }
  template <typename T>
  void One(std::set<T>& v) {
    for (uint32_t left = in_.GetCount(1); left > 0 && !in_.failed(); --left) {
      T each{};
      One(each);
      v.insert(std::move(each));
    }
  }
  template <typename T>
  requires std::is_class_v<T>
  void One(T& v) { Fields(*this, v); }

  ByteReader in_;
  const uint32_t version_;
};

template <typename Ar>
void Fields(Ar& ar, Meta& v) {
  ar(v.cluster_id, v.data_token, v.term);
}
template <typename Ar>
void Fields(Ar& ar, JobSpec& v) {
  ar(v.name, v.command, v.ranks, v.priority, v.job_class, v.not_preemptible, v.store, v.env,
     v.workdir, v.state_bytes_per_rank, v.save_every, v.min_runtime_ms);
  uint32_t restarts_max = v.restarts_max.value_or(0);
  bool given = v.restarts_max.has_value();
  ar(restarts_max);
  if (ar.version() >= 2) ar(given);
  if (ar.version() < 2) given = restarts_max != 0;
  v.restarts_max = given ? std::optional(restarts_max) : std::nullopt;
  ar(v.max_price);
}
template <typename Ar>
void Fields(Ar& ar, CopyState& v) {
  ar(v.epoch, v.attempt, v.step, v.staged_gang, v.ram_nodes, v.durable, v.bytes, v.bytes_durable,
     v.failure);
  if (ar.version() >= 2) ar(v.lost);
}
template <typename Ar>
void Fields(Ar& ar, PhaseTimes& v) {
  ar(v.noticed_ns, v.cut_ns, v.staged_ns, v.comms_down_ns, v.released_ns, v.durable_ns, v.stall_ns,
     v.staged_bytes, v.memcpy_ratio);
}
template <typename Ar>
void Fields(Ar& ar, Method& v) {
  ar(v.name, v.yes, v.reason);
}
template <typename Ar>
void Fields(Ar& ar, NodePlacement& v) {
  ar(v.node, v.node_rank, v.first_rank, v.rank_count);
}
template <typename Ar>
void Fields(Ar& ar, Member& v) {
  ar(v.place, v.state, v.boot_ns, v.launched, v.message);
}
template <typename Ar>
void Fields(Ar& ar, Drain& v) {
  ar(v.copy, v.op, v.token, v.gang_address, v.members, v.failures, v.failure, v.wait_ns);
}
template <typename Ar>
void Fields(Ar& ar, Measured& v) {
  ar(v.stage_bytes_per_second, v.exit_seconds, v.restore_seconds);
  if (ar.version() >= 4) ar(v.step_seconds);
}
template <typename Ar>
void Fields(Ar& ar, Job& v) {
  ar(v.spec, v.job_id, v.token, v.state, v.reason, v.put_op_id, v.epoch, v.epoch_seen, v.launch_op,
     v.members, v.gang_address, v.stop, v.stop_op, v.kill_op, v.stop_kill, v.stop_budget_ns,
     v.op_id, v.last_op_id, v.last_stop_epoch, v.last_stop, v.last_stop_clean, v.copies, v.methods,
     v.resumed_from, v.state_bytes, v.preempted_count, v.restart_count, v.lost_gpu_seconds,
     v.submitted_wall_ns, v.waiting_since_wall_ns, v.running_since_ns, v.last_copy_ns,
     v.member_bytes);
  if (ar.version() >= 2) ar(v.run_ended, v.drain, v.lost_steps);
  if (ar.version() >= 3) ar(v.given_up, v.measured);
  if (ar.version() >= 4) ar(v.left_behind);
  if (ar.version() >= 5) ar(v.step);
}
template <typename Ar>
void Fields(Ar& ar, NodeInfo& v) {
  ar(v.name, v.address, v.slots, v.staging_budget_bytes, v.data_address, v.boot_ns, v.memcpy_gbps,
     v.disk_gbps);
}
template <typename Ar>
void Fields(Ar& ar, Node& v) {
  ar(v.info, v.foreign);
}
template <typename Ar>
void Fields(Ar& ar, VictimProgress& v) {
  ar(v.job, v.epoch, v.phase, v.times, v.placement);
  if (ar.version() >= 2) ar(v.lost_gpu_seconds, v.lost_steps);
}
template <typename Ar>
void Fields(Ar& ar, Operation& v) {
  ar(v.op_id, v.kind, v.job, v.state, v.phase, v.message, v.victims, v.started_ns, v.granted_ns,
     v.done_ns, v.done_wall_ns, v.budget_ns, v.placement, v.command_op, v.epoch, v.from_node,
     v.to_node, v.newest_before);
}
template <typename Ar>
void Fields(Ar& ar, EventRecord& v) {
  ar(v.revision, v.wall_ns, v.boottime_ns, v.job, v.node, v.epoch, v.op_id, v.kind, v.message,
     v.data);
}

template <typename T>
std::string Encode(T value) {
  Writer writer;
  uint32_t version = kRecordVersion;
  writer(version, value);
  return std::move(writer).Take();
}

template <typename T>
Result<T> Decode(std::string_view bytes, std::string_view what) {
  uint32_t version = 0;
  Reader head(bytes.substr(0, sizeof version), 0);
  head(version);
  if (version > kRecordVersion) {
    return FailedPrecondition(std::string(what) + " was written by a newer coordinator (version " +
                              std::to_string(version) + ", this one reads up to " +
                              std::to_string(kRecordVersion) + ")");
  }
  Reader reader(bytes, version);
  T value;
  reader(version, value);
  CKPT_RETURN_IF_ERROR(reader.Finish(what));
  return value;
}

std::string NumberKey(const char* kind, uint64_t number) {
  char key[32];
  std::snprintf(key, sizeof key, "%s/%016llx", kind, static_cast<unsigned long long>(number));
  return key;
}

}  // namespace

std::string JobKey(std::string_view name) { return "job/" + std::string(name); }
std::string NodeKey(std::string_view name) { return "node/" + std::string(name); }
std::string OperationKey(uint64_t op_id) { return NumberKey("op", op_id); }
std::string EventKey(uint64_t revision) { return NumberKey("event", revision); }

std::string EncodeMeta(const Meta& meta) { return Encode(meta); }
std::string EncodeJob(const Job& job) {
  Job stored = job;
  for (auto& [from, copies] : stored.copies) {
    for (CopyState& copy : copies) {
      if (!copy.durable) copy.bytes_durable = 0;  // progress is not worth a disk write
    }
  }
  return Encode(std::move(stored));
}
std::string EncodeNode(const Node& node) { return Encode(node); }
std::string EncodeOperation(const Operation& operation) { return Encode(operation); }
std::string EncodeEvent(const EventRecord& event) { return Encode(event); }

Result<Meta> DecodeMeta(std::string_view bytes) {
  return Decode<Meta>(bytes, "the cluster record");
}
Result<Job> DecodeJob(std::string_view bytes) { return Decode<Job>(bytes, "a job record"); }
Result<Node> DecodeNode(std::string_view bytes) { return Decode<Node>(bytes, "a node record"); }
Result<Operation> DecodeOperation(std::string_view bytes) {
  return Decode<Operation>(bytes, "an operation record");
}
Result<EventRecord> DecodeEvent(std::string_view bytes) {
  return Decode<EventRecord>(bytes, "an event record");
}

}  // namespace ckpt::core
