// Every operation on the disk × every error it may meet × once or from then on: a typed error, what
// was acknowledged stands, and the next save works.
#include <cerrno>
#include <cstdlib>

#include "libckpt/base/fault.h"
#include "libckpt/os/uring/uring_file.h"
#include "tests/storage/small_job.h"

namespace ckpt::engine::testing {
namespace {

constexpr const char* kOperations[] = {
    "os.fs.open",       "os.fs.mkdir",  "os.fs.link",  "os.fs.rename",    "os.fs.unlink",
    "os.fs.rmtree",     "os.fs.list",   "os.fs.stat",  "os.file.pwrite",  "os.file.pread",
    "os.file.allocate", "os.file.sync", "os.dir.sync", "os.file.truncate"};
// Those that go another way through the queue of the kernel.
constexpr const char* kQueuedOperations[] = {"os.file.pwrite", "os.file.await", "os.file.sync"};
constexpr int kErrors[] = {ENOSPC, EIO, EDQUOT, EROFS, EMFILE};

struct Case {
  const char* operation;
  int error;
  bool sticky;
  os::FileSystem* fs;
};

// A save that refers and compresses, then a removal, both on top of an acknowledged checkpoint.
// Whether the fault was met.
bool SaveUnder(const Case& c, uint64_t nth) {
  Scratch scratch;
  SmallJob job(scratch.path() + "/job", *c.fs);
  EXPECT_CKPT_OK(job.Save(1));
  const std::string what = std::string(c.operation) + " number " + std::to_string(nth) + " fails " +
                           (c.sticky ? "for good" : "once") + " with " + std::strerror(c.error);
  int64_t acknowledged = 1;
  bool fired = false;
  {
    ArmedFault fault(c.operation, ErrnoStatus(c.error, "planted"), nth, c.sticky);
    const Status saved = job.Save(2);
    if (saved.ok()) acknowledged = 2;
    const Status again = job.Save(3);  // refers to step 2, if that is there
    if (again.ok()) acknowledged = 3;
    job.Prune(1).IgnoreError();
    fired = fault.fired();
    EXPECT_NE(saved.code(), Code::kInternal) << what << ": " << saved.ToString();
  }
  EXPECT_CKPT_OK(job.CheckNewest(acknowledged).Annotate(what));
  // As after any failed run, a new launch goes on.
  EXPECT_CKPT_OK(job.Claim().Annotate(what));
  EXPECT_CKPT_OK(job.Save(4).Annotate(what));
  EXPECT_CKPT_OK(job.Prune(1).Annotate(what));
  EXPECT_CKPT_OK(job.CheckNewest(4).Annotate(what));
  return fired;
}

#if defined(CKPT_FAULTS)
void FailEach(const char* operation, os::FileSystem& fs) {
  const bool whole = std::getenv("CKPT_SOAK") != nullptr;
  uint64_t met = 0;
  for (const bool sticky : {false, true}) {
    for (const int error : kErrors) {
      // The short slice takes some of the moments, other ones for each error.
      const uint64_t first = whole ? 1 : 1 + static_cast<uint64_t>(error) % 3;
      for (uint64_t nth = first; SaveUnder({operation, error, sticky, &fs}, nth);
           nth += whole ? 1 : 23)
        ++met;
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GE(met, 3u) << "the operation is hardly used";
}
#endif

class Errors : public ::testing::TestWithParam<const char*> {};

TEST_P(Errors, LeaveWhatWasAcknowledgedAndTheNextSaveWorks) {
#if !defined(CKPT_FAULTS)
  GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)";
#else
  FailEach(GetParam(), os::PosixFileSystem());
#endif
}

class QueuedErrors : public ::testing::TestWithParam<const char*> {};

TEST_P(QueuedErrors, LeaveWhatWasAcknowledgedAndTheNextSaveWorks) {
#if !defined(CKPT_FAULTS)
  GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)";
#else
  if (!Queues(os::UringFileSystem())) GTEST_SKIP() << "io_uring or direct I/O is refused here";
  FailEach(GetParam(), os::UringFileSystem());
#endif
}

std::string NameOf(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Of, Errors, ::testing::ValuesIn(kOperations), NameOf);
INSTANTIATE_TEST_SUITE_P(Of, QueuedErrors, ::testing::ValuesIn(kQueuedOperations), NameOf);

}  // namespace
}  // namespace ckpt::engine::testing
