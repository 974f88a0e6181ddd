// The records in one SQLite table: write-ahead log, every commit synced.
//
// Exclusive locking mode: the process that opens the database keeps its lock until it ends, so a
// second coordinator on the same folder learns it at once, and not by a race on its first commit.
#include <sqlite3.h>

#include <filesystem>

#include "coordinator/store/state_store.h"
#include "libckpt/base/fault.h"

namespace ckpt::store {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kApplicationId = 0x636b7074;  // "ckpt"

class Statement {
 public:
  Statement(sqlite3* db, const char* sql) {
    result_ = sqlite3_prepare_v2(db, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  int prepared() const { return result_; }
  void Bind(int index, const std::string& bytes) {
    sqlite3_bind_blob64(statement_, index, bytes.data(), bytes.size(), SQLITE_TRANSIENT);
  }
  int Step() { return result_ == SQLITE_OK ? sqlite3_step(statement_) : result_; }
  void Reset() { sqlite3_reset(statement_); }
  std::string Column(int index) const {
    const auto* data = static_cast<const char*>(sqlite3_column_blob(statement_, index));
    const int size = sqlite3_column_bytes(statement_, index);
    return data == nullptr ? std::string() : std::string(data, static_cast<size_t>(size));
  }
  int64_t Number(int index) const { return sqlite3_column_int64(statement_, index); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int result_ = SQLITE_OK;
};

class SqliteStore : public StateStore {
 public:
  explicit SqliteStore(std::string path) : path_(std::move(path)) {}
  ~SqliteStore() override { sqlite3_close_v2(db_); }

  Status Open();
  Status Commit(const std::vector<core::Write>& writes) override;
  Result<std::vector<core::Record>> LoadAll() override;

 private:
  Status Check(int result, const char* what);
  Status Run(const char* sql);
  Result<int64_t> Pragma(const char* sql);
  Status CheckSchema();
  Status Write(const std::vector<core::Write>& writes);

  const std::string path_;
  sqlite3* db_ = nullptr;
  bool poisoned_ = false;
};

Status SqliteStore::Check(int result, const char* what) {
  if (result == SQLITE_OK || result == SQLITE_DONE || result == SQLITE_ROW) return OkStatus();
  const std::string text =
      path_ + ": " + what + ": " + (db_ == nullptr ? "out of memory" : sqlite3_errmsg(db_));
  switch (result & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return Unavailable(path_ + " is in use by another ckptd: stop it, or choose another --data");
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return ResourceExhausted(text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_IOERR:
      return DataLoss(text);
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
      return PermissionDenied(text);
    default:
      return Internal(text);
  }
}

Status SqliteStore::Run(const char* sql) {
  return Check(sqlite3_exec(db_, sql, nullptr, nullptr, nullptr), sql);
}

Result<int64_t> SqliteStore::Pragma(const char* sql) {
  Statement statement(db_, sql);
  CKPT_RETURN_IF_ERROR(Check(statement.Step(), sql));
  return statement.Number(0);
}

Status SqliteStore::CheckSchema() {
  CKPT_ASSIGN_OR_RETURN(const int64_t version, Pragma("PRAGMA user_version"));
  CKPT_ASSIGN_OR_RETURN(const int64_t application, Pragma("PRAGMA application_id"));
  if (version == 0 && application == 0) {
    CKPT_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
    CKPT_RETURN_IF_ERROR(Run(
        "CREATE TABLE record (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID, STRICT"));
    CKPT_RETURN_IF_ERROR(Run(("PRAGMA user_version=" + std::to_string(kSchemaVersion)).c_str()));
    CKPT_RETURN_IF_ERROR(Run(("PRAGMA application_id=" + std::to_string(kApplicationId)).c_str()));
    return Run("COMMIT");
  }
  if (application != kApplicationId) return DataLoss(path_ + " is not a database of ckptd");
  if (version > kSchemaVersion) {
    return FailedPrecondition(path_ + " has schema version " + std::to_string(version) +
                              "; this ckptd knows up to " + std::to_string(kSchemaVersion) +
                              ": run the newer one");
  }
  return OkStatus();
}

Status SqliteStore::Open() {
  CKPT_RETURN_IF_ERROR(Check(
      sqlite3_open_v2(path_.c_str(), &db_,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr),
      "open"));
  sqlite3_extended_result_codes(db_, 1);
  CKPT_RETURN_IF_ERROR(Run("PRAGMA locking_mode=EXCLUSIVE"));
  CKPT_RETURN_IF_ERROR(Run("PRAGMA journal_mode=WAL"));
  CKPT_RETURN_IF_ERROR(Run("PRAGMA synchronous=FULL"));
  CKPT_RETURN_IF_ERROR(CheckSchema());
  // Takes the lock for good, whatever was or was not written so far.
  CKPT_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  return Run("COMMIT");
}

Status SqliteStore::Write(const std::vector<core::Write>& writes) {
  Statement put(db_, "INSERT INTO record VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2");
  Statement drop(db_, "DELETE FROM record WHERE key = ?1");
  CKPT_RETURN_IF_ERROR(Check(put.prepared(), "prepare"));
  CKPT_RETURN_IF_ERROR(Check(drop.prepared(), "prepare"));
  for (const core::Write& write : writes) {
    Statement& statement = write.value ? put : drop;
    statement.Bind(1, write.key);
    if (write.value) statement.Bind(2, *write.value);
    CKPT_RETURN_IF_ERROR(Check(statement.Step(), "write"));
    statement.Reset();
  }
  CKPT_FAULT("state_store.before_commit");
  return OkStatus();
}

Status SqliteStore::Commit(const std::vector<core::Write>& writes) {
  if (poisoned_) return DataLoss(path_ + ": an earlier commit failed; restart ckptd");
  if (writes.empty()) return OkStatus();
  CKPT_RETURN_IF_ERROR(Run("BEGIN IMMEDIATE"));
  Status status = Write(writes);
  if (!status.ok()) {
    poisoned_ = !Run("ROLLBACK").ok() && sqlite3_get_autocommit(db_) == 0;
    return status;
  }
  status = Run("COMMIT");
  if (status.ok()) return status;
  poisoned_ = true;
  return DataLoss(status.message()).MaybeApplied();
}

Result<std::vector<core::Record>> SqliteStore::LoadAll() {
  std::vector<core::Record> records;
  Statement statement(db_, "SELECT key, value FROM record ORDER BY key");
  int result = SQLITE_OK;
  while ((result = statement.Step()) == SQLITE_ROW) {
    records.push_back({statement.Column(0), statement.Column(1)});
  }
  CKPT_RETURN_IF_ERROR(Check(result, "read"));
  return records;
}

}  // namespace

Result<std::unique_ptr<StateStore>> OpenSqlite(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrnoStatus(error.value(), "making " + directory);
  auto store = std::make_unique<SqliteStore>(directory + "/state.db");
  CKPT_RETURN_IF_ERROR(store->Open());
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace ckpt::store
