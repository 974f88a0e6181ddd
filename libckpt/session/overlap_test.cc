// Saves whose copy is made behind the loop: what they hold, what the fence waits for, how they
// fail.
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "libckpt/base/fault.h"
#include "libckpt/device/host/host_device.h"
#include "libckpt/session/session.h"
#include "libckpt/storage/memory/memory_store.h"

namespace ckpt::session {
namespace {

Deadline Soon() { return Deadline("the test", std::chrono::seconds(60)); }

#define ASSERT_STATUS_OK(expr)                                     \
  do {                                                             \
    const Status status_of_test = (expr);                          \
    ASSERT_TRUE(status_of_test.ok()) << status_of_test.ToString(); \
  } while (0)

// Holds whoever passes a fault point until the test lets go.
class HeldAt {
 public:
  explicit HeldAt(std::string_view point)
      : hook_(point, [this] {
          MutexLock lock(mutex_);
          arrived_ = true;
          changed_.NotifyAll();
          while (!released_) changed_.Wait(mutex_);
        }) {}
  void AwaitArrival() {
    MutexLock lock(mutex_);
    while (!arrived_) changed_.Wait(mutex_);
  }
  void Release() {
    MutexLock lock(mutex_);
    released_ = true;
    changed_.NotifyAll();
  }
  bool released() {
    MutexLock lock(mutex_);
    return released_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool arrived_ = false, released_ = false;
  FaultHook hook_;
};

class OverlapTest : public ::testing::Test {
 protected:
  static constexpr size_t kTensors = 4, kElements = 700'000;  // several blocks each

  void SetUp() override {
    Options options;
    options.job = "test";
    options.store = "memory";
    Parts parts;
    parts.open_store = [this](const std::string&) {
      return Result<std::unique_ptr<storage::Store>>(storage::NewMemoryStore(job_));
    };
    Result<std::shared_ptr<Session>> session = Session::Open(options, std::move(parts));
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = *session;
    host_ = device::CreateHostDevice();
    state_ = std::make_shared<State>();
    for (size_t t = 0; t < kTensors; ++t) {
      tensors_.emplace_back(kElements, 0);
      engine::LiveTensor tensor;
      tensor.meta.name = "w" + std::to_string(t);
      tensor.meta.dtype = format::DType::kI64;
      tensor.meta.placement = format::Placement::kReplicated;
      tensor.meta.global_shape = {kElements};
      tensor.meta.local = {{0}, {kElements}};
      tensor.data = tensors_.back().data();
      tensor.device = host_.get();
      ASSERT_TRUE(state_->AddTensor(tensor).ok());
    }
    ASSERT_STATUS_OK(session_->Track(state_, [this](State*) { return before_stage_(); }));
  }

  // In place, as an optimizer does.
  void Update() {
    for (std::vector<int64_t>& tensor : tensors_)
      for (int64_t& element : tensor) ++element;
  }
  bool AllAre(int64_t value) const {
    for (const std::vector<int64_t>& tensor : tensors_)
      for (const int64_t element : tensor)
        if (element != value) return false;
    return true;
  }
  std::shared_ptr<Save> Begin(int64_t step) {
    Result<std::shared_ptr<Save>> save =
        session_->BeginSave({.step = step, .overlap = true, .slot_timeout = Soon().Left()});
    EXPECT_TRUE(save.ok()) << save.status().ToString();
    return save.ok() ? *save : nullptr;
  }
  void Load(const std::string& selector) {
    Result<std::unique_ptr<Reader>> reader = session_->OpenReader(selector);
    ASSERT_STATUS_OK(reader.status());
    ASSERT_STATUS_OK((*reader)->Load(state_.get()));
  }

  std::shared_ptr<storage::MemoryJob> job_ = storage::NewMemoryJob();
  std::vector<std::vector<int64_t>> tensors_;
  std::unique_ptr<device::Device> host_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Session> session_;
  std::function<int32_t()> before_stage_ = [] { return 0; };
};

TEST_F(OverlapTest, UpdatesInPlaceAfterTheFenceNeverMixSteps) {
  constexpr int64_t kSteps = 12;
  StepResult request;
  for (int64_t step = 0; step < kSteps; ++step) {
    ASSERT_STATUS_OK(session_->AtBoundary(step, &request));
    ASSERT_NE(Begin(step), nullptr);
    // … forward and backward read the state here …
    ASSERT_STATUS_OK(session_->Fence());
    Update();
  }
  ASSERT_STATUS_OK(session_->WaitSave(Begin(kSteps).get(), Level::kShared, Soon()));
  for (int64_t step = 0; step <= kSteps; ++step) {
    Load("step:" + std::to_string(step));
    EXPECT_TRUE(AllAre(step)) << step;
  }
  ASSERT_STATUS_OK(session_->Close(Soon()));
}

TEST_F(OverlapTest, TheFenceReturnsWhenTheLastBlockIsCopied) {
  HeldAt first_block("engine.capture.copy");
  const std::shared_ptr<Save> save = Begin(1);
  first_block.AwaitArrival();
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    first_block.Release();
  });
  ASSERT_STATUS_OK(session_->Fence());
  EXPECT_TRUE(first_block.released()) << "a block was not copied yet";
  EXPECT_GE(save->progress().level, Level::kStaged);
  later.join();
  Update();
  ASSERT_STATUS_OK(session_->WaitSave(save.get(), Level::kShared, Soon()));
  Load("step:1");
  EXPECT_TRUE(AllAre(0));
  ASSERT_STATUS_OK(session_->Close(Soon()));
}

TEST_F(OverlapTest, ACopyThatFailsIsTheErrorOfTheFenceOnceAndTheNextSaveWorks) {
  std::shared_ptr<Save> save;
  {
    ArmedFault fault("engine.capture.copy", ResourceExhausted("no memory"), 5);
    save = Begin(1);
    const Status fenced = session_->Fence();
    EXPECT_TRUE(fault.fired());
    EXPECT_EQ(fenced.code(), Code::kResourceExhausted);
    EXPECT_NE(fenced.message().find("rank 0 of job 'test'"), std::string::npos) << fenced.message();
    EXPECT_NE(fenced.message().find("staging save s1"), std::string::npos) << fenced.message();
  }
  ASSERT_STATUS_OK(session_->Fence());
  StepResult request;
  ASSERT_STATUS_OK(session_->AtBoundary(1, &request));
  EXPECT_EQ(save->error().code(), Code::kResourceExhausted);
  Update();
  const std::shared_ptr<Save> next = Begin(2);
  ASSERT_STATUS_OK(session_->WaitSave(next.get(), Level::kShared, Soon()));
  Load("latest");
  EXPECT_TRUE(AllAre(1));
  ASSERT_STATUS_OK(session_->Close(Soon()));
}

TEST_F(OverlapTest, ACancelledCopyEndsAndNobodyIsToldOfAFailure) {
  std::shared_ptr<Save> save;
  {
    HeldAt first_block("engine.capture.copy");
    save = Begin(1);
    first_block.AwaitArrival();
    ASSERT_STATUS_OK(session_->CancelSave(save.get()));
    first_block.Release();
    ASSERT_STATUS_OK(session_->Fence());
  }
  EXPECT_EQ(session_->WaitSave(save.get(), Level::kStaged, Soon()).code(), Code::kCancelled);
  StepResult request;
  ASSERT_STATUS_OK(session_->AtBoundary(1, &request));
  for (int64_t step = 2; step < 5; ++step)  // its slot is free again
    ASSERT_STATUS_OK(session_->WaitSave(Begin(step).get(), Level::kShared, Soon()));
  EXPECT_EQ(session_->OpenReader("step:1").status().code(), Code::kNotFound);
  ASSERT_STATUS_OK(session_->Close(Soon()));
}

TEST_F(OverlapTest, WhetherItWasChangedIsAskedAtTheFenceAndUntilThenItIsNotStaged) {
  const std::thread::id loop = std::this_thread::get_id();
  int asked = 0;
  bool changed = true;
  const auto begin = [&](int64_t step) {
    return session_->BeginSave({.step = step, .overlap = true, .changed = [&] {
                                  EXPECT_EQ(std::this_thread::get_id(), loop);
                                  ++asked;
                                  return changed;
                                }});
  };
  const std::shared_ptr<Save> save = begin(1).value();
  std::thread other([&] {  // the copier is through meanwhile
    const Deadline a_while("the copy", std::chrono::milliseconds(500));
    EXPECT_EQ(session_->WaitSave(save.get(), Level::kStaged, a_while).code(),
              Code::kDeadlineExceeded);
  });
  other.join();
  EXPECT_EQ(asked, 0);
  const Status fenced = session_->Fence();
  EXPECT_EQ(fenced.code(), Code::kFailedPrecondition);
  EXPECT_NE(fenced.message().find("the state was changed before the fence"), std::string::npos)
      << fenced.message();
  EXPECT_EQ(save->error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(session_->OpenReader("latest").status().code(), Code::kNotFound);
  changed = false;
  const std::shared_ptr<Save> good = begin(2).value();
  ASSERT_STATUS_OK(session_->WaitSave(good.get(), Level::kShared, Soon()));
  const std::shared_ptr<Save> last = begin(3).value();
  ASSERT_STATUS_OK(session_->Close(Soon()));
  EXPECT_EQ(last->progress().level, Level::kShared);
  EXPECT_EQ(asked, 3);
}

TEST_F(OverlapTest, AQuestionThatThrowsGivesTheSaveUp) {
  const std::shared_ptr<Save> save =
      session_
          ->BeginSave({.step = 1,
                       .overlap = true,
                       .changed = []() -> bool { throw std::runtime_error("who knows"); }})
          .value();
  EXPECT_NE(session_->Fence().message().find("who knows"), std::string::npos);
  EXPECT_FALSE(save->error().ok());
  ASSERT_STATUS_OK(session_->Close(Soon()));
}

TEST_F(OverlapTest, ACallbackThatThrowsFailsThatSaveByName) {
  before_stage_ = []() -> int32_t { throw std::runtime_error("no optimizer"); };
  for (const bool overlap : {false, true}) {
    const Status status = session_->BeginSave({.step = 1, .overlap = overlap}).status();
    EXPECT_EQ(status.code(), Code::kInternal);
    EXPECT_NE(status.message().find("before_stage callback threw: no optimizer"), std::string::npos)
        << status.message();
  }
  before_stage_ = [] { return 0; };
  ASSERT_STATUS_OK(session_->WaitSave(Begin(2).get(), Level::kShared, Soon()));
  ASSERT_STATUS_OK(session_->Close(Soon()));
}

TEST_F(OverlapTest, CloseCompletesACopyThatNobodyFenced) {
  const std::shared_ptr<Save> save = Begin(7);
  ASSERT_STATUS_OK(session_->Close(Soon()));
  EXPECT_EQ(save->progress().level, Level::kShared);
}

}  // namespace
}  // namespace ckpt::session
