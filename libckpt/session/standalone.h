// A session without ckpt-run: the same engine on background threads of the process, straight to
// the store.
//
// Two threads at most: one copies (only for overlapped saves), one writes. The loop's thread
// decides; background threads only record what became of a save.
//
// One rank: its writer also commits. Several: rank 0 begins attempts and commits; the ranks agree
// by the caller's collective at every boundary (agreement.h), so that all see a save complete, fail
// or be refused at the same boundary, and a signal at any one of them stops all at one step.
//
// I1  All ranks have the same list of open saves: one is opened and closed on gathered data only.
// I2  A slot is given back when nothing reads or fills it any more.
// I3  Nothing is SHARED before Store::Commit returned OK.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/engine/drain_pace.h"
#include "libckpt/engine/retention.h"
#include "libckpt/os/signal_bell.h"
#include "libckpt/os/thread.h"
#include "libckpt/session/agreement.h"
#include "libckpt/session/session.h"
#include "libckpt/session/slots.h"

namespace ckpt::session {

Result<std::shared_ptr<Session>> OpenStandalone(Options options, Parts parts);

// A save that is not finished, as loop and background threads share it.
struct OpenSave {
  enum class Stage : uint8_t {
    kStaging = 0,
    kWriting = 1,  // sealed
    kWritten = 2,
    kFailed = 3,  // of this rank
    kCommitting = 4,
    kCommitted = 5,
    kNotCommitted = 6,
  };

  std::shared_ptr<Save> save;
  std::shared_ptr<StagingSlots> slots;
  StagingSlots::Slot* slot = nullptr;
  std::shared_ptr<const std::vector<format::RankLayout>> layouts;  // of all ranks
  bool collected = false;  // loop's thread: the reports were exchanged

  Mutex mutex;
  CondVar changed;
  Stage stage CKPT_GUARDED_BY(mutex) = Stage::kStaging;
  engine::ShardReport report CKPT_GUARDED_BY(mutex);
  Status error CKPT_GUARDED_BY(mutex);

  void Set(Stage next, Status why = OkStatus());
  Stage Get();
};

// What the background threads use.
struct StandaloneStore {
  std::unique_ptr<storage::Store> store;
  JobId job;
  uint64_t epoch = 0;  // 0: not claimed yet
  engine::WriteSettings write;
  std::unique_ptr<engine::Retention> retention;
  std::shared_ptr<engine::DrainPace> pace = std::make_shared<engine::DrainPace>();

  // Writes this rank's shard, at a pace that follows the steps counted in `page`.
  Status WriteShard(OpenSave* open, const wire::ControlPage* page);
  Status WritePaced(OpenSave* open, const wire::ControlPage* page);
  // MANIFEST and COMMIT from all ranks' reports.
  Status Commit(const OpenSave& open, const std::vector<engine::ShardReport>& reports);
  // Takes away what was begun, unless it may be committed.
  void Abort(const AttemptId& id, const Status& why);
};

class Standalone : public Session {
 public:
  Standalone(Options options, Parts parts);
  ~Standalone() override;
  Status Start();

  Status WaitSave(Save* save, Level level, const Deadline& deadline) override;
  Status CancelSave(Save* save) override;

 protected:
  Status DoTrack(const format::RankLayout& layout) override;
  Status DoBoundary(int64_t user_step, StepResult* out) override;
  Result<std::shared_ptr<Save>> DoBeginSave(const SaveRequest& request) override;
  Status DoFence() override;
  Status DoFinish() override { return OkStatus(); }
  Result<std::unique_ptr<Reader>> DoOpenReader(const std::string& selector) override;
  Result<storage::Store*> StoreForReading() override;
  Status DoClose(const Deadline& deadline) override;
  void DoAtExit(const std::vector<std::shared_ptr<Save>>& staged) override;
  std::string CommScope() override;
  std::unique_ptr<comm::KeyValue> MakeKeyValue(const std::string& scope) override;
  Identity DescribeMode() override;

 private:
  struct Gathered {
    bool signal = false;   // of any rank
    bool expired = false;  // of any rank
  };

  bool several() const { return options_.world > 1; }
  bool leads() const { return options_.rank.value() == 0; }
  Status NoAgreement(const Status& why);
  Status EnsureEpoch();
  Status AgreeOnStart();
  Status Stop(int64_t user_step, StepResult* out);
  Result<std::shared_ptr<Save>> SaveForStop(int64_t user_step, const Deadline& deadline);

  Result<std::shared_ptr<OpenSave>> Prepare(const SaveRequest& request, const AttemptId& id);
  Status AgreeToSave(const AttemptId& id, const Status& mine);
  Status Stage(const std::shared_ptr<OpenSave>& open, const SaveRequest& request);
  void StageFailed(OpenSave* open, const Status& why);
  Status Staged(const std::shared_ptr<OpenSave>& open, Status status);
  void Write(const std::shared_ptr<OpenSave>& open);
  void WriteAndCommit(const std::shared_ptr<OpenSave>& open);
  void End(OpenSave* open, const Status& status);

  Result<Gathered> Exchange(Meeting meeting, bool signal, bool expired);
  Status Collect(OpenSave* open);
  Status LearnFailure(OpenSave* open);
  void DropEnded();

  uint64_t Steps() const { return wire::LoadWord(*own_page_).boundary; }
  Status CloseAlone(const Deadline& deadline);
  Status CloseTogether(const Deadline& deadline);
  void StopThreads();

  std::unique_ptr<wire::ControlPage> own_page_;
  std::unique_ptr<os::SignalBell> bell_;
  std::optional<Agreement> agreement_;
  std::shared_ptr<StandaloneStore> store_;
  std::shared_ptr<StagingSlots> slots_;
  std::shared_ptr<const std::vector<format::RankLayout>> layouts_;
  std::vector<std::shared_ptr<OpenSave>> open_;  // oldest first
  uint32_t last_attempt_ = 0;
  Result<AttemptId> resume_ = NotFound("");  // several ranks: agreed at open
  std::unique_ptr<os::WorkerPool> writer_;
};

}  // namespace ckpt::session
