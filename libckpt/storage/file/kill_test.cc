// Real processes, killed or frozen at any moment, on one directory: whatever the killed one was
// told is there, the newest visible checkpoint loads bit for bit, and a frozen one that wakes up
// after its successor started changes nothing.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "libckpt/storage/file/file_world.h"
#include "libckpt/testing/seed.h"

namespace ckpt::testing {
namespace {

// What a child tells its parent the moment it was told so itself; smaller than PIPE_BUF, so whole.
struct Told {
  uint64_t epoch;
  int64_t step;
  int32_t code;
};

class Child {
 public:
  // Forks a process that runs `body` with a function that tells the parent.
  template <typename Body>
  explicit Child(Body body) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      body([&](const AttemptId& id, const Status& status) {
        const Told told{id.epoch.value(), id.step.value(), static_cast<int32_t>(status.code())};
        if (::write(ends[1], &told, sizeof told) != sizeof told) ::_exit(3);
      });
      ::_exit(0);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  ~Child() {
    if (pid_ > 0) Kill();
    ::close(from_);
  }
  void Signal(int signal) { ::kill(pid_, signal); }
  // True if it was still alive.
  bool Kill() {
    Signal(SIGKILL);
    return Reap() != 0;
  }
  // The raw wait status.
  int Reap() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return status;
  }
  std::vector<Told> ReadAll() {
    std::vector<Told> all;
    Told told;
    while (::read(from_, &told, sizeof told) == sizeof told) all.push_back(told);
    return all;
  }
  // One message; false at the end.
  bool ReadOne(Told* told) { return ::read(from_, told, sizeof *told) == sizeof *told; }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
};

AttemptId IdOf(const Told& told) { return Id(told.epoch, told.step); }

// A training job: claims, checks that the newest loads, saves for ever or until refused.
template <typename Tell>
void Train(FileWorld& world, Tell tell, int saves = 1 << 30) {
  auto store = world.Actor();
  const auto claim = Claim(*store);
  if (!claim.ok()) return;
  for (int64_t step = 1; step <= saves; ++step) {
    const AttemptId id{claim->epoch, Step(step), Attempt(1)};
    const Status status = Save(*store, id, Soon());
    tell(id, status);
    if (!status.ok()) return;
  }
}

class Kill : public ::testing::Test {
 protected:
  void Note(const std::vector<Told>& all) {
    for (const Told& told : all) {
      if (told.code == 0) last_ = std::max(last_, IdOf(told));
      acknowledged_ += told.code == 0;
    }
  }
  void CheckNewest(const std::string& when) {
    auto reader = world_.Actor();
    const std::vector<AttemptId> visible = Visible(*reader);
    if (last_ == AttemptId{}) return;
    ASSERT_FALSE(visible.empty()) << when;
    EXPECT_GE(visible.front(), last_) << when << ": older than the last acknowledged";
    EXPECT_OK(CheckBytes(*reader, visible.front()).Annotate(when));
  }
  FastFileWorld world_;
  AttemptId last_;
  int acknowledged_ = 0;
};

TEST_F(Kill, AtRandomMomentsTheNewestAlwaysLoads) {
  std::mt19937_64 rng(TestSeed("the moments of the kills", static_cast<uint64_t>(::getpid())));
  constexpr int kKills = 220;
  // A start and a few saves of this machine, as loaded as it is: kills fall before, into and
  // between them.
  const auto began = std::chrono::steady_clock::now();
  Child measured([&](auto tell) { Train(world_, tell); });
  Told told;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(measured.ReadOne(&told));
  auto range = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - began);
  EXPECT_TRUE(measured.Kill());
  int alive = 0, dry = 0;
  for (int i = 0; i < kKills; ++i) {
    Child child([&](auto tell) { Train(world_, tell); });
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % range.count()));
    alive += child.Kill();
    const std::vector<Told> all = child.ReadAll();
    Note(all);
    // Starts become slower: with what lies in the store, with what else this machine does.
    if (all.empty() && ++dry % 4 == 0) range = range * 5 / 4;
    if (!all.empty()) dry = 0;
    CheckNewest("kill " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(alive, kKills);
  EXPECT_GT(acknowledged_, kKills / 10);
  std::cout << acknowledged_ << " saves acknowledged over " << kKills << " kills\n";
}

TEST_F(Kill, AtEveryStepTheNewestAlwaysLoads) {
  CKPT_NEEDS_FAULTS();
  int kills = 0;
  for (uint64_t nth = 1;; ++nth) {
    Child child([&](auto tell) {
      FaultHook hook(
          "*", [] { ::kill(::getpid(), SIGKILL); }, nth);
      Train(world_, tell, 2);
    });
    const int status = child.Reap();
    Note(child.ReadAll());
    CheckNewest("killed at step " + std::to_string(nth));
    if (HasFatalFailure() || !WIFSIGNALED(status)) break;
    ++kills;
  }
  EXPECT_GE(kills, 60);
  std::cout << kills << " kills\n";
}

// Both believe that they are the job. The older one is stopped by SIGSTOP at a random moment and
// goes on after the newer one has claimed.
TEST_F(Kill, TheOlderOfTwoNeverBecomesVisibleAgain) {
  std::mt19937_64 rng(TestSeed("the moments of the stops", static_cast<uint64_t>(::getpid())));
  for (int round = 0; round < 25; ++round) {
    Child old([&](auto tell) { Train(world_, tell); });
    Told first;
    ASSERT_TRUE(old.ReadOne(&first));
    ASSERT_EQ(first.code, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 4000));
    old.Signal(SIGSTOP);

    auto successor = world_.Actor();
    const auto claim = Claim(*successor);
    ASSERT_TRUE(claim.ok()) << claim.status().ToString();
    const std::vector<AttemptId> adopted = Visible(*successor);
    old.Signal(SIGCONT);
    const AttemptId id{claim->epoch, Step(1), Attempt(1)};
    ASSERT_OK(Save(*successor, id));
    // It ends by itself: its next commit is refused.
    std::vector<Told> told = old.ReadAll();
    old.Reap();
    ASSERT_FALSE(told.empty());
    EXPECT_EQ(told.back().code, static_cast<int32_t>(Code::kFailedPrecondition));
    told.insert(told.begin(), first);

    std::vector<AttemptId> expected = adopted;
    expected.insert(expected.begin(), id);
    EXPECT_EQ(Visible(*successor), expected) << "round " << round;
    for (const Told& each : told) {
      if (each.code == 0) {
        EXPECT_TRUE(IsVisible(*successor, IdOf(each))) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace ckpt::testing
