#include "libckpt/comm/nccl/nccl_comm.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libckpt/base/bytes.h"
#include "libckpt/base/digest.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/log.h"
#include "libckpt/base/mutex.h"

namespace ckpt::comm {

using nccl::CommPtr;
using nccl::Result32;

namespace {

constexpr const char* kIdKey = "nccl";
constexpr int kSpins = 200;          // of a wait, before it lets the core go
constexpr uint64_t kWordBytes = 32;  // what a rank sends in a check
constexpr size_t kFreshIdBytesMax = 3000;

// Of the deadline, for those that wait at the same time in the driver or in NCCL.
void Pause(int turn) {
  if (turn < kSpins) {
    ::sched_yield();
  } else {
    ::poll(nullptr, 0, 1);
  }
}

// Aborts go on without time left, for a moment: they are what makes room.
Deadline EndOfAborts(const Deadline& deadline) {
  const Deadline at_least("aborting NCCL communicators", kNcclAbortMin);
  const Deadline at_most("aborting NCCL communicators", kNcclAbortMax);
  return deadline.at_ns() > at_least.at_ns() ? deadline.Min(at_most) : at_least;
}

nccl::StreamPtr Stream(device::StreamHandle stream) { return static_cast<nccl::StreamPtr>(stream); }

}  // namespace

Result<std::unique_ptr<NcclCommunicators>> NcclCommunicators::Make(
    std::string name, uint32_t rank, uint32_t world, std::shared_ptr<device::CudaDevice> device,
    const void* config) {
  if (rank >= world)
    return InvalidArgument("rank " + std::to_string(rank) + " of " + std::to_string(world));
  CKPT_ASSIGN_OR_RETURN(const nccl::Library* library, nccl::Library::Get());
  CKPT_ASSIGN_OR_RETURN(nccl::ConfigCopy copy, nccl::ConfigCopy::Of(config));
  CKPT_RETURN_IF_ERROR(nccl::Refusal(nccl::Preflight(*library, *device, world, OkStatus())));
  std::unique_ptr<NcclCommunicators> group(
      new NcclCommunicators(library, std::move(name), rank, world, std::move(device)));
  group->members_.push_back(std::make_unique<Member>(
      Member{group->name_, kWorld, 0, static_cast<int>(rank), std::move(copy), {}, {}}));
  return group;
}

NcclCommunicators::NcclCommunicators(const nccl::Library* library, std::string name, uint32_t rank,
                                     uint32_t world, std::shared_ptr<device::CudaDevice> device)
    : nccl_(library),
      name_(std::move(name)),
      rank_(rank),
      world_(world),
      device_(std::move(device)) {}

NcclCommunicators::~NcclCommunicators() {
  quiesced_ = false;
  const Status status = Down(Deadline("closing NCCL communicators", kNcclAbortMin));
  if (!status.ok()) LogError(status.ToString());
  if (lost_.ok()) return;
  // A call of NCCL that has not returned may still write there.
  static Mutex* const mutex = new Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<Member>>;
  MutexLock lock(*mutex);
  for (auto& member : members_) kept->push_back(std::move(member));
}

// ---- what is declared

Status NcclCommunicators::CheckDeclaration(uint32_t index) const {
  if (index >= members_.size())
    return InvalidArgument("'" + name_ + "' has no communicator " + std::to_string(index));
  if (up())
    return FailedPrecondition("'" + name_ + "' is up: declare its splits and buffers before");
  return OkStatus();
}

Result<uint32_t> NcclCommunicators::AddSplit(std::string name, uint32_t parent, int color, int key,
                                             const void* config) {
  CKPT_RETURN_IF_ERROR(CheckDeclaration(parent));
  if (color < nccl::kSplitNoColor)
    return InvalidArgument("communicator '" + name + "': color " + std::to_string(color) +
                           " (0 or more, -1 for a rank without)");
  if (members_.size() >= kCommunicatorsMax)
    return ResourceExhausted("more than " + std::to_string(kCommunicatorsMax) + " communicators");
  for (const auto& member : members_) {
    if (member->name == name)
      return AlreadyExists("'" + name_ + "' has a communicator '" + name + "' already");
  }
  CKPT_ASSIGN_OR_RETURN(nccl::ConfigCopy copy, nccl::ConfigCopy::Of(config));
  members_.push_back(std::make_unique<Member>(
      Member{std::move(name), parent, color, key, std::move(copy), {}, {}}));
  return static_cast<uint32_t>(members_.size() - 1);
}

Status NcclCommunicators::AddBuffer(uint32_t index, void* memory, uint64_t bytes, bool window,
                                    int flags) {
  CKPT_RETURN_IF_ERROR(CheckDeclaration(index));
  if (memory == nullptr || bytes == 0) return InvalidArgument("a buffer of no memory");
  const bool able =
      window
          ? nccl_->ncclCommWindowRegister != nullptr && nccl_->ncclCommWindowDeregister != nullptr
          : nccl_->ncclCommRegister != nullptr && nccl_->ncclCommDeregister != nullptr;
  if (!able)
    return Unimplemented("NCCL " + nccl::VersionText(nccl_->version()) + " registers no " +
                         (window ? "windows (2.27 does)" : "buffers (2.19 does)"));
  CKPT_RETURN_IF_ERROR(device_->CheckPointer(memory));
  members_[index]->buffers.push_back({memory, bytes, window, flags});
  return OkStatus();
}

Status NcclCommunicators::Graph(uint32_t index, const std::string& graph, bool held) {
  if (index >= members_.size())
    return InvalidArgument("'" + name_ + "' has no communicator " + std::to_string(index));
  auto& graphs = members_[index]->graphs;
  if (held) {
    if (members_[index]->comm == nullptr)
      return FailedPrecondition("communicator '" + members_[index]->name + "' is down");
    ++graphs[graph];
    return OkStatus();
  }
  const auto it = graphs.find(graph);
  if (it == graphs.end())
    return NotFound("no graph '" + graph + "' holds communicator '" + members_[index]->name + "'");
  if (--it->second == 0) graphs.erase(it);
  return OkStatus();
}

CommPtr NcclCommunicators::handle(uint32_t index) const {
  return up() && index < members_.size() ? members_[index]->comm : nullptr;
}

nccl::WindowPtr NcclCommunicators::window(const void* memory) const {
  for (const auto& member : members_) {
    for (const Buffer& buffer : member->buffers) {
      if (buffer.window && buffer.memory == memory) return buffer.registered_window;
    }
  }
  return nullptr;
}

std::vector<nccl::Finding> NcclCommunicators::Report() const {
  return nccl::Preflight(*nccl_, *device_, world_, NoGraphs());
}

// ---- errors

Status NcclCommunicators::Named(Status status, const Member& member) const {
  return std::move(status).Annotate("rank " + std::to_string(rank_) + ": communicator '" +
                                    member.name + "'");
}

Status NcclCommunicators::StatusOf(Result32 result, const char* call, const Member& member) const {
  return Named(nccl_->StatusOf(result, call, member.comm), member);
}

Status NcclCommunicators::NoGraphs() const {
  for (const auto& member : members_) {
    if (member->graphs.empty() || member->comm == nullptr) continue;
    std::string names;
    for (const auto& [graph, times] : member->graphs)
      names += (names.empty() ? "'" : ", '") + graph + "'";
    return Named(FailedPrecondition("captured graph " + names +
                                    " holds it, and NCCL waits for graphs for ever: destroy it, "
                                    "and say so, before the step that stops"),
                 *member);
  }
  return OkStatus();
}

// ---- waits

Status NcclCommunicators::Ready(const Member& member, CommPtr comm, const char* call,
                                const Deadline& deadline) {
  for (int turn = 0;; ++turn) {
    Result32 state = nccl::kSuccess;
    CKPT_RETURN_IF_ERROR(
        StatusOf(nccl_->ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError", member));
    if (state == nccl::kSuccess) return OkStatus();
    if (state != nccl::kInProgress) return StatusOf(state, call, member);
    if (deadline.Expired())
      return Named(deadline.Exceeded().Annotate(std::string(call) +
                                                " is in progress, a rank may be missing"),
                   member);
    Pause(turn);
  }
}

Status NcclCommunicators::Await(device::Event* event, const Member& member, const char* what,
                                const Deadline& deadline) {
  for (int turn = 0;; ++turn) {
    Result<bool> fired = device_->Query(event);
    if (!fired.ok()) return Named(std::move(fired).status().Annotate(what), member);
    // Also when it has fired: what NCCL gave up on has left the stream, too.
    Result32 state = nccl::kSuccess;
    if (member.comm != nullptr) {
      CKPT_RETURN_IF_ERROR(StatusOf(nccl_->ncclCommGetAsyncError(member.comm, &state),
                                    "ncclCommGetAsyncError", member));
      CKPT_RETURN_IF_ERROR(StatusOf(state, what, member));
    }
    if (*fired) return OkStatus();
    if (deadline.Expired()) {
      return Named(deadline.Exceeded().Annotate(std::string(what) +
                                                ": what is on the stream does not end, a rank may "
                                                "be missing or call in another order"),
                   member);
    }
    Pause(turn);
  }
}

Status NcclCommunicators::Drain(device::StreamHandle stream, const Member& member, const char* what,
                                const Deadline& deadline) {
  Result<device::Event*> event = device_->RecordEvent(stream);
  if (!event.ok()) return Named(std::move(event).status().Annotate(what), member);
  Status status = Await(*event, member, what, deadline);
  device_->FreeEvent(*event);
  return status;
}

// ---- down

bool NcclCommunicators::AllDown() const {
  return std::none_of(members_.begin(), members_.end(),
                      [](const auto& member) { return member->comm != nullptr; });
}

Status NcclCommunicators::AllReady(const Deadline& deadline) {
  for (const auto& member : members_) {
    if (member->comm == nullptr) continue;
    CKPT_RETURN_IF_ERROR(Ready(*member, member->comm, "an earlier operation", deadline));
  }
  return OkStatus();
}

Status NcclCommunicators::Quiesce(const Deadline& deadline) {
  if (!up()) return OkStatus();
  CKPT_FAULT("comm.nccl.quiesce");
  CKPT_RETURN_IF_ERROR(NoGraphs());
  if (!suspect_.ok()) return Status(suspect_).Annotate("its check failed");
  CKPT_RETURN_IF_ERROR(AllReady(deadline));
  CKPT_RETURN_IF_ERROR(Drain(nullptr, *members_[kWorld], "draining the default stream", deadline));
  for (const device::StreamHandle stream : streams_)
    CKPT_RETURN_IF_ERROR(Drain(stream, *members_[kWorld], "draining a stream", deadline));
  // What a split gave up on has left its stream.
  CKPT_RETURN_IF_ERROR(AllReady(deadline));
  quiesced_ = true;
  return OkStatus();
}

// Splits before what they were split from. What does not end in time is left to abort.
void NcclCommunicators::FinalizeAll(const Deadline& deadline) {
  const auto failed = [](const Status& status) {
    if (!status.ok()) LogWarning(status.ToString() + "; it is aborted instead");
    return !status.ok();
  };
  std::vector<Member*> finalizing;
  const Status in_context = device_->InItsContext([&]() -> Status {
    for (auto it = members_.rbegin(); it != members_.rend(); ++it) {
      Member* const member = it->get();
      if (member->comm == nullptr || failed(DeregisterBuffers(member))) continue;
      if (!failed(StatusOf(nccl_->ncclCommFinalize(member->comm), "ncclCommFinalize", *member)))
        finalizing.push_back(member);
    }
    return OkStatus();
  });
  failed(in_context);
  for (Member* member : finalizing)
    member->finalized = !failed(Ready(*member, member->comm, "ncclCommFinalize", deadline));
}

Status NcclCommunicators::AbortAndDestroy(const Deadline& deadline) {
  const Deadline until = EndOfAborts(deadline);
  Status first;
  for (const bool finalized : {false, true}) {
    std::vector<std::pair<Member*, std::unique_ptr<nccl::BoundedCall>>> calls;
    for (auto it = members_.rbegin(); it != members_.rend(); ++it) {
      Member* const member = it->get();
      if (member->comm == nullptr || member->finalized != finalized) continue;
      const char* const call = finalized ? "ncclCommDestroy" : "ncclCommAbort";
      calls.emplace_back(member, std::make_unique<nccl::BoundedCall>(
                                     "rank " + std::to_string(rank_) + ": communicator '" +
                                         member->name + "': " + call,
                                     [nccl = nccl_, comm = member->comm, finalized, call] {
                                       return nccl->StatusOf(finalized ? nccl->ncclCommDestroy(comm)
                                                                       : nccl->ncclCommAbort(comm),
                                                             call, nullptr);
                                     }));
    }
    for (auto& [member, call] : calls) {
      Status status = call->Wait(until);
      if (status.ok()) {
        member->comm = nullptr;
        member->finalized = false;
      } else if (first.ok()) {
        if (status.code() != Code::kDeadlineExceeded) status = Named(std::move(status), *member);
        first = status.Annotate("NCCL kept a communicator; start the process again");
      }
    }
    // With one that hangs the others may hold the same memory.
    if (!first.ok()) return first;
  }
  return first;
}

Status NcclCommunicators::Down(const Deadline& deadline) {
  if (!lost_.ok()) return lost_;
  if (AllDown()) {
    fresh_id_.clear();
    return FreeScratch();
  }
  CKPT_FAULT("comm.nccl.down");
  CKPT_RETURN_IF_ERROR(NoGraphs());
  fresh_id_.clear();
  suspect_ = OkStatus();
  if (std::exchange(quiesced_, false))
    FinalizeAll(deadline.Min(Deadline("finalizing NCCL communicators", kNcclFinalizeMax)));
  Status status = AbortAndDestroy(deadline);
  // A single call of the driver that fails is no reason to take the stream for one that hangs.
  if (status.ok()) status = DrainScratch(deadline);
  if (!status.ok() && status.code() != Code::kDeadlineExceeded) {
    const Status again = AllDown() ? DrainScratch(deadline) : status;
    if (again.ok()) LogWarning(status.ToString() + "; it worked the second time");
    status = again;
  }
  if (!status.ok()) return lost_ = status;
  for (const auto& member : members_) {
    for (Buffer& buffer : member->buffers)
      buffer = {buffer.memory, buffer.bytes, buffer.window, buffer.flags};
  }
  return FreeScratch();
}

// ---- up

// Rank 0's failure is told to those that wait for it: they need not wait for the deadline.
Result<nccl::UniqueId> NcclCommunicators::AgreeOnId(const std::string& fresh_id, KeyValue* kv,
                                                    const Deadline& deadline) {
  nccl::UniqueId id{};
  if (rank_ == 0) {
    const Status drawn =
        StatusOf(nccl_->ncclGetUniqueId(&id), "ncclGetUniqueId", *members_[kWorld]);
    const std::string told = drawn.ok() ? std::string(id.bytes, sizeof id.bytes) + fresh_id
                                        : "!" + drawn.ToString().substr(0, kFreshIdBytesMax);
    CKPT_RETURN_IF_ERROR(kv->Set(kIdKey, (drawn.ok() ? "+" : "") + told));
    CKPT_RETURN_IF_ERROR(drawn);
    return id;
  }
  CKPT_ASSIGN_OR_RETURN(const std::string told, kv->Wait(kIdKey, deadline));
  if (told.empty() || told[0] != '+' || told.size() < 1 + sizeof id.bytes)
    return Aborted("rank 0 has no id: " + told.substr(std::min<size_t>(1, told.size())));
  if (told.compare(1 + sizeof id.bytes, std::string::npos, fresh_id) != 0)
    return FailedPrecondition("rank 0 builds under another id");
  std::memcpy(id.bytes, told.data() + 1, sizeof id.bytes);
  return id;
}

Status NcclCommunicators::Build(Member* member, const nccl::UniqueId& id,
                                const Deadline& deadline) {
  if (member == members_[kWorld].get()) {
    CKPT_FAULT("comm.nccl.init");
    CKPT_RETURN_IF_ERROR(
        StatusOf(nccl_->ncclCommInitRankConfig(&member->comm, static_cast<int>(world_), id,
                                               static_cast<int>(rank_), member->config.get()),
                 "ncclCommInitRankConfig", *member));
    return Ready(*member, member->comm, "ncclCommInitRankConfig", deadline);
  }
  const Member& parent = *members_[member->parent];
  if (parent.comm == nullptr) return OkStatus();  // this rank is not part of that either
  CKPT_FAULT("comm.nccl.split");
  CKPT_RETURN_IF_ERROR(StatusOf(nccl_->ncclCommSplit(parent.comm, member->color, member->key,
                                                     &member->comm, member->config.get()),
                                "ncclCommSplit", *member));
  CKPT_RETURN_IF_ERROR(Ready(*member, parent.comm, "ncclCommSplit", deadline));
  if (member->comm == nullptr) return OkStatus();
  return Ready(*member, member->comm, "ncclCommSplit", deadline);
}

Status NcclCommunicators::RegisterBuffers(Member* member, const Deadline& deadline) {
  if (member->comm == nullptr) return OkStatus();
  for (Buffer& buffer : member->buffers) {
    const char* const call = buffer.window ? "ncclCommWindowRegister" : "ncclCommRegister";
    const Result32 result =
        buffer.window
            ? nccl_->ncclCommWindowRegister(member->comm, buffer.memory, buffer.bytes,
                                            &buffer.registered_window, buffer.flags)
            : nccl_->ncclCommRegister(member->comm, buffer.memory, buffer.bytes, &buffer.handle);
    CKPT_RETURN_IF_ERROR(StatusOf(result, call, *member));
    CKPT_RETURN_IF_ERROR(Ready(*member, member->comm, call, deadline));
  }
  return OkStatus();
}

Status NcclCommunicators::DeregisterBuffers(Member* member) {
  for (auto buffer = member->buffers.rbegin(); buffer != member->buffers.rend(); ++buffer) {
    if (buffer->registered_window != nullptr)
      CKPT_RETURN_IF_ERROR(
          StatusOf(nccl_->ncclCommWindowDeregister(
                       member->comm, std::exchange(buffer->registered_window, nullptr)),
                   "ncclCommWindowDeregister", *member));
    if (buffer->handle != nullptr)
      CKPT_RETURN_IF_ERROR(
          StatusOf(nccl_->ncclCommDeregister(member->comm, std::exchange(buffer->handle, nullptr)),
                   "ncclCommDeregister", *member));
  }
  return OkStatus();
}

Status NcclCommunicators::Up(const std::string& fresh_id, KeyValue* kv, const Deadline& deadline) {
  if (!lost_.ok()) return lost_;
  if (up()) {
    if (fresh_id_ == fresh_id) return OkStatus();
    return FailedPrecondition("communicator '" + name_ + "' is up under another id");
  }
  if (fresh_id.empty() || fresh_id.size() > kFreshIdBytesMax)
    return InvalidArgument("a fresh id of " + std::to_string(fresh_id.size()) + " bytes");
  Status status = device_->InItsContext([&]() -> Status {
    CKPT_ASSIGN_OR_RETURN(const nccl::UniqueId id, AgreeOnId(fresh_id, kv, deadline));
    for (const auto& member : members_) CKPT_RETURN_IF_ERROR(Build(member.get(), id, deadline));
    for (const auto& member : members_)
      CKPT_RETURN_IF_ERROR(RegisterBuffers(member.get(), deadline));
    return MakeScratch();
  });
  if (status.ok()) {
    fresh_id_ = fresh_id;
    return OkStatus();
  }
  // Peers that have come further learn of it by the abort, or by their deadline.
  const Status down = Down(deadline);
  if (!down.ok()) LogError(down.ToString());
  return status;
}

// ---- the check

Status NcclCommunicators::MakeScratch() {
  CKPT_RETURN_IF_ERROR(FreeScratch());  // left by a Down that failed
  CKPT_ASSIGN_OR_RETURN(scratch_.stream, device_->CreateStream());
  CKPT_ASSIGN_OR_RETURN(void* const memory, device_->Alloc((world_ + uint64_t{1}) * kWordBytes));
  scratch_.memory = static_cast<std::byte*>(memory);
  return OkStatus();
}

Status NcclCommunicators::DrainScratch(const Deadline& deadline) {
  if (scratch_.stream == nullptr) return OkStatus();
  // Aborted operations leave the stream; before that they may write.
  return Drain(scratch_.stream, *members_[kWorld], "draining the stream of a check",
               EndOfAborts(deadline));
}

// What fails is tried again by the next Down.
Status NcclCommunicators::FreeScratch() {
  Status first;
  if (scratch_.stream != nullptr) {
    first = device_->DestroyStream(scratch_.stream);
    if (first.ok()) scratch_.stream = nullptr;
  }
  if (scratch_.memory != nullptr) {
    Status freed = device_->Free(scratch_.memory);
    if (freed.ok()) scratch_.memory = nullptr;
    if (first.ok()) first = std::move(freed);
  }
  return first.Annotate("rank " + std::to_string(rank_) + ": what a check used");
}

Result<std::vector<std::string>> NcclCommunicators::Gather(const Member& member,
                                                           const std::string& mine,
                                                           const Deadline& deadline) {
  int count = 0;
  CKPT_RETURN_IF_ERROR(
      StatusOf(nccl_->ncclCommCount(member.comm, &count), "ncclCommCount", member));
  if (count < 1 || count > static_cast<int>(world_))
    return Named(DataLoss("it has " + std::to_string(count) + " ranks"), member);
  std::byte* const all = scratch_.memory + kWordBytes;
  CKPT_RETURN_IF_ERROR(device_->CopyToDevice(scratch_.stream, scratch_.memory, mine.data(),
                                             device::CopyShape{kWordBytes}));
  CKPT_RETURN_IF_ERROR(device_->InItsContext([&] {
    return StatusOf(nccl_->ncclAllGather(scratch_.memory, all, kWordBytes, nccl::kUint8,
                                         member.comm, Stream(scratch_.stream)),
                    "ncclAllGather", member);
  }));
  CKPT_RETURN_IF_ERROR(Ready(member, member.comm, "ncclAllGather", deadline));
  // Before the copy: one into pageable memory waits for the stream without a deadline.
  CKPT_RETURN_IF_ERROR(Drain(scratch_.stream, member, "ncclAllGather", deadline));
  std::string bytes(static_cast<size_t>(count) * kWordBytes, '\0');
  CKPT_RETURN_IF_ERROR(
      device_->CopyToHost(scratch_.stream, bytes.data(), all, device::CopyShape{bytes.size()}));
  CKPT_RETURN_IF_ERROR(Drain(scratch_.stream, member, "reading what came", deadline));
  std::vector<std::string> words;
  for (size_t at = 0; at < bytes.size(); at += kWordBytes)
    words.push_back(bytes.substr(at, kWordBytes));
  return words;
}

// Everyone sends random bytes, digests all that came with the sender's place, and compares the
// digests: equal only if all see all others, in the same places.
Status NcclCommunicators::VerifyOne(const Member& member, const Deadline& deadline) {
  int rank = -1;
  CKPT_RETURN_IF_ERROR(
      StatusOf(nccl_->ncclCommUserRank(member.comm, &rank), "ncclCommUserRank", member));
  const auto word = [](const std::string& text) {
    std::string padded = DigestOf(AsBytes(text)).ToString();
    padded.resize(kWordBytes, '.');
    return padded;
  };
  const std::string nonce = word(JobId::Random().ToString() + std::to_string(rank));
  CKPT_ASSIGN_OR_RETURN(const std::vector<std::string> nonces, Gather(member, nonce, deadline));
  std::string seen = fresh_id_;
  for (const std::string& one : nonces) seen += one;
  const std::string mine = word(seen);
  CKPT_ASSIGN_OR_RETURN(const std::vector<std::string> digests, Gather(member, mine, deadline));
  for (size_t r = 0; r < digests.size(); ++r) {
    if (digests[r] != mine)
      return Named(DataLoss("its rank " + std::to_string(r) + " saw other bytes than its rank " +
                            std::to_string(rank)),
                   member);
  }
  if (rank < 0 || static_cast<size_t>(rank) >= nonces.size() ||
      nonces[static_cast<size_t>(rank)] != nonce)
    return Named(DataLoss("its own bytes did not come back"), member);
  return OkStatus();
}

Status NcclCommunicators::Verify(const Deadline& deadline) {
  if (!up()) return FailedPrecondition("communicator '" + name_ + "' is down");
  CKPT_FAULT("comm.nccl.verify");
  for (const auto& member : members_) {
    if (member->comm == nullptr) continue;
    Status status = VerifyOne(*member, deadline);
    // A peer may wait for what this rank never sent: nothing ends in order from here.
    if (!status.ok()) return suspect_ = status;
  }
  return OkStatus();
}

}  // namespace ckpt::comm
