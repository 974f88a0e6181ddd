// Errors as values: a closed set of codes (gRPC's), whether the failed operation may have been
// applied, and a message that names the thing and the way out. Nothing in this project throws; a
// Status is one pointer, null is OK.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ckpt {

// gRPC's codes and numbers, so that a status crosses the wire unchanged.
enum class Code : int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "NOT_FOUND" and so on; "UNKNOWN" for a number outside the set.
std::string_view CodeName(Code code);

// Whether an operation that returned an error may have taken effect all the same.
enum class Outcome : int32_t { kNotApplied = 0, kMaybeApplied = 1 };

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, Outcome outcome = Outcome::kNotApplied);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ ? rep_->code : Code::kOk; }
  Outcome outcome() const { return rep_ ? rep_->outcome : Outcome::kNotApplied; }
  const std::string& message() const;
  // "DATA_LOSS: shard 3 of …" ("OK" for success); "(maybe applied)" is appended where it holds.
  std::string ToString() const;

  // Puts `context` and ": " before the message. No effect on OK.
  Status& Annotate(std::string_view context) &;
  Status&& Annotate(std::string_view context) &&;
  Status&& MaybeApplied() &&;

  void IgnoreError() const {}

 private:
  struct Rep {
    Code code;
    Outcome outcome;
    std::string message;
  };
  std::unique_ptr<Rep> rep_;
};

inline Status OkStatus() { return Status(); }

// One constructor for each code in use; `message` names the thing and what to do.
Status InvalidArgument(std::string message);
Status DeadlineExceeded(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status PermissionDenied(std::string message);
Status ResourceExhausted(std::string message);
Status FailedPrecondition(std::string message);
Status Aborted(std::string message);
Status OutOfRange(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);
Status Unavailable(std::string message);
Status DataLoss(std::string message);
Status Cancelled(std::string message);
Status Unauthenticated(std::string message);

// The Status for a failed system call: "WHAT: No space left on device (ENOSPC)". ENOSPC, EDQUOT,
// ENOMEM, EMFILE become kResourceExhausted, ENOENT kNotFound, EEXIST kAlreadyExists, EACCES, EPERM
// and EROFS kPermissionDenied, EINVAL kInvalidArgument, ETIMEDOUT kDeadlineExceeded, connection
// errors and EAGAIN kUnavailable, EIO kDataLoss, others kInternal.
Status ErrnoStatus(int error, std::string_view what);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose, `return value;`
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

#define CKPT_CONCAT_INNER(a, b) a##b
#define CKPT_CONCAT(a, b) CKPT_CONCAT_INNER(a, b)

#define CKPT_RETURN_IF_ERROR(expr)               \
  do {                                           \
    ::ckpt::Status ckpt_status_ = (expr);        \
    if (!ckpt_status_.ok()) return ckpt_status_; \
  } while (0)

#define CKPT_ASSIGN_OR_RETURN(lhs, expr) \
  CKPT_ASSIGN_OR_RETURN_IMPL(CKPT_CONCAT(ckpt_result_, __LINE__), lhs, expr)
#define CKPT_ASSIGN_OR_RETURN_IMPL(result, lhs, expr)  \
  auto result = (expr);                                \
  if (!result.ok()) return std::move(result).status(); \
  lhs = std::move(result).value()

}  // namespace ckpt
