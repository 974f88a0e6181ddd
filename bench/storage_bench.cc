// The storage engine against the disk itself: durable writes with digests against direct sequential
// writes of the same bytes, cold verified restores against direct sequential reads. A limit is the
// best of loops over io_uring and over a pool of threads with blocks of 1 to 8 MiB, from and into
// huge pages, found once and then measured beside each round. Also: what a save writes when 1 % of
// the chunks changed, what weights compress to, and many small tensors.
//
//   storage_bench [--mib N] [--rounds N] [--dir DIR]
#include <fcntl.h>
#include <liburing.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "bench/bench_report.h"
#include "bench/bench_settings.h"
#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/rng.h"
#include "libckpt/codec/codec.h"
#include "libckpt/engine/engine.h"
#include "libckpt/format/names.h"
#include "libckpt/os/memfd.h"
#include "libckpt/os/uring/uring_file.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::bench {
namespace {

// ---- the limits
// ----------------------------------------------------------------------------------

struct Loop {
  bool uring = false;
  uint32_t depth = 4;
  uint64_t block = uint64_t{4} << 20;
  std::string Name() const {
    return std::string(uring ? "io_uring" : "pool") + " of " + std::to_string(depth) + ", " +
           FormatBytes(block);
  }
};

// Moves all of `memory` to or from the file, `depth` blocks in flight.
void MoveByPool(int fd, std::byte* memory, uint64_t bytes, bool write, const Loop& loop) {
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < loop.depth; ++t) {
    threads.emplace_back([&] {
      for (uint64_t at; (at = next.fetch_add(loop.block)) < bytes;) {
        const uint64_t size = std::min(loop.block, bytes - at);
        const ssize_t n = write ? pwrite(fd, memory + at, size, static_cast<off_t>(at))
                                : pread(fd, memory + at, size, static_cast<off_t>(at));
        if (n != static_cast<ssize_t>(size)) Die("a block of the limit");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void MoveByUring(int fd, std::byte* memory, uint64_t bytes, bool write, const Loop& loop) {
  io_uring ring;
  if (io_uring_queue_init(loop.depth, &ring, 0) != 0) Die("io_uring is refused here");
  uint64_t next = 0, in_flight = 0;
  while (next < bytes || in_flight > 0) {
    while (next < bytes && in_flight < loop.depth) {
      const auto size = static_cast<unsigned>(std::min(loop.block, bytes - next));
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      if (write)
        io_uring_prep_write(sqe, fd, memory + next, size, next);
      else
        io_uring_prep_read(sqe, fd, memory + next, size, next);
      sqe->user_data = size;
      next += size;
      ++in_flight;
    }
    io_uring_submit(&ring);
    io_uring_cqe* cqe = nullptr;
    if (io_uring_wait_cqe(&ring, &cqe) != 0) Die("waiting for io_uring");
    if (cqe->res != static_cast<int>(cqe->user_data)) Die("a block of the limit");
    io_uring_cqe_seen(&ring, cqe);
    --in_flight;
  }
  io_uring_queue_exit(&ring);
}
bool HaveUring() {
  io_uring ring;
  if (io_uring_queue_init(4, &ring, 0) != 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

void Move(int fd, std::byte* memory, uint64_t bytes, bool write, const Loop& loop) {
  if (loop.uring) return MoveByUring(fd, memory, bytes, write, loop);
  MoveByPool(fd, memory, bytes, write, loop);
}

class Disk {
 public:
  Disk(std::string path, std::byte* memory, uint64_t bytes)
      : path_(std::move(path)), memory_(memory), bytes_(bytes) {}
  ~Disk() { unlink(path_.c_str()); }

  double Write(const Loop& loop) {
    unlink(path_.c_str());
    return Seconds([&] {
      const int fd = open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_DIRECT, 0666);
      if (fd < 0) Die("open " + path_ + " for direct writes");
      if (fallocate(fd, 0, 0, static_cast<off_t>(bytes_)) != 0) Die("fallocate");
      Move(fd, memory_, bytes_, true, loop);
      if (fsync(fd) != 0 || close(fd) != 0) Die("fsync");
    });
  }
  double Read(const Loop& loop) {
    return Seconds([&] {
      const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
      if (fd < 0) Die("open " + path_);
      Move(fd, memory_, bytes_, false, loop);
      close(fd);
    });
  }
  // The fastest of all loops, by the better of two runs each.
  Loop Best(bool write) {
    Loop best;
    double best_seconds = 1e9;
    for (const bool uring : {false, true}) {
      if (uring && !HaveUring()) continue;
      for (const uint64_t mib : {1, 2, 4, 8}) {
        const Loop loop{uring, mib <= 2 ? 16u : 8u, mib << 20};
        const double seconds =
            write ? std::min(Write(loop), Write(loop)) : std::min(Read(loop), Read(loop));
        if (seconds < best_seconds) best = loop;
        best_seconds = std::min(best_seconds, seconds);
      }
    }
    std::fprintf(stderr, "best loop to %s: %s%s\n", write ? "write" : "read", best.Name().c_str(),
                 HaveUring() ? "" : " (io_uring was not tried)");
    return best;
  }

 private:
  const std::string path_;
  std::byte* const memory_;
  const uint64_t bytes_;
};

// ---- a job
// ---------------------------------------------------------------------------------------

// One rank whose tensors have `rows` elements each, in a store of their own.
class Job {
 public:
  Job(const std::string& dir, uint64_t bytes, uint64_t tensor_bytes,
      os::FileSystem& fs = os::PosixFileSystem())
      : dir_(dir), memory_(Get(os::Mapping::Anonymous(bytes, true))) {
    layout_.rank = Rank(0);
    for (uint64_t at = 0; at + tensor_bytes <= bytes; at += tensor_bytes) Add(at, tensor_bytes);
    Rng rng(1);
    auto* words = reinterpret_cast<uint64_t*>(memory_.data());
    for (uint64_t i = 0; i < bytes / 8; ++i) words[i] = rng.Next();
    plan_ = Get(plan::MakePlan({layout_}, {0}));
    staging_ = Get(
        os::Mapping::Anonymous(engine::StagingRegion::BytesNeeded(layout_, plan_.ranks[0]), true));
    store_ = storage::OpenFileStore(fs, dir_);
    job_ = Get(store_->OpenJob(JobId{}));
    epoch_ = Get(store_->ClaimEpoch(Epoch(1), {}, {})).epoch;
    region_.emplace(Get(engine::StagingRegion::Format(
        staging_.bytes(), engine::StagingIdentity{job_, Rank(0), 1, plan_.hash}, layout_,
        plan_.ranks[0])));
  }
  ~Job() { std::filesystem::remove_all(dir_); }

  void Stage() {
    if (region_->state() != engine::GenerationState::kFree)
      region_->set_state(engine::GenerationState::kDurable);
    region_->Begin(engine::GenerationInfo{++generation_, Id(), 1, true});
    Check(
        engine::Capture(tensors_, &*region_, nullptr, Deadline("bench", std::chrono::minutes(5))));
    Check(region_->Seal(Step(generation_)));
  }
  // Seconds of the durable write of what is staged, its report in `report_`.
  double Write(const engine::WriteOptions& options = {}) {
    Check(store_->BeginAttempt(Id()));
    return Seconds([&] { report_ = Get(engine::WriteShard(&*region_, store_.get(), options)); });
  }
  void Drop() { Check(store_->Abort(Id())); }
  void Commit() {
    const std::string manifest =
        Get(engine::BuildManifest(job_, Id(), {layout_}, {report_}, /*managed=*/false));
    Check(store_->Commit(Id(), manifest, {format::ManifestDigest(manifest), epoch_, ""},
                         Deadline("bench", std::chrono::minutes(1))));
  }
  double Load() {
    const std::string shard = dir_ + "/" + Id().ToString() + "/" + report_.file;
    const int fd = open(shard.c_str(), O_RDONLY | O_CLOEXEC);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return Seconds([&] {
      auto reader = Get(engine::OpenCheckpoint(store_.get(), Id()));
      Check(reader->Load(Rank(0), tensors_, {}));
    });
  }
  AttemptId Id() const { return {epoch_, Step(generation_), Attempt(generation_)}; }
  std::byte* data() { return memory_.data(); }
  uint64_t bytes() const { return memory_.size(); }
  const engine::ShardReport& report() const { return report_; }

 private:
  void Add(uint64_t at, uint64_t bytes) {
    engine::LiveTensor tensor;
    tensor.meta.name = "layer." + std::to_string(at / bytes) + ".weight";
    tensor.meta.dtype = format::DType::kF32;
    tensor.meta.placement = format::Placement::kReplicated;
    tensor.meta.global_shape = {bytes / 4};
    tensor.meta.local = format::Box{{0}, {bytes / 4}};
    tensor.data = memory_.data() + at;
    layout_.tensors.push_back(tensor.meta);
    tensors_.push_back(std::move(tensor));
  }

  const std::string dir_;
  os::Mapping memory_, staging_;
  std::vector<engine::LiveTensor> tensors_;
  format::RankLayout layout_;
  plan::GangPlan plan_;
  std::optional<engine::StagingRegion> region_;
  std::unique_ptr<storage::EpochStore> store_;
  JobId job_;
  Epoch epoch_;
  uint32_t generation_ = 0;
  engine::ShardReport report_;
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Through io_uring as ckpt-run and the tools do, and through the pool of the library.
void WriteAndRead(const Settings& settings, const std::string& dir) {
  struct Way {
    Way(std::string n, const std::string& at, uint64_t bytes, os::FileSystem& fs)
        : name(std::move(n)), job(at + "/" + name, bytes, uint64_t{16} << 20, fs) {}
    std::string name;
    Job job;
    Rounds writes, reads;
    double write_cpu = 0, read_cpu = 0;  // seconds of all threads
  };
  std::deque<Way> ways;
  const auto add = [&](const std::string& name, os::FileSystem& fs) {
    ways.emplace_back(name, dir, settings.bytes, fs);
  };
  add("pool", os::PosixFileSystem());
  if (&os::UringFileSystem() != &os::PosixFileSystem()) add("uring", os::UringFileSystem());
  Job& job = ways.front().job;
  const AlignedBuffer scratch(job.bytes());  // in huge pages, as the blocks that we write
  std::memcpy(scratch.data(), job.data(), job.bytes());
  Disk disk(dir + "/plain", scratch.data(), job.bytes());
  const auto rate = [&](double seconds) {
    return static_cast<double>(job.bytes()) * 1e-9 / seconds;
  };
  const Loop write = disk.Best(true);
  for (Way& way : ways) way.job.Stage();
  for (int i = 0; i < settings.rounds; ++i) {
    for (Way& way : ways) {
      const double limit = disk.Write(write);
      way.job.Stage();
      const double cpu = CpuSeconds();
      way.writes.Add(rate(way.job.Write()), rate(limit));
      way.write_cpu += CpuSeconds() - cpu;
      way.job.Drop();
    }
  }
  const Loop read = disk.Best(false);
  for (Way& way : ways) {
    way.job.Stage();
    way.job.Write();
    way.job.Commit();
  }
  for (int i = 0; i < settings.rounds; ++i) {
    for (Way& way : ways) {
      const double limit = disk.Read(read);
      const double cpu = CpuSeconds();
      way.reads.Add(rate(way.job.Load()), rate(limit));
      way.read_cpu += CpuSeconds() - cpu;
    }
  }
  const double gib = static_cast<double>(job.bytes()) * settings.rounds / (1 << 30);
  for (const Way& way : ways) {
    std::fprintf(stderr, "%s: %.0f ms of a core to write a GiB, %.0f to restore it\n",
                 way.name.c_str(), way.write_cpu * 1e3 / gib, way.read_cpu * 1e3 / gib);
    Print("storage_durable_write_" + way.name, way.writes, 0.90, Better::kHigher, "GB/s");
    Print("storage_cold_restore_verified_" + way.name, way.reads, 0.95, Better::kHigher, "GB/s");
  }
}

// A save after one byte of every hundredth chunk has changed.
void OnePercent(const Settings& settings, const std::string& dir) {
  Job job(dir + "/references", settings.bytes, uint64_t{16} << 20);
  engine::WriteOptions references;
  references.references = true;
  job.Stage();
  job.Write(references);
  job.Commit();
  for (uint64_t at = 0; at < job.bytes(); at += 100 * kChunkBytesDefault)
    job.data()[at] ^= std::byte{1};
  job.Stage();
  job.Write(references);
  job.Commit();
  const auto written = static_cast<double>(job.report().file_bytes + job.report().index_bytes);
  Print("storage_written_for_1_percent_changed", 100 * written / static_cast<double>(job.bytes()),
        0, 0, 1.5, Better::kLower, "%");
}

// N ranks that hold the same write 1/N each.
void Replicas() {
  constexpr uint32_t kRanks = 8;
  std::vector<format::RankLayout> layouts(kRanks);
  for (uint32_t r = 0; r < kRanks; ++r) {
    layouts[r].rank = Rank(r);
    for (uint64_t t = 0; t < 300; ++t) {
      format::TensorMeta meta;
      meta.name = "layer." + std::to_string(t);
      meta.dtype = format::DType::kF32;
      meta.placement = format::Placement::kReplicated;
      meta.global_shape = {t % 3 == 0 ? 4096u : 1u, 1024u};
      meta.local = format::Box{{0, 0}, meta.global_shape};
      layouts[r].tensors.push_back(std::move(meta));
    }
  }
  const plan::GangPlan plan = Get(plan::MakePlan(layouts, std::vector<uint32_t>(kRanks)));
  uint64_t most = 0, all = 0;
  for (uint32_t r = 0; r < kRanks; ++r) {
    most = std::max(most, plan.ranks[r].WriteBytes(layouts[r]));
    all += plan.ranks[r].WriteBytes(layouts[r]);
  }
  Print("storage_largest_share_of_8_replicas", static_cast<double>(most) * kRanks,
        static_cast<double>(all), static_cast<double>(most) * kRanks / static_cast<double>(all),
        1.05, Better::kLower, "bytes times 8");
}

// bf16, to nearest.
void AppendBf16(float value, std::string* out) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  word += 0x7fff + ((word >> 16) & 1);
  out->push_back(static_cast<char>(word >> 16));
  out->push_back(static_cast<char>(word >> 24));
}

// The float32 tensors of a safetensors file; empty if there is none.
std::string TrainedWeights() {
  const char* path = std::getenv("CKPT_BENCH_WEIGHTS");
  std::string weights;
  if (path == nullptr || *path == '\0') return weights;
  const std::string file = Get(os::ReadFile(os::PosixFileSystem(), path, uint64_t{1} << 32));
  uint64_t header = 0;
  if (file.size() < 8) Die(std::string(path) + " is no safetensors file");
  std::memcpy(&header, file.data(), 8);
  if (header > file.size() - 8) Die(std::string(path) + " is no safetensors file");
  for (uint64_t at = 8 + header; at + 4 <= file.size(); at += 4) {
    float value;
    std::memcpy(&value, file.data() + at, 4);
    AppendBf16(value, &weights);
  }
  return weights;
}

struct Packed {
  double ratio = 0, bytes_per_second = 0;
};
// Whole chunks, each decoded a few times.
Packed Pack(const std::string& data, uint32_t element_bytes, bool floats) {
  uint64_t stored = 0, raw = 0;
  double seconds = 0;
  std::string out(kChunkBytesDefault, 0);
  for (uint64_t at = 0; at + kChunkBytesDefault <= data.size(); at += kChunkBytesDefault) {
    const ByteSpan chunk = AsBytes(data).subspan(at, kChunkBytesDefault);
    const auto encoded = Get(codec::Encode(chunk, element_bytes, floats, 1));
    const bool plain = encoded.codec == codec::Codec::kRaw;
    stored += plain ? chunk.size() : encoded.bytes.size();
    raw += chunk.size();
    if (plain) continue;
    std::vector<double> tries;
    for (int i = 0; i < 3; ++i) {
      tries.push_back(Seconds([&] {
        Check(codec::Decode(encoded.codec, AsBytes(encoded.bytes), element_bytes,
                            std::as_writable_bytes(std::span(out))));
      }));
    }
    seconds += Median(tries);
  }
  return {static_cast<double>(raw) / static_cast<double>(stored),
          static_cast<double>(raw) / seconds};
}

void Compress(const std::string& name, const std::string& weights) {
  const Packed planes = Pack(weights, 2, true);
  const Packed plain = Pack(weights, 1, false);
  std::fprintf(stderr, "%s: zstd level 1 without planes: %.3f\n", name.c_str(), plain.ratio);
  Print("codec_bf16_ratio_" + name, planes.ratio, 0, 0, 1.45, Better::kHigher, "x");
  Print("codec_bf16_decode_one_core_" + name, planes.bytes_per_second * 1e-9, 0, 0, 1.0,
        Better::kHigher, "GB/s");
}

void Compression() {
  const std::string trained = TrainedWeights();
  if (trained.empty())
    std::fprintf(stderr, "trained weights: skipped, CKPT_BENCH_WEIGHTS names no file\n");
  else
    Compress("trained_weights", trained);
  // As weights are distributed before they are trained: normal, each row at a scale of its own.
  std::mt19937 random(7);
  std::string drawn;
  for (int row = 0; row < 8 * 1024; ++row) {
    std::normal_distribution<float> normal(0, 0.01f * (1.0f + static_cast<float>(row % 7)));
    for (int i = 0; i < 1024; ++i) AppendBf16(normal(random), &drawn);
  }
  Compress("normal_weights", drawn);
}

// Many small tensors cost ten times what a tenth of them costs: staged, written, committed, listed
// and loaded.
void ManySmall(const std::string& dir) {
  const auto once = [&](uint64_t tensors) {
    Job job(dir + "/small", tensors << 10, 1024);
    return Seconds([&] {
      job.Stage();
      job.Write();
      job.Commit();
      job.Load();
    });
  };
  Rounds rounds;
  for (int i = 0; i < 3; ++i) {
    const double few = once(10'000);
    rounds.Add(once(100'000), 10 * few);
  }
  Print("storage_100000_small_tensors", rounds, 1.3, Better::kLower, "s");
}

// The most memory that is resident while `work` runs, beyond what was before.
template <typename Work>
double ExtraMib(Work&& work) {
  const auto field = [](const char* name) {
    std::ifstream in("/proc/self/status");
    const std::string status((std::istreambuf_iterator<char>(in)), {});
    const size_t at = status.find(name);
    return at == std::string::npos ? 0.0 : std::strtod(status.c_str() + at + 6, nullptr) / 1024;
  };
  std::FILE* reset = std::fopen("/proc/self/clear_refs", "w");
  if (reset == nullptr || std::fputs("5", reset) < 0 || std::fclose(reset) != 0)
    Die("resetting the peak of resident memory");
  const double before = field("VmRSS:");
  work();
  return field("VmHWM:") - before;
}

// Beside the tensors and their staged copy, which are both in memory before.
void ExtraMemory(const Settings& settings, const std::string& dir, const std::string& name,
                 os::FileSystem& fs) {
  Job job(dir + "/memory", settings.bytes, uint64_t{16} << 20, fs);
  job.Stage();
  Print("storage_extra_memory_of_a_save_" + name, ExtraMib([&] { job.Write(); }), 0, 0, 64,
        Better::kLower, "MiB");
  job.Commit();
  Print("storage_extra_memory_of_a_restore_" + name, ExtraMib([&] { job.Load(); }), 0, 0, 64,
        Better::kLower, "MiB");
}

}  // namespace
}  // namespace ckpt::bench

int main(int argc, char** argv) {
  using namespace ckpt::bench;
  const Settings settings = ParseSettings(argc, argv, 1024, 32);
  const std::string dir = settings.dir + "/storage_bench.tmp." + std::to_string(getpid());
  std::filesystem::create_directories(dir);
  WriteAndRead(settings, dir);
  ExtraMemory(settings, dir, "pool", ckpt::os::PosixFileSystem());
  ExtraMemory(settings, dir, "uring", ckpt::os::UringFileSystem());
  OnePercent(settings, dir);
  Replicas();
  Compression();
  ManySmall(dir);
  std::filesystem::remove_all(dir);
  return 0;
}
