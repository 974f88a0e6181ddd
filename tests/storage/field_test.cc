// What has cost others their checkpoints, tried on whole sessions over a directory. The numbers are
// those of the cases that docs/guarantees.md lists.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "libckpt/base/fault.h"
#include "libckpt/device/host/host_device.h"
#include "libckpt/session/session.h"
#include "libckpt/testing/sanitizer.h"
#include "tests/storage/small_job.h"

namespace ckpt::session {
namespace {

namespace fs = std::filesystem;
using engine::testing::Scratch;
using engine::testing::Soon;

std::shared_ptr<Session> Open(const std::string& path, std::optional<uint32_t> keep_last = {}) {
  Options options;
  options.job = "field";
  options.store = path;
  if (keep_last) options.keep = storage::KeepRules{.last = *keep_last};
  Parts parts;
  parts.open_store = [](const std::string& at) -> Result<std::unique_ptr<storage::Store>> {
    return std::unique_ptr<storage::Store>(storage::OpenFileStore(at));
  };
  Result<std::shared_ptr<Session>> session = Session::Open(options, parts);
  EXPECT_TRUE(session.ok()) << session.status().ToString();
  return session.ok() ? *session : nullptr;
}

// Tensors of bytes, by name.
struct Model {
  explicit Model(const std::map<std::string, std::string>& contents) : bytes(contents) {
    for (auto& [name, content] : bytes) {
      engine::LiveTensor tensor;
      tensor.meta = engine::testing::Meta(name, format::DType::kU8, format::Placement::kReplicated,
                                          {content.size()});
      tensor.data = content.data();
      tensor.device = host.get();
      EXPECT_CKPT_OK(state->AddTensor(tensor));
    }
  }
  std::map<std::string, std::string> bytes;
  std::unique_ptr<device::Device> host = device::CreateHostDevice();
  std::shared_ptr<State> state = std::make_shared<State>();
};

Status SaveStep(Session& session, int64_t step) {
  CKPT_ASSIGN_OR_RETURN(
      const std::shared_ptr<Save> save,
      session.BeginSave({.step = step, .slot_timeout = std::chrono::seconds(60)}));
  return save->Wait(Level::kShared, Soon());
}

// A model whose every byte is the step's.
Model OfStep(int64_t step) {
  return Model({{"w", std::string(20'000, static_cast<char>('0' + step))}});
}

// The newest loads whole, passes over nothing, and is of that step.
void ExpectNewest(const std::string& path, int64_t step) {
  const auto store = storage::OpenFileStore(path);
  std::vector<std::string> skipped;
  const auto reader = engine::OpenNewest(store.get(), &skipped);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_TRUE(skipped.empty()) << skipped[0];
  EXPECT_EQ((*reader)->id().step, Step(step));
  Model loaded = OfStep(9);
  ASSERT_CKPT_OK((*reader)->Load(Rank(0), loaded.state->tensors(), {}));
  EXPECT_EQ(loaded.bytes, OfStep(step).bytes);
  EXPECT_CKPT_OK((*reader)->Verify({}));
}

#if defined(CKPT_FAULTS)
// keep_last is 1, and the disk is full from the n-th operation of the second save on, for every n.
TEST(Field, L2_L6_C14_TheOnlyCheckpointStaysUntilItsSuccessorIsCommitted) {
  int failed = 0;
  for (uint64_t nth = 1;; ++nth) {
    SCOPED_TRACE("operation " + std::to_string(nth));
    const Scratch scratch;
    const std::string path = scratch.path() + "/job";
    const auto session = Open(path, 1);
    Model model = OfStep(1);
    ASSERT_CKPT_OK(session->Track(model.state, nullptr));
    ASSERT_CKPT_OK(SaveStep(*session, 1));
    bool fired = false;
    Status second;
    {
      const ArmedFault full("*", ErrnoStatus(ENOSPC, "writing"), nth, /*sticky=*/true);
      model.bytes.begin()->second.assign(20'000, '2');
      second = SaveStep(*session, 2);
      session->Close(Soon()).IgnoreError();  // waits for what is being removed
      fired = full.fired();
    }
    failed += second.ok() ? 0 : 1;
    // What may have been applied may be there.
    const bool there = !second.ok() && second.outcome() == Outcome::kMaybeApplied &&
                       fs::exists(path + "/s2.e1.a2/COMMIT");
    ExpectNewest(path, second.ok() || there ? 2 : 1);
    const auto next = Open(path, 1);
    Model third = OfStep(3);
    ASSERT_CKPT_OK(next->Track(third.state, nullptr));
    ASSERT_CKPT_OK(SaveStep(*next, 3));
    ASSERT_CKPT_OK(next->Close(Soon()));
    ExpectNewest(path, 3);
    if (HasFatalFailure() || !fired) break;
  }
  EXPECT_GT(failed, 20) << "operations of a save that failed it";
}
#endif

// Each start says what it passed over and goes on from the older one; the next save is the newest.
TEST(Field, L17_ADamagedNewestCheckpointHoldsNoRestartUp) {
  const Scratch scratch;
  const std::string path = scratch.path() + "/job";
  {
    const auto session = Open(path);
    Model model = OfStep(1);
    ASSERT_CKPT_OK(session->Track(model.state, nullptr));
    ASSERT_CKPT_OK(SaveStep(*session, 1));
    model.bytes.begin()->second.assign(20'000, '2');
    ASSERT_CKPT_OK(SaveStep(*session, 2));
    ASSERT_CKPT_OK(session->Close(Soon()));
  }
  std::fstream(path + "/s2.e1.a2/MANIFEST", std::ios::in | std::ios::out).seekp(100) << "#";
  for (int start = 0; start < 3; ++start) {
    const auto session = Open(path);
    Model model = OfStep(9);
    ASSERT_CKPT_OK(session->Track(model.state, nullptr));
    const auto reader = session->OpenReader("");
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    EXPECT_EQ((*reader)->id().step, Step(1));
    ASSERT_CKPT_OK((*reader)->Load(model.state.get()));
    EXPECT_EQ(model.bytes, OfStep(1).bytes);
    if (start == 2) {
      model.bytes.begin()->second.assign(20'000, '3');
      ASSERT_CKPT_OK(SaveStep(*session, 3));
    }
    ASSERT_CKPT_OK(session->Close(Soon()));
  }
  ExpectNewest(path, 3);
}

// Names are data: none becomes a path, a separator, a number or another name.
TEST(Field, L51_AnyNameComesBackAndNoneIsAPath) {
  const Scratch scratch;
  const std::string path = scratch.path() + "/job";
  std::map<std::string, std::string> contents;
  for (const std::string& name :
       {std::string("a.b"), std::string("a/b"), std::string("a|b"), std::string("0"),
        std::string("é"), std::string(), std::string(4096, 'k'), std::string("../x"),
        std::string("/tmp/ckpt-field-x"), std::string("MANIFEST"), std::string("__metadata__"),
        std::string("a#0:1"), std::string("a%23"), std::string("\n\"\\")})
    contents[name] = "of " + std::to_string(contents.size()) + name.substr(0, 9);
  {
    const auto session = Open(path);
    Model model(contents);
    for (const auto& [name, content] : contents)
      ASSERT_CKPT_OK(model.state->SetValue(
          name, format::Scope::kShared,
          format::Value{format::ValueDictBox{{{format::Value{name}, format::Value{int64_t{1}}},
                                              {format::Value{int64_t{0}}, format::Value{}}}}}
              .ToJson()));
    ASSERT_CKPT_OK(session->Track(model.state, nullptr));
    ASSERT_CKPT_OK(SaveStep(*session, 1));
    ASSERT_CKPT_OK(session->Close(Soon()));
  }
  const auto session = Open(path);
  std::map<std::string, std::string> cleared = contents;
  for (auto& [name, content] : cleared) content.assign(content.size(), '?');
  Model loaded(cleared);
  ASSERT_CKPT_OK(session->Track(loaded.state, nullptr));
  const auto reader = session->OpenReader("");
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  ASSERT_CKPT_OK((*reader)->Load(loaded.state.get()));
  EXPECT_EQ(loaded.bytes, contents);
  ASSERT_EQ(loaded.state->values().values.size(), contents.size());
  for (const format::NamedValue& value : loaded.state->values().values) {
    const auto* dict = std::get_if<format::ValueDictBox>(&value.value.v);
    ASSERT_NE(dict, nullptr);
    ASSERT_EQ(dict->items.size(), 2u);
    EXPECT_EQ(dict->items[0].first, format::Value{value.name});
    EXPECT_EQ(dict->items[1].first, format::Value{int64_t{0}}) << "a number stays one";
  }
  ASSERT_CKPT_OK(session->Close(Soon()));
  EXPECT_FALSE(fs::exists("/tmp/ckpt-field-x"));
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path()))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"job", "JOB", "EPOCH.1", "EPOCH.1.claim", "EPOCH.2",
                                          "EPOCH.2.claim", "s1.e1.a1", "COMMIT", "MANIFEST",
                                          "shard-00000.safetensors", "shard-00000.index"}));
}

uint64_t OfThisProcessKiB(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t value = 0;
    if (word == key && status >> value) return value;
  }
  return 0;
}

// A restore goes in place: beyond the tensors it needs the blocks that are under way.
TEST(Field, L70_ARestoreNeedsLittleMoreThanWhatItFills) {
  if (kAddressSanitizer || kThreadSanitizer) GTEST_SKIP() << "a sanitizer has memory of its own";
  constexpr size_t kBytes = size_t{128} << 20;
  const Scratch scratch(::testing::TempDir());
  const std::string path = scratch.path() + "/job";
  {
    const auto session = Open(path);
    Model model({{"w", std::string(kBytes, 'x')}});
    ASSERT_CKPT_OK(session->Track(model.state, nullptr));
    ASSERT_CKPT_OK(SaveStep(*session, 1));
    ASSERT_CKPT_OK(session->Close(Soon()));
  }
  const auto session = Open(path);
  Model model({{"w", std::string(kBytes, '?')}});
  const auto reader = session->OpenReader("");
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;  // the peak begins anew
  const uint64_t before = OfThisProcessKiB("VmRSS:");
  if (OfThisProcessKiB("VmHWM:") > before + 4096) GTEST_SKIP() << "the peak cannot be reset here";
  ASSERT_CKPT_OK((*reader)->LoadPart(*model.state));
  const uint64_t peak = OfThisProcessKiB("VmHWM:");
  EXPECT_EQ(model.bytes["w"], std::string(kBytes, 'x'));
  EXPECT_LT(peak - before, 64u * 1024) << "KiB more than before, of " << kBytes / 1024;
  ASSERT_CKPT_OK(session->Close(Soon()));
}

}  // namespace
}  // namespace ckpt::session
