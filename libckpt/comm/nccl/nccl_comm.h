// The NCCL communicators of one rank: a world and what is split from it, taken down and built again
// together, because they share resources and because one that hangs keeps the others from ending.
//
// Taken down: in order (their streams are drained, then each is finalized, the last split first)
// when all of it ended in time, else by abort of all that did not, before anything is freed. Built
// again: rank 0 draws a fresh id, which travels over the gang's key-value channel; splits and
// registered buffers follow in the order in which they were declared, which is the same on all
// ranks. The tempting alternative, a registry entry for each communicator, would finalize a parent
// whose split still hangs.
//
// All are non-blocking: each wait polls, and ends at its deadline. Calls of NCCL that block all the
// same (abort, destroy) run on a thread of their own and are given up on (BoundedCall).
//
// I1  Down begins every abort before it waits for any, and destroys or frees only afterwards.
// I2  handle() is null between Down and Up. I3  What could not be taken down is never built again
// in this process: Up says why. I4  With a graph that holds a communicator nothing is touched.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "libckpt/comm/comm.h"
#include "libckpt/comm/nccl/bounded_call.h"
#include "libckpt/comm/nccl/config.h"
#include "libckpt/comm/nccl/library.h"
#include "libckpt/comm/nccl/preflight.h"
#include "libckpt/device/cuda/cuda_device.h"

namespace ckpt::comm {

// What finalizing gets of a deadline before it is given up for abort; what aborting and destroying
// get even when there is no time left, and at most: then others shall still have some.
inline constexpr Nanos kNcclFinalizeMax = std::chrono::seconds(10);
inline constexpr Nanos kNcclAbortMin = std::chrono::seconds(5);
inline constexpr Nanos kNcclAbortMax = std::chrono::seconds(15);

// Threads: one at a time (the loop's thread).
class NcclCommunicators : public Communicator {
 public:
  static constexpr uint32_t kWorld = 0;  // index of the world, the parent of all

  // A group of `world` ranks, of which this is `rank`, on `device`. `config`: the program's
  // ncclConfig_t for the world, or null.
  // Errors: as Library::Get and ConfigCopy::Of; kFailedPrecondition where a device like this cannot
  // be used for it (Preflight).
  static Result<std::unique_ptr<NcclCommunicators>> Make(std::string name, uint32_t rank,
                                                         uint32_t world,
                                                         std::shared_ptr<device::CudaDevice> device,
                                                         const void* config);
  // Aborts what is up.
  ~NcclCommunicators() override;

  // Declares a communicator of those ranks of `parent` that say the same `color`, ordered by `key`
  // (a color of -1: none for this rank). All ranks declare the same, in the same order, while the
  // group is down. Returns its index. Errors: kInvalidArgument, kFailedPrecondition while up.
  Result<uint32_t> AddSplit(std::string name, uint32_t parent, int color, int key,
                            const void* config);
  // A stream that collectives are enqueued on; the default stream is one anyway.
  void AddStream(device::StreamHandle stream) { streams_.push_back(stream); }
  // Memory that is registered with that communicator after each build, as a buffer or as a window
  // (then on all its ranks, in the same order; `flags` are NCCL's). While down only.
  // Errors: kUnimplemented if this NCCL cannot.
  Status AddBuffer(uint32_t index, void* memory, uint64_t bytes, bool window, int flags);
  // A captured graph holds communicator `index` (until `held` is false): NCCL cannot take one down
  // that a graph refers to, and nobody but the program knows.
  Status Graph(uint32_t index, const std::string& graph, bool held);

  // The live communicator; null while down, and for a rank that is not part of it.
  nccl::CommPtr handle(uint32_t index) const;
  nccl::WindowPtr window(const void* memory) const;
  std::vector<nccl::Finding> Report() const;
  bool up() const { return !fresh_id_.empty(); }

  std::string name() const override { return name_; }
  Status MayGoDown() const override { return NoGraphs(); }
  Status Quiesce(const Deadline& deadline) override;
  Status Down(const Deadline& deadline) override;
  Status Up(const std::string& fresh_id, KeyValue* kv, const Deadline& deadline) override;
  Status Verify(const Deadline& deadline) override;

 private:
  struct Buffer {
    void* memory;
    uint64_t bytes;
    bool window;
    int flags;
    void* handle = nullptr;
    nccl::WindowPtr registered_window = nullptr;
  };
  struct Member {
    std::string name;
    uint32_t parent;
    int color, key;
    nccl::ConfigCopy config;
    std::vector<Buffer> buffers;
    std::map<std::string, int> graphs;  // how often each was declared
    nccl::CommPtr comm = nullptr;       // NCCL writes it until the build is over: does not move
    bool finalized = false;
  };
  struct Scratch {
    device::StreamHandle stream = nullptr;
    std::byte* memory = nullptr;
  };

  NcclCommunicators(const nccl::Library* library, std::string name, uint32_t rank, uint32_t world,
                    std::shared_ptr<device::CudaDevice> device);
  Status CheckDeclaration(uint32_t index) const;
  // "rank 1: communicator 'world'" before what went wrong.
  Status Named(Status status, const Member& member) const;
  Status StatusOf(nccl::Result32 result, const char* call, const Member& member) const;
  Status NoGraphs() const;

  Result<nccl::UniqueId> AgreeOnId(const std::string& fresh_id, KeyValue* kv,
                                   const Deadline& deadline);
  Status Build(Member* member, const nccl::UniqueId& id, const Deadline& deadline);
  Status RegisterBuffers(Member* member, const Deadline& deadline);
  Status DeregisterBuffers(Member* member);
  // Until its state is no longer "in progress".
  Status Ready(const Member& member, nccl::CommPtr comm, const char* call,
               const Deadline& deadline);
  Status AllReady(const Deadline& deadline);
  // Until the event has fired; an error of the communicator ends it.
  Status Await(device::Event* event, const Member& member, const char* what,
               const Deadline& deadline);
  Status Drain(device::StreamHandle stream, const Member& member, const char* what,
               const Deadline& deadline);

  bool AllDown() const;
  void FinalizeAll(const Deadline& deadline);
  Status AbortAndDestroy(const Deadline& deadline);
  Status MakeScratch();
  Status DrainScratch(const Deadline& deadline);
  Status FreeScratch();
  // Everyone's `mine`, by rank.
  Result<std::vector<std::string>> Gather(const Member& member, const std::string& mine,
                                          const Deadline& deadline);
  Status VerifyOne(const Member& member, const Deadline& deadline);

  const nccl::Library* const nccl_;
  const std::string name_;
  const uint32_t rank_, world_;
  const std::shared_ptr<device::CudaDevice> device_;
  std::vector<std::unique_ptr<Member>> members_;  // parents first
  std::vector<device::StreamHandle> streams_;
  std::string fresh_id_;  // empty: down
  bool quiesced_ = false;
  Scratch scratch_;
  Status suspect_;  // what a check found, until it is down
  Status lost_;     // why it can never be built again
};

}  // namespace ckpt::comm
