#include "libckpt/base/status.h"

#include <cerrno>
#include <cstring>

namespace ckpt {

std::string_view CodeName(Code code) {
  static constexpr std::string_view kNames[] = {"OK",
                                                "CANCELLED",
                                                "UNKNOWN",
                                                "INVALID_ARGUMENT",
                                                "DEADLINE_EXCEEDED",
                                                "NOT_FOUND",
                                                "ALREADY_EXISTS",
                                                "PERMISSION_DENIED",
                                                "RESOURCE_EXHAUSTED",
                                                "FAILED_PRECONDITION",
                                                "ABORTED",
                                                "OUT_OF_RANGE",
                                                "UNIMPLEMENTED",
                                                "INTERNAL",
                                                "UNAVAILABLE",
                                                "DATA_LOSS",
                                                "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

Status::Status(Code code, std::string message, Outcome outcome)
    : rep_(code == Code::kOk ? nullptr
                             : std::make_unique<Rep>(Rep{code, outcome, std::move(message)})) {}

Status::Status(const Status& other)
    : rep_(other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr) {}

Status& Status::operator=(const Status& other) {
  if (this != &other) rep_ = other.rep_ ? std::make_unique<Rep>(*other.rep_) : nullptr;
  return *this;
}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return rep_ ? rep_->message : kEmpty;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  std::string text(CodeName(rep_->code));
  text += ": ";
  text += rep_->message;
  if (rep_->outcome == Outcome::kMaybeApplied) text += " (maybe applied)";
  return text;
}

Status& Status::Annotate(std::string_view context) & {
  if (rep_) rep_->message = std::string(context) + ": " + rep_->message;
  return *this;
}

Status&& Status::Annotate(std::string_view context) && {
  Annotate(context);
  return std::move(*this);
}

Status&& Status::MaybeApplied() && {
  if (rep_) rep_->outcome = Outcome::kMaybeApplied;
  return std::move(*this);
}

#define CKPT_STATUS_MAKER(name) \
  Status name(std::string message) { return Status(Code::k##name, std::move(message)); }
CKPT_STATUS_MAKER(InvalidArgument)
CKPT_STATUS_MAKER(DeadlineExceeded)
CKPT_STATUS_MAKER(NotFound)
CKPT_STATUS_MAKER(AlreadyExists)
CKPT_STATUS_MAKER(PermissionDenied)
CKPT_STATUS_MAKER(ResourceExhausted)
CKPT_STATUS_MAKER(FailedPrecondition)
CKPT_STATUS_MAKER(Aborted)
CKPT_STATUS_MAKER(OutOfRange)
CKPT_STATUS_MAKER(Unimplemented)
CKPT_STATUS_MAKER(Internal)
CKPT_STATUS_MAKER(Unavailable)
CKPT_STATUS_MAKER(DataLoss)
CKPT_STATUS_MAKER(Cancelled)
CKPT_STATUS_MAKER(Unauthenticated)
#undef CKPT_STATUS_MAKER

namespace {

Code CodeOfErrno(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return Code::kResourceExhausted;
    case ENOENT:
    case ESRCH:
      return Code::kNotFound;
    case EEXIST:
      return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case EINVAL:
    case ENAMETOOLONG:
    case ENOTDIR:
      return Code::kInvalidArgument;
    case ETIMEDOUT:
      return Code::kDeadlineExceeded;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case EHOSTUNREACH:
    case EADDRINUSE:
      return Code::kUnavailable;
    case EIO:
      return Code::kDataLoss;
    default:
      return Code::kInternal;
  }
}

}  // namespace

Status ErrnoStatus(int error, std::string_view what) {
  std::string text(what);
  text += ": ";
  text += strerrordesc_np(error) ? strerrordesc_np(error) : "unknown error";
  text += " (";
  text += strerrorname_np(error) ? strerrorname_np(error) : std::to_string(error);
  text += ")";
  return Status(CodeOfErrno(error), std::move(text));
}

}  // namespace ckpt
