// A rank of the end-to-end tests: a deterministic "training" with replicated, sharded and per-rank
// state, real enough to tell a wrong restore from a right one. Every step appends "step digest" to
// DIR/rank<r>.steps; the last line of a complete run is "done digest".
//
//   e2e_rank DIR STEPS STEP_MS DOUBLES [--no-track] [--crash-at STEP] [--save-at STEP]
//            [--extra | --extra-later]   (a further tensor; tracked with the rest, or anew)
//            [--late MS]                 (opens the session that much later)
//            [--phase STEP MS SAID_MS RANK]  (that rank evaluates for MS after STEP, says SAID_MS)
//            [--linger MS]               (between the last step and Finish)
//            [--worker]                  (forks a data loader that outlives the rank)
//            [--throw STEP]              (at STEP, what rank 1 tracks cannot be staged: it throws)
//            [--stuck STEP]              (rank 1 never calls step again)
//            [--save-rank RANK]          (only that rank saves at --save-at)
//            [--late-rank RANK MS]       (that rank opens the session that much later)
//            [--cuda]                    (weights and moments live on cuda:0; each step uploads
//            them and does not wait)
//            [--nccl]                    (with --cuda: at each step the ranks sum a buffer over
//            NCCL, all of them and in pairs, and compare it with what it must be)
#include <dlfcn.h>
#include <unistd.h>

#include <ckpt/ckpt.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "libckpt/comm/nccl/nccl_api.h"
#include "libckpt/device/cuda/driver_api.h"

namespace {

struct Arguments {
  std::string dir;
  long steps = 0, step_ms = 0, doubles = 0, crash_at = -1, save_at = -1;
  bool track = true, extra = false, extra_later = false, worker = false, cuda = false;
  bool nccl = false;
  long save_rank = -1, late_rank = -1;
  long graph_until = -1;
  long late_ms = 0, linger_ms = 0, throw_at = -1, stuck_at = -1;
  long phase_at = -1, phase_ms = 0, phase_said_ms = 0, phase_rank = 0;
};

Arguments Parse(int argc, char** argv) {
  Arguments a;
  if (argc < 5) {
    fprintf(stderr, "e2e_rank DIR STEPS STEP_MS DOUBLES ...\n");
    exit(2);
  }
  a.dir = argv[1];
  a.steps = atol(argv[2]);
  a.step_ms = atol(argv[3]);
  a.doubles = atol(argv[4]);
  for (int i = 5; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--no-track") a.track = false;
    if (flag == "--extra" || flag == "--extra-later") a.extra = true;
    if (flag == "--extra-later") a.extra_later = true;
    const auto number = [&] { return i + 1 < argc ? atol(argv[++i]) : 0; };
    if (flag == "--worker") a.worker = true;
    if (flag == "--cuda") a.cuda = true;
    if (flag == "--nccl") a.nccl = true;
    if (flag == "--graph") a.graph_until = number();
    if (flag == "--late") a.late_ms = number();
    if (flag == "--save-rank") a.save_rank = number();
    if (flag == "--late-rank") {
      a.late_rank = number();
      a.late_ms = number();
    }
    if (flag == "--linger") a.linger_ms = number();
    if (flag == "--throw") a.throw_at = number();
    if (flag == "--stuck") a.stuck_at = number();
    if (flag == "--phase") {
      a.phase_at = number();
      a.phase_ms = number();
      a.phase_said_ms = number();
      a.phase_rank = number();
    }
    if (flag == "--crash-at" && i + 1 < argc) a.crash_at = atol(argv[++i]);
    if (flag == "--save-at" && i + 1 < argc) a.save_at = atol(argv[++i]);
  }
  return a;
}

long Environment(const char* name, long otherwise) {
  const char* value = getenv(name);
  return value == nullptr ? otherwise : atol(value);
}

struct Training {
  std::vector<double> weights;  // the same on all ranks
  std::vector<double> shard;    // a box of a larger tensor
  std::vector<double> own;      // this rank's
  std::vector<double> extra;    // the step, in each element
  long step = 0;
  uint64_t random = 1;  // this rank's generator
  std::string note;     // more than a value may be, when the callback is to throw

  void Step(long rank) {
    ++step;
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const double noise = static_cast<double>(random >> 40) * 1e-9;
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] +=
          1e-3 * static_cast<double>((i + static_cast<size_t>(step)) % 7) - 1e-4 * weights[i];
    }
    for (double& x : shard) x = 0.99 * x + static_cast<double>(step);
    for (double& x : extra) x = static_cast<double>(step);
    for (double& x : own) x = 0.5 * x + noise + static_cast<double>(rank);
  }
  uint64_t Digest() const {
    uint64_t hash = 1469598103934665603ull ^ random;
    for (const auto* tensor : {&weights, &shard, &own}) {
      for (const double x : *tensor) {
        uint64_t bits;
        memcpy(&bits, &x, sizeof bits);
        hash = (hash ^ bits) * 1099511628211ull;
      }
    }
    return hash;
  }
};

namespace cu = ckpt::device::cuda;

// A tensor's memory on cuda:0, and a stream of the program's own that nobody waits for. Whatever
// driver the loader finds.
class OnDevice {
 public:
  OnDevice() {
    library_ = dlopen("libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    cu::ContextPtr context = nullptr;
    Call<unsigned>("cuInit", 0u);
    Call<cu::ContextPtr*, int>("cuDevicePrimaryCtxRetain", &context, 0);
    Call<cu::ContextPtr>("cuCtxPushCurrent_v2", context);
    Call<cu::StreamPtr*, unsigned>("cuStreamCreate", &stream_, cu::kStreamNonBlocking);
  }
  void* Allocate(std::vector<double>* host) {
    const size_t bytes = host->size() * sizeof(double);
    cu::DevicePtr memory = 0;
    Call<cu::DevicePtr*, size_t>("cuMemAlloc_v2", &memory, bytes);
    Call<void*, size_t, unsigned>("cuMemHostRegister_v2", host->data(), bytes, 0u);
    tensors_.push_back({memory, host});
    return reinterpret_cast<void*>(memory);  // NOLINT
  }
  // Goes on while the program does.
  void Upload() {
    for (const auto& [memory, host] : tensors_) {
      Call<cu::DevicePtr, const void*, size_t, cu::StreamPtr>(
          "cuMemcpyHtoDAsync_v2", memory, host->data(), host->size() * sizeof(double), stream_);
    }
  }
  void Wait() { Call<cu::StreamPtr>("cuStreamSynchronize", stream_); }
  void Download() {
    for (const auto& [memory, host] : tensors_) {
      Call<void*, cu::DevicePtr, size_t>("cuMemcpyDtoH_v2", host->data(), memory,
                                         host->size() * sizeof(double));
    }
  }
  void* stream() const { return stream_; }
  template <typename... Arguments>
  void Call(const char* name, Arguments... arguments) {
    const auto call = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    const int result = call == nullptr ? -1 : call(arguments...);
    if (result != 0) throw std::runtime_error(std::string(name) + ": " + std::to_string(result));
  }

 private:
  struct Tensor {
    cu::DevicePtr memory;
    std::vector<double>* host;
  };
  void* library_ = nullptr;
  cu::StreamPtr stream_ = nullptr;
  std::vector<Tensor> tensors_;
};

// Sums over the ranks on the device: in the world, and among ranks of the same parity.
class Collectives {
 public:
  Collectives(ckpt::Session& session, OnDevice* device, long rank, long world)
      : device_(device), rank_(rank), world_(world), nccl_(session), values_(kCount) {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error(dlerror());
    reduce_ = reinterpret_cast<decltype(reduce_)>(dlsym(library, "ncclAllReduce"));
    state_ = reinterpret_cast<decltype(state_)>(dlsym(library, "ncclCommGetAsyncError"));
    parity_ = nccl_.AddSplit("parity", 0, static_cast<int>(rank % 2), static_cast<int>(rank));
    nccl_.AddStream(device->stream());
    device->Call<cu::DevicePtr*, size_t>("cuMemAlloc_v2", &memory_, kCount * sizeof(double));
    nccl_.AddBuffer(0, reinterpret_cast<void*>(memory_), kCount * sizeof(double));  // NOLINT
    nccl_.Connect();
    fprintf(stderr, "rank %ld: NCCL is up\n", rank);
  }
  void Step(long step) {
    double all = 0, like = 0;
    for (long r = 0; r < world_; ++r) {
      all += Value(r, step);
      if (r % 2 == rank_ % 2) like += Value(r, step);
    }
    Sum(nccl_.comm(0), step, all);
    Sum(nccl_.comm(parity_), step, like);
  }
  void HoldByGraph(ckpt::Session& session) {
    Graph(true);
    fprintf(stderr, "%s\n%s\n", session.Describe().c_str(), nccl_.Report().c_str());
  }
  void Graph(bool held) { nccl_.Graph(0, "the step", held); }

 private:
  static constexpr size_t kCount = 20'000;  // more than one piece of the double's
  static double Value(long rank, long step) { return static_cast<double>((rank + 1) * step); }

  void Sum(void* raw, long step, double expected) {
    auto* const comm = static_cast<ncclComm*>(raw);
    values_.assign(kCount, Value(rank_, step));
    device_->Call<cu::DevicePtr, const void*, size_t>("cuMemcpyHtoD_v2", memory_, values_.data(),
                                                      kCount * sizeof(double));
    void* const at = reinterpret_cast<void*>(memory_);  // NOLINT
    int result = reduce_(at, at, kCount, ckpt::comm::nccl::kFloat64, ckpt::comm::nccl::kSum, comm,
                         static_cast<cu::StreamPtr>(device_->stream()));
    while (result == ckpt::comm::nccl::kInProgress) state_(comm, &result);
    if (result != 0) throw std::runtime_error("ncclAllReduce: " + std::to_string(result));
    device_->Wait();
    device_->Call<void*, cu::DevicePtr, size_t>("cuMemcpyDtoH_v2", values_.data(), memory_,
                                                kCount * sizeof(double));
    for (const double value : values_) {
      if (value != expected) throw std::runtime_error("NCCL sums wrongly");
    }
  }

  OnDevice* const device_;
  const long rank_, world_;
  ckpt::Nccl nccl_;
  std::vector<double> values_;
  cu::DevicePtr memory_ = 0;
  uint32_t parity_ = 0;
  int (*reduce_)(const void*, void*, size_t, int, int, ncclComm*, CUstream_st*) = nullptr;
  int (*state_)(ncclComm*, int*) = nullptr;
};

void Track(Training* training, OnDevice* device, long rank, long world, ckpt::State* state) {
  const auto whole = static_cast<uint64_t>(training->weights.size());
  const auto part = static_cast<uint64_t>(training->shard.size());
  const auto place = [&](ckpt::TensorSpec* spec, std::vector<double>* host) {
    spec->data = device == nullptr ? host->data() : device->Allocate(host);
    spec->device = device == nullptr ? 0 : 1;
    spec->stream = device == nullptr ? nullptr : device->stream();
  };
  ckpt::TensorSpec weights;
  weights.name = "weights";
  weights.dtype = ckpt::DType::kF64;
  weights.shape = {whole};
  weights.placement = ckpt::Placement::kReplicated;
  place(&weights, &training->weights);
  state->Tensor(weights);
  ckpt::TensorSpec shard;
  shard.name = "moments";
  shard.dtype = ckpt::DType::kF64;
  place(&shard, &training->shard);
  shard.shape = {part * static_cast<uint64_t>(world)};
  shard.placement = ckpt::Placement::kSharded;
  shard.local_shape = {part};
  shard.local_offset = {part * static_cast<uint64_t>(rank)};
  state->Tensor(shard);
  state->Tensor("position", training->own.data(), {training->own.size()},
                ckpt::Placement::kPerRank);
  if (!training->extra.empty()) {
    state->Tensor("extra", training->extra.data(), {training->extra.size()},
                  ckpt::Placement::kReplicated);
  }
  state->Value("step", &training->step).Blob("random", &training->random, ckpt::Scope::kRank);
  state->Blob("note", &training->note, ckpt::Scope::kRank);
}

void Sleep(long ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Holds copies of all our descriptors, as a data loader does, and knows nothing of any end.
void ForkWorker() {
  if (fork() != 0) return;
  signal(SIGTERM, SIG_IGN);
  setsid();
  Sleep(600'000);
  _exit(0);
}

// What the program does after its step, beside training.
void Misbehave(const Arguments& a, long rank, ckpt::Session* session, Training* training) {
  if (training->step == a.phase_at && rank == a.phase_rank) {
    session->SetPhase(ckpt::Phase::kEvaluation, std::chrono::milliseconds(a.phase_said_ms));
    Sleep(a.phase_ms);
    session->SetPhase(ckpt::Phase::kTrain);
  }
  if (training->step == a.stuck_at && rank == 1) Sleep(600'000);
  if (a.throw_at >= 0 && rank == 1) {
    training->note.assign(training->step == a.throw_at ? size_t{20} << 20 : 1, 'x');
  }
}

int Train(const Arguments& a) {
  const long rank = Environment("RANK", 0), world = Environment("WORLD_SIZE", 1);
  if (a.late_rank < 0 || a.late_rank == rank) Sleep(a.late_ms);
  const long epoch = Environment("CKPT_EPOCH", 0);
  Training training;
  training.weights.assign(static_cast<size_t>(a.doubles), 1.0);
  training.shard.assign(static_cast<size_t>(a.doubles / world + 1), static_cast<double>(rank));
  training.own.assign(100, 0.0);
  training.random = static_cast<uint64_t>(rank) + 17;

  if (a.extra && !a.extra_later) training.extra.assign(1000, 0.0);
  ckpt::State state, wider;
  std::unique_ptr<OnDevice> device;
  if (a.cuda) device = std::make_unique<OnDevice>();
  Track(&training, device.get(), rank, world, &state);
  ckpt::Session session;
  if (a.worker) ForkWorker();
  if (a.track) {
    session.Track(state);
    if (session.Restore()) fprintf(stderr, "restored step %ld\n", training.step);
    if (device != nullptr && training.step > 0) device->Download();
    for (const double x : training.extra) {
      if (x != static_cast<double>(training.step)) throw std::runtime_error("extra is wrong");
    }
  }
  if (a.extra_later) {  // when the staging memory of the first layout is there
    Sleep(1000);
    training.extra.assign(1000, 0.0);
    Track(&training, device.get(), rank, world, &wider);
    session.Track(wider);
  }
  std::unique_ptr<Collectives> collectives;
  if (a.nccl) collectives = std::make_unique<Collectives>(session, device.get(), rank, world);
  if (a.nccl && training.step < a.graph_until) collectives->HoldByGraph(session);
  FILE* log = fopen((a.dir + "/rank" + std::to_string(rank) + ".steps").c_str(), "a");
  while (training.step < a.steps) {
    if (device != nullptr) device->Wait();  // what it uploads is about to change
    training.Step(rank);
    if (device != nullptr) device->Upload();
    if (collectives != nullptr) collectives->Step(training.step);
    if (training.step == a.graph_until && collectives != nullptr) collectives->Graph(false);
    fprintf(log, "%ld %016lx\n", training.step, static_cast<unsigned long>(training.Digest()));
    fflush(log);
    if (training.step == a.crash_at && rank == 1 && epoch == 1) raise(SIGKILL);
    if (a.step_ms > 0) Sleep(a.step_ms);
    Misbehave(a, rank, &session, &training);
    const ckpt::Request request = session.Step(training.step);
    if (request.error) fprintf(stderr, "step %ld: %s\n", training.step, request.error->what());
    if (request.stop()) return session.exit_code();
    if (training.step == a.save_at && (a.save_rank < 0 || a.save_rank == rank)) {
      try {
        ckpt::Save save = session.BeginSave(training.step);
        save.Wait(ckpt::Level::kShared);
        fprintf(stderr, "saved step %ld\n", training.step);
      } catch (const ckpt::Error& error) {
        fprintf(stderr, "not saved: %s\n", error.what());
      }
    }
  }
  fprintf(log, "done %016lx\n", static_cast<unsigned long>(training.Digest()));
  fclose(log);
  if (a.linger_ms > 0) fprintf(stderr, "lingering\n");
  Sleep(a.linger_ms);
  session.Finish();
  collectives.reset();
  session.Close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Train(Parse(argc, argv));
  } catch (const std::exception& error) {
    fprintf(stderr, "e2e_rank: %s\n", error.what());
    return 1;
  }
}
