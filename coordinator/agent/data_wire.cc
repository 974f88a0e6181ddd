#include "coordinator/agent/data_wire.h"

#include "libckpt/base/limits.h"
#include "libckpt/os/socket.h"

namespace ckpt::agent {
namespace {

constexpr size_t kTokenMax = 256, kJobMax = 128, kMessageMax = 4096;
constexpr auto kTransferTimeMin = std::chrono::seconds(30);
constexpr uint64_t kBytesPerSecondMin = uint64_t{20} << 20;

void PutStatus(ByteWriter* out, const Status& status) {
  out->Put<uint32_t>(static_cast<uint32_t>(status.code()));
  out->PutString(std::string_view(status.message()).substr(0, kMessageMax));
}

Status GetStatus(ByteReader* in) {
  const auto code = in->Get<uint32_t>();
  const std::string message(in->GetString(kMessageMax));
  if (code > static_cast<uint32_t>(Code::kUnauthenticated)) in->Fail();
  return Status(in->failed() ? Code::kDataLoss : static_cast<Code>(code), message);
}

}  // namespace

std::string EncodeHello(const std::string& token) {
  ByteWriter out;
  out.PutRaw(kDataMagic).PutString(token);
  return std::move(out).Take();
}

Result<std::string> DecodeHello(std::string_view bytes) {
  ByteReader in(bytes);
  const bool magic = in.GetRaw(kDataMagic.size()) == kDataMagic;
  std::string token(in.GetString(kTokenMax));
  if (!magic)
    return DataLoss("a data connection that does not begin with " + std::string(kDataMagic));
  CKPT_RETURN_IF_ERROR(in.Finish("data connection hello"));
  return token;
}

std::string EncodeStatus(const Status& status) {
  ByteWriter out;
  PutStatus(&out, status);
  return std::move(out).Take();
}

Status DecodeStatus(std::string_view bytes) {
  ByteReader in(bytes);
  Status status = GetStatus(&in);
  CKPT_RETURN_IF_ERROR(in.Finish("data connection status"));
  return status;
}

std::string EncodeRequest(const DataRequest& r) {
  ByteWriter out;
  out.Put<uint32_t>(static_cast<uint32_t>(r.kind)).PutString(r.job).Put<uint64_t>(r.epoch);
  out.Put<uint32_t>(r.attempt).Put<uint32_t>(r.rank);
  out.Put<uint64_t>(r.offset).Put<uint64_t>(r.bytes);
  return std::move(out).Take();
}

Result<DataRequest> DecodeRequest(std::string_view bytes) {
  ByteReader in(bytes);
  DataRequest r;
  const auto kind = in.Get<uint32_t>();
  if (kind != 1 && kind != 2) in.Fail();
  r.kind = static_cast<DataRequestKind>(kind);
  r.job = in.GetString(kJobMax);
  r.epoch = in.Get<uint64_t>();
  r.attempt = in.Get<uint32_t>();
  r.rank = in.Get<uint32_t>();
  r.offset = in.Get<uint64_t>();
  r.bytes = in.Get<uint64_t>();
  if (r.rank >= kRanksMax) in.Fail();
  CKPT_RETURN_IF_ERROR(in.Finish("data request"));
  return r;
}

std::string EncodeAnswer(const DataAnswer& answer) {
  ByteWriter out;
  PutStatus(&out, answer.status);
  out.Put<uint64_t>(answer.region_bytes).Put<uint64_t>(kDataChunkBytes);
  out.Put<uint64_t>(answer.id.epoch.value()).Put<int64_t>(answer.id.step.value());
  out.Put<uint32_t>(answer.id.attempt.value());
  return std::move(out).Take();
}

Result<DataAnswer> DecodeAnswer(std::string_view bytes) {
  ByteReader in(bytes);
  DataAnswer answer;
  answer.status = GetStatus(&in);
  answer.region_bytes = in.Get<uint64_t>();
  if (in.Get<uint64_t>() != kDataChunkBytes) in.Fail();
  answer.id.epoch = Epoch(in.Get<uint64_t>());
  answer.id.step = Step(in.Get<int64_t>());
  answer.id.attempt = Attempt(in.Get<uint32_t>());
  CKPT_RETURN_IF_ERROR(in.Finish("data answer"));
  return answer;
}

Status SendMessage(int fd, std::string_view bytes, const Deadline& deadline) {
  ByteWriter out;
  out.PutString(bytes);
  return os::SendAll(fd, AsBytes(out.str()), deadline);
}

Result<std::string> ReceiveMessage(int fd, const Deadline& deadline) {
  std::string length(sizeof(uint32_t), '\0');
  CKPT_RETURN_IF_ERROR(os::RecvAll(fd, std::as_writable_bytes(std::span(length)), deadline));
  const auto size = ByteReader(std::string_view(length)).Get<uint32_t>();
  if (size > kDataMessageBytesMax) {
    return DataLoss(std::string(deadline.name()) + ": a message of " + std::to_string(size) +
                    " bytes");
  }
  std::string bytes(size, '\0');
  CKPT_RETURN_IF_ERROR(os::RecvAll(fd, std::as_writable_bytes(std::span(bytes)), deadline));
  return bytes;
}

Nanos TransferTime(uint64_t bytes) {
  return kTransferTimeMin + std::chrono::seconds(bytes / kBytesPerSecondMin);
}

}  // namespace ckpt::agent
