// A session under ckpt-run: the rank's side of the control page and of the frames
// (docs/protocol.md; coordinator/gang/member.h is the other side).
//
// Two threads at most: the link's watch thread, and one that copies overlapped saves; for a while
// after track a third one, which touches fresh staging memory.
//
// I1  Training outlives ckpt-run: without it step() returns NONE and saves fail kUnavailable.
// I2  SEALED is a binding vote: after it the rank goes back only if told, and leaves if it cannot
// learn the outcome in time.
// I3  A slot is filled only between its grant (or order) and SEALED or STAGE_FAILED.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/os/memfd.h"
#include "libckpt/os/signal_bell.h"
#include "libckpt/os/thread.h"
#include "libckpt/session/link.h"
#include "libckpt/session/pinned_memory.h"
#include "libckpt/session/session.h"
#include "libckpt/session/warmer.h"

namespace ckpt::session {

Result<std::shared_ptr<Session>> OpenGangSession(Options options, Parts parts);

class GangSession : public Session {
 public:
  GangSession(Options options, Parts parts);
  ~GangSession() override;
  Status Start();

  Status CancelSave(Save* save) override;

 protected:
  Status DoTrack(const format::RankLayout& layout) override;
  Status DoBoundary(int64_t user_step, StepResult* out) override;
  Result<std::shared_ptr<Save>> DoBeginSave(const SaveRequest& request) override;
  Status DoFence() override;
  Status DoFinish() override;
  Result<std::unique_ptr<Reader>> DoOpenReader(const std::string& selector) override;
  Result<storage::Store*> StoreForReading() override;
  Status DoClose(const Deadline& deadline) override;
  void DoAtExit(const std::vector<std::shared_ptr<Save>>&) override {}  // ckpt-run writes them
  std::string CommScope() override;
  std::unique_ptr<comm::KeyValue> MakeKeyValue(const std::string& scope) override;
  Identity DescribeMode() override;

 private:
  // A staging slot that ckpt-run formatted, mapped for good: a newer one replaces it, and whoever
  // still fills the old one keeps it.
  struct Slot {
    os::Mapping memory;
    std::unique_ptr<engine::StagingRegion> region;
    PinnedMemory pinned;  // goes before the memory
    uint64_t inode = 0;
  };
  // Where a copy goes.
  struct Grant {
    uint32_t slot = 0, generation = 0, attempt = 0;
    bool full = false;
  };
  // What the rank was told while it stands at a barrier.
  enum class Told { kGoOn = 0, kReleased = 1, kBack = 2, kForward = 3 };

  Status UsePage(os::Memfd page);
  void AdoptPage();

  // Watch thread.
  void OnFrame(Link::Incoming incoming);
  Status OnBack(const wire::Welcome& welcome, os::Memfd page);
  void OnLost();
  void OnUp();
  void OnSample();
  void OnSignal(int signal);
  Status MapSlot(const wire::Staging& staging, std::vector<os::UniqueFd> fds);
  void OnSaveState(const wire::SaveState& state);

  // Loop thread.
  Result<std::shared_ptr<Slot>> SlotOf(const Grant& grant);
  Status AwaitSlots();
  // A slot and what is to be staged into it.
  struct Filling {
    std::shared_ptr<Slot> slot;
    engine::GenerationInfo info;
    std::function<void(uint64_t)> progress;
  };
  Result<Filling> Fill(const Grant& grant, int64_t step);
  Status Filled(const Status& status, const AttemptId& id);
  Status StageNow(const Grant& grant, int64_t step);
  Status StageBehind(const Grant& grant, const std::shared_ptr<Save>& save,
                     const BackgroundCopies::Changed& changed);
  Status SaveAtCut(int64_t user_step, StepResult* out);
  void FenceBeforeCut();
  Status StopAtCut(int64_t user_step, StepResult* out);
  Status AtBarriers(const wire::Order& order, StepResult* out);
  // `since_ns`: when it came to the barriers.
  Told AwaitBarrier(const wire::Order& order, uint32_t barrier, int64_t since_ns);
  Told Heard(const wire::Order& order, uint32_t barrier) CKPT_REQUIRES(mutex_);
  Status Leave(const wire::Order& order, Told why, StepResult* out);
  Status GoBack(const wire::Order& order);
  Status Sealed(const Grant& grant, int64_t step);
  void StageFailed(const Grant& grant, const Status& why);
  void EndOverlapped(const std::shared_ptr<Save>& save, const Grant& grant, const Status& status);
  void SetPhaseOf(wire::RankPhase phase) {
    page()->phase.store(static_cast<uint32_t>(phase), std::memory_order_relaxed);
  }
  Result<std::unique_ptr<Reader>> OpenResume();
  Result<std::unique_ptr<Reader>> OpenFromRam();
  void Restored(const Status& status, Step step);

  std::unique_ptr<os::SignalBell> bell_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<Warmer> warmer_ = std::make_unique<Warmer>();  // null once closed
  wire::Welcome welcome_;
  std::vector<os::Mapping> pages_;  // the last one is in use; older ones stay mapped
  std::unique_ptr<storage::Store> store_;
  uint64_t save_boundary_ = 0;  // of the save that was asked for last, and its number there
  uint32_t saves_here_ = 0;

  // Watch thread only.
  uint32_t sampled_boundary_ = 0;
  int64_t sampled_at_ns_ = 0;
  int unsent_signal_ = 0;

  std::atomic<int64_t> lost_ns_{0};  // since when ckpt-run is out of reach; 0: it is not

  Mutex mutex_;
  CondVar told_;
  std::array<std::shared_ptr<Slot>, kStagingSlotsMax> slots_ CKPT_GUARDED_BY(mutex_);
  std::optional<wire::BarrierReleased> released_ CKPT_GUARDED_BY(mutex_);
  std::optional<wire::RolledBack> back_ CKPT_GUARDED_BY(mutex_);
  std::map<uint32_t, std::shared_ptr<Save>> by_attempt_ CKPT_GUARDED_BY(mutex_);
  uint64_t page_inode_ CKPT_GUARDED_BY(mutex_) = 0;  // of the page in use
  std::optional<os::Memfd> next_page_ CKPT_GUARDED_BY(mutex_);
  Status layout_refused_ CKPT_GUARDED_BY(mutex_);  // why there will be no slots
  os::Memfd layout_fd_ CKPT_GUARDED_BY(mutex_);
  wire::Layout layout_frame_ CKPT_GUARDED_BY(mutex_);
};

}  // namespace ckpt::session
