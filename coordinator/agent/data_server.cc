#include "coordinator/agent/data_server.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libckpt/base/log.h"

namespace ckpt::agent {
namespace {

constexpr size_t kQueueMax = 64;
constexpr auto kIdleTime = std::chrono::minutes(2);
constexpr auto kAnswerTime = std::chrono::seconds(30);
constexpr size_t kPieceBytes = 256 * 1024;
constexpr int kStableCopyTries = 1000;
constexpr Nanos kAcceptPause = std::chrono::seconds(1);  // when there is no descriptor for it

Status CheckRange(const DataRequest& request, uint64_t region_bytes) {
  uint64_t end = 0;
  const bool good = request.offset % kDataChunkBytes == 0 && request.bytes > 0 &&
                    !AddOverflows(request.offset, request.bytes, &end) && end <= region_bytes &&
                    (end == region_bytes || end % kDataChunkBytes == 0);
  if (good) return OkStatus();
  return InvalidArgument("range " + std::to_string(request.offset) + " + " +
                         std::to_string(request.bytes) + " is no run of chunks of a region of " +
                         std::to_string(region_bytes) + " bytes");
}

// Until two copies in a row are equal: a writer may be filling digests in meanwhile.
void CopyStable(ByteSpan from, std::vector<std::byte>* copy) {
  std::vector<std::byte> again(from.begin(), from.end());
  for (int i = 0; i < kStableCopyTries; ++i) {
    copy->assign(from.begin(), from.end());
    if (*copy == again) return;
    copy->swap(again);
  }
}

}  // namespace

Result<std::unique_ptr<DataServer>> DataServer::Start(const std::string& host,
                                                      const HeldCopies* held) {
  CKPT_ASSIGN_OR_RETURN(os::UniqueFd listener, os::ListenTcp({host, 0}));
  CKPT_ASSIGN_OR_RETURN(os::HostPort address, os::LocalAddress(listener.get()));
  return std::unique_ptr<DataServer>(new DataServer(std::move(listener), std::move(address), held));
}

DataServer::DataServer(os::UniqueFd listener, os::HostPort address, const HeldCopies* held)
    : listener_(std::move(listener)),
      address_(std::move(address)),
      held_(held),
      pool_("ckpt-data", kConnectionsMax, kQueueMax) {
  acceptor_ = os::Thread("ckpt-data-acc", [this] { AcceptLoop(); });
}

DataServer::~DataServer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.NotifyAll();
    os::ShutdownSocket(listener_.get());
    for (const int fd : serving_) os::ShutdownSocket(fd);
  }
  acceptor_.Join();
  pool_.Shutdown();
}

void DataServer::SetToken(std::string token) {
  MutexLock lock(mutex_);
  token_ = std::move(token);
}

void DataServer::AcceptLoop() {
  bool waits = false;  // said once
  for (;;) {
    Result<os::UniqueFd> fd = os::Accept(listener_.get(), Deadline::Infinite("data connection"));
    const bool first = !fd.ok() && !std::exchange(waits, true);
    if (fd.ok()) waits = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    if (first) {
      LogWarning("a node that fetches a copy has to wait: " + fd.status().message() +
                 "; looking again every " + FormatDuration(kAcceptPause));
    }
    if (!fd.ok()) {
      const Deadline pause("a pause of the data server", kAcceptPause);
      MutexLock lock(mutex_);
      while (!stopping_ && stopped_.WaitUntil(mutex_, pause)) {
      }
      continue;
    }
    auto shared = std::make_shared<os::UniqueFd>(std::move(*fd));
    const Status queued = pool_.TrySubmit([this, shared] { Serve(shared->get()); });
    if (!queued.ok()) LogWarning("data server: a connection was dropped: " + queued.message());
  }
}

void DataServer::Serve(int fd) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    serving_.insert(fd);
  }
  Status status = Greet(fd);
  while (status.ok()) {
    Result<std::string> bytes = ReceiveMessage(fd, Deadline("data request", kIdleTime));
    if (!bytes.ok()) break;  // the client is done
    const Result<DataRequest> request = DecodeRequest(*bytes);
    status = request.ok() ? ServeRequest(fd, *request) : request.status();
  }
  if (!status.ok()) LogWarning("data connection: " + status.ToString());
  MutexLock lock(mutex_);
  serving_.erase(fd);
}

Status DataServer::Greet(int fd) {
  const Deadline deadline("data connection hello", kAnswerTime);
  CKPT_ASSIGN_OR_RETURN(const std::string bytes, ReceiveMessage(fd, deadline));
  const Result<std::string> hello = DecodeHello(bytes);
  if (!hello.ok()) {
    const Status why =
        FailedPrecondition("this agent's data connection begins with " + std::string(kDataMagic) +
                           ": it and the one that fetches are of different releases; upgrade both, "
                           "or resume from the store");
    SendMessage(fd, EncodeStatus(why), deadline).IgnoreError();
    return hello.status();
  }
  const std::string& token = *hello;
  bool good = false;
  {
    MutexLock lock(mutex_);
    good = !token_.empty() && token == token_;
  }
  const Status answer =
      good ? OkStatus() : Unauthenticated("the token of the data connection is not this cluster's");
  CKPT_RETURN_IF_ERROR(SendMessage(fd, EncodeStatus(answer), deadline));
  return answer;  // I1
}

Status DataServer::ServeRequest(int fd, const DataRequest& request) {
  Result<HeldCopies::Whole> whole =
      held_->Find(request.job, request.epoch, request.attempt, request.rank);
  DataAnswer answer;
  answer.status = whole.ok() ? OkStatus() : whole.status();
  if (whole.ok()) {
    answer.region_bytes = whole->memory.bytes();
    answer.id = whole->info.id;
  }
  const bool reads = request.kind == DataRequestKind::kRead;
  if (whole.ok() && reads) answer.status = CheckRange(request, answer.region_bytes);
  CKPT_RETURN_IF_ERROR(SendMessage(fd, EncodeAnswer(answer), Deadline("data answer", kAnswerTime)));
  return reads && answer.status.ok() ? SendChunks(fd, request, *whole) : OkStatus();
}

Status DataServer::SendChunks(int fd, const DataRequest& request, const HeldCopies::Whole& whole) {
  CKPT_ASSIGN_OR_RETURN(const os::Mapping mapping, whole.memory.Map({.writable = false}));
  const Deadline deadline("sending a generation", TransferTime(request.bytes));
  const uint64_t end = request.offset + request.bytes;
  std::vector<std::byte> copy;
  for (uint64_t offset = request.offset; offset < end; offset += kDataChunkBytes) {
    const uint64_t bytes = std::min(kDataChunkBytes, end - offset);
    ByteSpan chunk = ByteSpan(mapping.bytes()).subspan(offset, bytes);
    if (offset < whole.info.data_offset) {
      CopyStable(chunk, &copy);
      chunk = copy;
    }
    DigestStream stream(offset);  // of pieces that are sent while the cache has them
    while (!chunk.empty()) {
      const ByteSpan piece = chunk.first(std::min(chunk.size(), kPieceBytes));
      stream.Update(piece);
      CKPT_RETURN_IF_ERROR(os::SendAll(fd, piece, deadline));
      chunk = chunk.subspan(piece.size());
    }
    const Digest digest = stream.Finish();
    CKPT_RETURN_IF_ERROR(os::SendAll(fd, std::as_bytes(std::span(digest.bytes)), deadline));
  }
  return OkStatus();
}

}  // namespace ckpt::agent
