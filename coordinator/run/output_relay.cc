#include "coordinator/run/output_relay.h"

#include "coordinator/run/console.h"
#include "libckpt/base/log.h"
#include "libckpt/os/stream.h"

namespace ckpt::run {
namespace {

constexpr Nanos kStallTimeout = std::chrono::seconds(10);
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kLineBytesMax = 64 << 10;  // a longer line is passed on in parts

}  // namespace

Result<std::unique_ptr<OutputRelay>> OutputRelay::Create() {
  std::unique_ptr<OutputRelay> relay(new OutputRelay);
  CKPT_ASSIGN_OR_RETURN(relay->loop_, os::EventLoop::Create());
  os::EventLoop* loop = relay->loop_.get();
  relay->thread_ = os::Thread("relay", [loop] {
    const Status status = loop->Run();
    if (!status.ok()) LogError("output relay: " + status.ToString());
  });
  return relay;
}

OutputRelay::~OutputRelay() {
  if (loop_ == nullptr) return;  // there was no descriptor for it
  loop_->Post([this] {
    for (const auto& [fd, source] : std::map(sources_)) {
      Pump(source);
      Pass(source.get(), true);
    }
    loop_->Stop();
  });
  thread_.Join();
}

Result<os::UniqueFd> OutputRelay::Add(uint32_t rank, int to) {
  CKPT_ASSIGN_OR_RETURN(auto pipe, os::MakePipe());
  CKPT_RETURN_IF_ERROR(os::SetNonBlocking(pipe.first.get(), true));
  auto source = std::make_shared<Source>();
  source->fd = std::move(pipe.first);
  source->prefix = "[rank " + std::to_string(rank) + "] ";
  source->to = to;
  loop_->Post([this, source] {
    sources_[source->fd.get()] = source;
    const Status added =
        loop_->AddFd(source->fd.get(), EPOLLIN, [this, source](uint32_t) { Pump(source); });
    if (!added.ok()) LogError("output relay: " + added.ToString());
  });
  return std::move(pipe.second);
}

void OutputRelay::Pump(const std::shared_ptr<Source>& source) {
  while (source->fd.valid()) {
    const Result<os::ReadChunk> chunk = os::ReadAvailable(source->fd.get(), kReadBytes);
    const bool ended = !chunk.ok() || chunk->ended;
    if (chunk.ok()) source->partial += chunk->bytes;
    Pass(source.get(), ended);
    if (ended) {
      loop_->RemoveFd(source->fd.get());
      sources_.erase(source->fd.get());
      source->fd.Reset();
    } else if (chunk->bytes.empty()) {
      return;
    }
  }
}

void OutputRelay::Pass(Source* source, bool ended) {
  std::string out;
  size_t from = 0;
  std::string& text = source->partial;
  for (size_t end; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    out += source->prefix + text.substr(from, end + 1 - from);
  }
  text.erase(0, from);
  if (!text.empty() && (ended || text.size() > kLineBytesMax)) {
    out += source->prefix + text + "\n";
    text.clear();
  }
  if (out.empty() || source->stalled) return;
  // A reader that takes nothing for so long gets no more; the ranks must not wait for it for ever.
  const Status passed =
      Console::Get().Write(source->to, out, Deadline("output of a rank", kStallTimeout));
  source->stalled = passed.code() == Code::kDeadlineExceeded;
}

}  // namespace ckpt::run
