// The user's view of one rank: what is tracked, the step boundary, saves, reading, communicators.
// Two modes behind one face: alone, straight to the store (standalone.h), and under ckpt-run
// (gang_session.h).
//
// step() is one fetch_add on the control word and a compare; in standalone mode the word is our own
// and nobody else's, so that both modes share the one fast path. Everything that wants the loop's
// attention (a signal, a background failure, a new page) sets a bit that the fast path also reads.
//
// I1  The fast path makes no system call, takes no lock and allocates nothing.
// I2  A mistake of the program (a call after finish, two threads at once, a state that changed
// shape) is an error of that call or breaks the session; it never ends the process, and training
// goes on.
// I3  In a forked child every call fails, and touches neither the page nor the store.
// I4  Callbacks of the program run on the thread that called us, under no lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/status.h"
#include "libckpt/comm/comm.h"
#include "libckpt/engine/engine.h"
#include "libckpt/session/background_copy.h"
#include "libckpt/session/comms.h"
#include "libckpt/session/reader.h"
#include "libckpt/session/save.h"
#include "libckpt/session/state.h"
#include "libckpt/storage/store.h"
#include "libckpt/wire/page.h"

namespace ckpt::session {

// ckpt_collective_t: gathers `n` bytes of every rank, in rank order.
using Allgather =
    std::function<bool(const void* in, size_t n, void* out, int64_t deadline_boottime_ns)>;

struct Options {
  std::string job;
  std::string store;
  Rank rank;
  uint32_t world = 1;
  Allgather allgather;
  uint64_t signals = 0;
  uint64_t save_every = 0;
  // Standalone; under ckpt-run it is ckpt-run that writes and removes.
  engine::WriteSettings write;
  std::optional<storage::KeepRules> keep;  // none: nothing is removed
  uint32_t copy_threads = 0;               // 0 chooses
  std::string run_socket;                  // empty: standalone
  std::string token;
};

// What the composition root picks.
struct Parts {
  std::function<Result<std::unique_ptr<storage::Store>>(const std::string& path)> open_store;
};

// 0 is success; called on the loop's thread before each staging.
using BeforeStage = std::function<int32_t(State*)>;

enum class RequestKind : uint32_t { kNone = 0, kSave = 1, kStop = 2 };
struct StepResult {
  RequestKind kind = RequestKind::kNone;
  uint64_t boundary = 0;
  int64_t deadline_boottime_ns = 0;
};

struct SaveRequest {
  int64_t step = 0;
  bool overlap = false;
  Nanos slot_timeout{0};  // for a free staging slot; 0: none is an error at once
  // With `overlap`, may be empty: asked at the fence, on the loop's thread, when the copy is
  // complete. True: the state was changed meanwhile, and the save is given up.
  BackgroundCopies::Changed changed;
};

namespace internal {
// Counts the forks that made this process what it is.
extern std::atomic<uint32_t> g_fork_count;
}  // namespace internal

class Session : public std::enable_shared_from_this<Session> {
 public:
  // Picks the mode by `options.run_socket`.
  static Result<std::shared_ptr<Session>> Open(Options options, Parts parts);
  virtual ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Status Track(std::shared_ptr<State> state, BeforeStage before_stage);

  Status AtBoundary(int64_t user_step, StepResult* out) {
    *out = StepResult();
    if (internal::g_fork_count.load(std::memory_order_relaxed) != fork_count_) return Forked();
    wire::ControlPage* page = page_.load(std::memory_order_relaxed);
    page->user_step.store(user_step, std::memory_order_relaxed);
    const uint64_t word =
        page->word.fetch_add(kBoundaryOne, std::memory_order_seq_cst) + kBoundaryOne;
    out->boundary = ++boundary_;
    if ((word & 15) == 0 && attention_.load(std::memory_order_relaxed) == 0 &&
        boundary_ != next_save_) [[likely]]
      return OkStatus();
    return SlowStep(user_step, out);
  }

  // `expected`: how long it will take, as far as the program knows; 0: it does not.
  Status SetPhase(wire::RankPhase phase, Nanos expected);
  Status Finish();
  Result<std::string> Describe();

  Result<std::shared_ptr<Save>> BeginSave(const SaveRequest& request);
  Status Fence();
  // Threads: any, but for a standalone session of several ranks: there it is collective.
  virtual Status WaitSave(Save* save, Level level, const Deadline& deadline);
  // Threads: any. kUnimplemented where the mode cannot.
  virtual Status CancelSave(Save* save) = 0;

  Result<std::unique_ptr<Reader>> OpenReader(const std::string& selector);
  // Newest first.
  Result<std::vector<storage::CheckpointInfo>> ListCheckpoints();

  Rank rank() const { return options_.rank; }
  uint32_t world() const { return options_.world; }
  Status RegisterCommunicator(std::shared_ptr<comm::Communicator> communicator);
  Status UnregisterCommunicator(const comm::Communicator* communicator);

  // Drains until the deadline, then abandons: the error says what is not durable. Every later call
  // fails.
  Status Close(const Deadline& deadline);

  // The program ends without close. A copy that is not complete is given up, since the state may be
  // gone; a complete one is made durable, or its loss is said on stderr.
  void AtExit();

  // Handles fail in a forked child; the destructor must not run there.
  bool InForkedChild() const {
    return internal::g_fork_count.load(std::memory_order_relaxed) != fork_count_;
  }
  const Options& options() const { return options_; }

 protected:
  enum Attention : uint32_t {
    kFirstStep = 1,  // the phase is to become RUNNING
    kSignal = 2,
    kFailure = 4,  // a background save failed
    kPage = 8,     // a new control page is to be adopted
    kUnusable = 16,
    kEveryStep = 32,  // no fast path: the ranks agree at every boundary
  };

  Session(Options options, Parts parts);

  // What the modes do. All on the loop's thread.
  virtual Status DoTrack(const format::RankLayout& layout) = 0;
  virtual Status DoBoundary(int64_t user_step, StepResult* out) = 0;
  virtual Result<std::shared_ptr<Save>> DoBeginSave(const SaveRequest& request) = 0;
  virtual Status DoFence() = 0;
  virtual Status DoFinish() = 0;
  virtual Result<std::unique_ptr<Reader>> DoOpenReader(const std::string& selector) = 0;
  virtual Result<storage::Store*> StoreForReading() = 0;
  virtual Status DoClose(const Deadline& deadline) = 0;
  virtual void DoAtExit(const std::vector<std::shared_ptr<Save>>& staged) = 0;
  virtual std::string CommScope() = 0;
  virtual std::unique_ptr<comm::KeyValue> MakeKeyValue(const std::string& scope) = 0;
  struct Identity {
    std::string mode;
    uint64_t epoch = 0;
    JobId job_id;
    std::string capabilities_json;
  };
  virtual Identity DescribeMode() = 0;

  // For the modes -------------------------------------------------------------------------------
  // Those that hold tracked tensors, but for the host. Threads: any.
  std::vector<device::Device*> Devices() const;
  // Refreshes values by the program's callback.
  Status PrepareStage();
  // Fills and seals `region` with the tracked state. Pre: PrepareStage was OK. Loop's thread.
  Status FillRegion(engine::StagingRegion* region, const engine::GenerationInfo& info,
                    std::function<void(uint64_t)> progress);
  // The same behind the loop, until Fence. `save` may be cancelled meanwhile; `sealed` is called
  // once with what became of it, on any thread, unless this returns an error.
  Status FillBehind(engine::StagingRegion* region, const engine::GenerationInfo& info,
                    std::function<void(uint64_t)> progress, std::shared_ptr<Save> save,
                    BackgroundCopies::Changed changed, BackgroundCopies::Done sealed);
  // Loop's thread: until what FillBehind began is sealed, or has failed.
  Status FinishCopies();
  bool SaveIsDue() const { return next_save_ != 0 && boundary_ == next_save_; }
  // After SaveIsDue, whatever became of the save.
  void ScheduleNextSave() { next_save_ = boundary_ + options_.save_every; }
  // Remembers a save for describe() and for failures that nobody has reported yet.
  void Remember(std::shared_ptr<Save> save);
  // The first failure that nobody has reported yet; OK if there is none.
  Status TakeBackgroundFailure();
  Result<std::unique_ptr<Reader>> OpenFromStore(storage::Store* store, const std::string& selector,
                                                LoadedCallback loaded = {});
  void SetPage(wire::ControlPage* page) { page_.store(page, std::memory_order_relaxed); }
  wire::ControlPage* page() const { return page_.load(std::memory_order_relaxed); }
  void Raise(Attention what) { attention_.fetch_or(what, std::memory_order_release); }
  // True if it was raised; lowers it.
  bool TakeAttention(Attention what) {
    return (attention_.fetch_and(~static_cast<uint32_t>(what)) & what) != 0;
  }
  std::vector<std::shared_ptr<Save>> UnendedSaves() const { return Recent(false); }
  std::vector<std::shared_ptr<Save>> RecentSaves() const { return Recent(true); }
  // "rank 3 of job 'gpt'".
  std::string Who() const;
  // Every later call fails with the first `why`; training goes on. Threads: any.
  Status Break(std::string why);
  bool broken() const { return broken_.load(); }
  // Whether this is the thread that opened the session: while it waits, nothing trains.
  bool OnLoop() const { return std::this_thread::get_id() == loop_; }

  Options options_;
  Parts parts_;
  std::shared_ptr<State> state_;
  BeforeStage before_stage_;
  format::RankLayout layout_;  // as tracked
  std::unique_ptr<Communicators> comms_;
  std::unique_ptr<BackgroundCopies> copies_ = std::make_unique<BackgroundCopies>();
  std::atomic<uint32_t> attention_{kFirstStep};
  uint64_t boundary_ = 0;
  uint64_t next_save_ = 0;  // 0: never; boundaries count from 1
  bool finished_ = false;
  bool stopped_ = false;

 private:
  class CallGuard;
  Status BeginRegion(engine::StagingRegion* region, const engine::GenerationInfo& info);
  Status Usable(std::string_view call);
  Status InAnotherCall(std::string_view call) const;
  Status Forked() const;
  Status SlowStep(int64_t user_step, StepResult* out);
  std::vector<std::shared_ptr<Save>> Recent(bool ended_too) const;

  std::atomic<wire::ControlPage*> page_{nullptr};
  const uint32_t fork_count_;
  const std::thread::id loop_ = std::this_thread::get_id();
  std::atomic<bool> in_call_{false};
  std::atomic<bool> closed_{false};
  uint64_t copying_bytes_ = 0;         // of what FillBehind began last
  std::atomic<bool> breaking_{false};  // somebody writes broken_why_
  std::string broken_why_;
  std::atomic<bool> broken_{false};

  mutable Mutex devices_mutex_;
  std::vector<device::Device*> devices_ CKPT_GUARDED_BY(devices_mutex_);
  mutable Mutex saves_mutex_;
  std::vector<std::shared_ptr<Save>> saves_ CKPT_GUARDED_BY(saves_mutex_);
};

// How long a communicator may take to come up, and to go down where nobody says better.
inline constexpr Nanos kCommUpMax = std::chrono::minutes(5);
inline constexpr Nanos kCommDownMax = std::chrono::seconds(30);
// Copying: a floor, plus what a slow memory system needs.
Deadline CopyDeadline(uint64_t bytes);
// Writing to a store: a floor, plus what a slow disk needs.
Deadline StoreDeadline(std::string_view name, uint64_t bytes);

}  // namespace ckpt::session
