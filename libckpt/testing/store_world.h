// What the suites of stores need: a place for one job, handles for as many actors as a test has,
// and a view behind the store's back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "libckpt/base/fault.h"
#include "libckpt/format/manifest.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/storage/store.h"

namespace ckpt::testing {

// One job's place in a store under test. Each implementation has one, default-constructible.
class StoreWorld {
 public:
  virtual ~StoreWorld() = default;
  // A new actor: its own handle, with short pauses between looks.
  virtual std::unique_ptr<storage::Store> Actor() = 0;
  // Behind the store's back; keys are "EPOCH.3" or "s1.e1.a1/COMMIT". Directories are made.
  virtual void Plant(const std::string& key, const std::string& bytes) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Status Remove(const std::string& key) = 0;
  virtual std::vector<std::string> Keys() = 0;

  bool Has(const std::string& key) {
    const std::vector<std::string> keys = Keys();
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }
  bool HasDir(const std::string& dir) {
    for (const std::string& key : Keys()) {
      if (key.starts_with(dir + "/")) return true;
    }
    return false;
  }
};

inline AttemptId Id(uint64_t epoch, int64_t step, uint32_t attempt = 1) {
  return AttemptId{Epoch(epoch), Step(step), Attempt(attempt)};
}

inline Deadline Soon() { return Deadline("test: at once", Nanos(0)); }
inline Deadline Long() { return Deadline("test", std::chrono::seconds(60)); }

// Bytes that differ from attempt to attempt.
inline std::string ContentOf(const AttemptId& id, size_t bytes = 5000) {
  std::string content = "content of " + id.ToString() + " ";
  while (content.size() < bytes) content += std::to_string(Hash64(AsBytes(content)));
  content.resize(bytes);
  return content;
}
// Stands for a MANIFEST: names its one file's digest.
inline std::string ManifestOf(const AttemptId& id) {
  return "data " + DigestOf(AsBytes(ContentOf(id))).ToString() + " of " + id.ToString();
}
inline storage::CommitRecord RecordOf(const AttemptId& id, Epoch committer) {
  return {format::ManifestDigest(ManifestOf(id)), committer, "record of " + id.ToString()};
}

// Everything of a save but the commit.
inline Status WriteAttempt(storage::Store& store, const AttemptId& id) {
  CKPT_RETURN_IF_ERROR(store.BeginAttempt(id));
  const std::string content = ContentOf(id);
  CKPT_ASSIGN_OR_RETURN(const auto writer, store.CreateFile(id, "data", content.size()));
  const size_t half = content.size() / 2;
  CKPT_RETURN_IF_ERROR(writer->Write(half, AsBytes(content).subspan(half)));
  CKPT_RETURN_IF_ERROR(writer->Write(0, AsBytes(content).first(half)));
  return writer->Finish();
}
inline Status CommitAttempt(storage::Store& store, const AttemptId& id,
                            const Deadline& deadline = Long()) {
  return store.Commit(id, ManifestOf(id), RecordOf(id, id.epoch), deadline);
}
inline Status Save(storage::Store& store, const AttemptId& id, const Deadline& deadline = Long()) {
  CKPT_RETURN_IF_ERROR(WriteAttempt(store, id));
  return CommitAttempt(store, id, deadline);
}

// OK if the checkpoint is committed and every byte is as it was saved.
inline Status CheckBytes(storage::Store& store, const AttemptId& id) {
  CKPT_ASSIGN_OR_RETURN(const storage::CommitRecord record, store.ReadCommit(id));
  CKPT_ASSIGN_OR_RETURN(const std::string manifest, store.ReadManifest(id));
  if (format::ManifestDigest(manifest) != record.manifest_digest)
    return DataLoss("MANIFEST and COMMIT of " + id.ToString() + " differ");
  if (manifest != ManifestOf(id)) return DataLoss("another MANIFEST in " + id.ToString());
  CKPT_ASSIGN_OR_RETURN(const auto reader, store.OpenFile(id, "data"));
  std::string content(reader->size(), '\0');
  CKPT_RETURN_IF_ERROR(reader->Read(0, std::as_writable_bytes(std::span(content))));
  return content == ContentOf(id) ? OkStatus() : DataLoss("other bytes in " + id.ToString());
}

// The visible checkpoints, newest first.
inline std::vector<AttemptId> Visible(storage::Store& store) {
  std::vector<AttemptId> visible;
  const auto infos = store.List();
  EXPECT_TRUE(infos.ok()) << infos.status().ToString();
  if (!infos.ok()) return visible;
  for (const storage::CheckpointInfo& info : *infos) {
    if (info.visible) visible.push_back(info.id);
  }
  return visible;
}
inline bool IsVisible(storage::Store& store, const AttemptId& id) {
  const std::vector<AttemptId> visible = Visible(store);
  return std::find(visible.begin(), visible.end(), id) != visible.end();
}

inline Result<storage::EpochClaim> Claim(storage::Store& store, uint64_t at_least = 0) {
  return store.ClaimEpoch(Epoch(at_least), {}, {});
}

// Tests that plant faults or run something in the middle of something else skip, loudly, in a build
// without fault points.
#if defined(CKPT_FAULTS)
#define CKPT_NEEDS_FAULTS() \
  do {                      \
  } while (0)
#else
#define CKPT_NEEDS_FAULTS() GTEST_SKIP() << "this build has no fault points (CKPT_FAULTS)"
#endif

#define ASSERT_OK(expr)                                                  \
  do {                                                                   \
    const ::ckpt::Status ckpt_test_status_ = (expr);                     \
    ASSERT_TRUE(ckpt_test_status_.ok()) << ckpt_test_status_.ToString(); \
  } while (0)
#define EXPECT_OK(expr)                                                  \
  do {                                                                   \
    const ::ckpt::Status ckpt_test_status_ = (expr);                     \
    EXPECT_TRUE(ckpt_test_status_.ok()) << ckpt_test_status_.ToString(); \
  } while (0)
#define EXPECT_CODE(expr, expected)                                                              \
  do {                                                                                           \
    const ::ckpt::Status ckpt_test_status_ = (expr);                                             \
    EXPECT_EQ(ckpt_test_status_.code(), ::ckpt::Code::expected) << ckpt_test_status_.ToString(); \
  } while (0)

}  // namespace ckpt::testing
