// What every state store must do, run by each of them; and what only the one on disk can get wrong.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "coordinator/store/memory_store_fake.h"
#include "coordinator/store/state_store.h"
#include "libckpt/base/fault.h"

namespace ckpt::store {
namespace {

std::string NewDirectory() {
  std::string path = testing::TempDir() + "/state.XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

std::map<std::string, std::string> Load(StateStore& store) {
  auto records = store.LoadAll();
  EXPECT_TRUE(records.ok()) << records.status().ToString();
  std::map<std::string, std::string> loaded;
  for (core::Record& record : *records) loaded[record.key] = record.value;
  return loaded;
}

// Opens the same store again each time it is called, the former one closed.
using Opener = std::function<std::unique_ptr<StateStore>()>;

struct Kind {
  const char* name;
  std::function<Opener()> make;
};

class StateStoreTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { opener_ = GetParam().make(); }
  void Reopen() {
    store_.reset();
    store_ = opener_();
    ASSERT_NE(store_, nullptr);
  }
  Opener opener_;
  std::unique_ptr<StateStore> store_;
};

TEST_P(StateStoreTest, IsEmptyAtFirst) {
  Reopen();
  EXPECT_TRUE(Load(*store_).empty());
}

TEST_P(StateStoreTest, KeepsWhatWasCommittedOverAReopen) {
  Reopen();
  ASSERT_TRUE(store_->Commit({{"a", "1"}, {"b", std::string("\0\xff", 2)}, {"c", ""}}).ok());
  ASSERT_TRUE(store_->Commit({{"a", "2"}, {"b", std::nullopt}, {"never", std::nullopt}}).ok());
  const std::map<std::string, std::string> want = {{"a", "2"}, {"c", ""}};
  EXPECT_EQ(Load(*store_), want);
  Reopen();
  EXPECT_EQ(Load(*store_), want);
}

TEST_P(StateStoreTest, OneTransactionMayTouchAKeyTwice) {
  Reopen();
  ASSERT_TRUE(store_->Commit({{"a", "1"}, {"a", std::nullopt}, {"a", "3"}}).ok());
  EXPECT_EQ(Load(*store_).at("a"), "3");
}

TEST_P(StateStoreTest, LoadsInOrderOfKeys) {
  Reopen();
  ASSERT_TRUE(store_->Commit({{"b", "1"}, {"a/2", "1"}, {"a/10", "1"}}).ok());
  const auto records = store_->LoadAll();
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 3u);
  EXPECT_EQ((*records)[0].key, "a/10");
  EXPECT_EQ((*records)[2].key, "b");
}

TEST_P(StateStoreTest, RandomTransactionsAgreeWithAMap) {
  Reopen();
  std::mt19937 rng(7);
  std::map<std::string, std::string> want;
  for (int round = 0; round < 60; ++round) {
    std::vector<core::Write> writes;
    for (int i = 0; i < 5; ++i) {
      const std::string key = "k" + std::to_string(rng() % 20);
      const bool drop = rng() % 4 == 0;
      const std::string value(rng() % 3000, static_cast<char>('a' + rng() % 26));
      writes.push_back({key, drop ? std::nullopt : std::optional(value)});
      if (drop) {
        want.erase(key);
      } else {
        want[key] = value;
      }
    }
    ASSERT_TRUE(store_->Commit(writes).ok());
    if (round % 20 == 19) Reopen();
  }
  EXPECT_EQ(Load(*store_), want);
}

Opener SqliteOpener() {
  const std::string directory = NewDirectory() + "/made";
  return [directory] {
    auto store = OpenSqlite(directory);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(store).value() : nullptr;
  };
}

Opener MemoryOpener() {
  auto disk = std::make_shared<MemoryStore::Disk>();
  return [disk] { return std::make_unique<MemoryStore>(disk); };
}

INSTANTIATE_TEST_SUITE_P(All, StateStoreTest,
                         testing::Values(Kind{"Sqlite", SqliteOpener},
                                         Kind{"Memory", MemoryOpener}),
                         [](const auto& info) { return info.param.name; });

TEST(SqliteStore, ASecondCoordinatorIsToldWhoHasIt) {
  const std::string directory = NewDirectory();
  auto first = OpenSqlite(directory);
  ASSERT_TRUE(first.ok());
  const auto second = OpenSqlite(directory);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find("another ckptd"), std::string::npos);
  first->reset();
  EXPECT_TRUE(OpenSqlite(directory).ok());
}

TEST(SqliteStore, RefusesANewerSchemaAndForeignFiles) {
  const std::string directory = NewDirectory();
  ASSERT_TRUE(OpenSqlite(directory).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((directory + "/state.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version=99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  EXPECT_EQ(OpenSqlite(directory).status().code(), Code::kFailedPrecondition);

  const std::string other = NewDirectory();
  std::ofstream(other + "/state.db") << std::string(8192, 'x');
  EXPECT_EQ(OpenSqlite(other).status().code(), Code::kDataLoss);
}

TEST(SqliteStore, AnUnusableFolderIsSaidSo) {
  const std::string directory = NewDirectory();
  std::ofstream(directory + "/file") << "x";
  const auto store = OpenSqlite(directory + "/file/sub");
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find("/file/sub"), std::string::npos);
}

#if defined(CKPT_FAULTS)
TEST(SqliteStore, ATransactionThatFailsLeavesNothing) {
  const std::string directory = NewDirectory();
  auto store = OpenSqlite(directory);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Commit({{"a", "1"}}).ok());
  {
    ArmedFault fault("state_store.before_commit", ResourceExhausted("disk full"));
    EXPECT_EQ((*store)->Commit({{"a", "2"}, {"b", "2"}}).code(), Code::kResourceExhausted);
    EXPECT_TRUE(fault.fired());
  }
  const std::map<std::string, std::string> want = {{"a", "1"}};
  EXPECT_EQ(Load(**store), want);
  EXPECT_TRUE((*store)->Commit({{"b", "3"}}).ok());
  EXPECT_EQ(Load(**store).size(), 2u);
}
#endif

}  // namespace
}  // namespace ckpt::store
