#include "libckpt/os/uring/uring_file.h"

#include <liburing.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "libckpt/base/fault.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/mutex.h"

namespace ckpt::os {
namespace {

constexpr long long kRingTryMaxSeconds = 5;

bool Aligned(const void* memory, uint64_t offset, uint64_t bytes) {
  return (reinterpret_cast<uintptr_t>(memory) | offset | bytes) % kPageBytes == 0;
}

// One ring of one file and one thread: the kernel hands a transfer that has ended to the thread
// that started it, so whoever awaits his own is woken once. Others may await it too: whoever does
// reaps for everybody. There is no thread of its own.
class Ring {
 public:
  ~Ring() {
    if (!made_) return;
    {
      MutexLock lock(mutex_);
      while (under_way_ > 0) Reap();  // I1
    }
    io_uring_queue_exit(&ring_);
  }
  // False if the system has none to give.
  bool Make() {
    // A thread that computes is not interrupted for what has ended; an old kernel does it.
    made_ = io_uring_queue_init(kFileDepthMax, &ring_, IORING_SETUP_COOP_TASKRUN) == 0 ||
            io_uring_queue_init(kFileDepthMax, &ring_, 0) == 0;
    return made_;
  }

  // The number of the transfer, or nothing if the queue refuses it. Blocks: while it is full.
  std::optional<uint64_t> Start(int fd, bool write, uint64_t offset, MutableByteSpan memory) {
    uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      while (under_way_ == kFileDepthMax) Reap();
      ++under_way_;
      number = ++last_number_;
    }
    if (Submit(fd, write, offset, memory, number)) return number;
    MutexLock lock(mutex_);
    --under_way_;
    return std::nullopt;
  }

  // Bytes moved, or the negative error.
  int Await(uint64_t number) {
    MutexLock lock(mutex_);
    for (;;) {
      if (const auto it = ended_.find(number); it != ended_.end()) {
        const int result = it->second;
        ended_.erase(it);
        return result;
      }
      Reap();
    }
  }

 private:
  bool Submit(int fd, bool write, uint64_t offset, MutableByteSpan memory, uint64_t number) {
    MutexLock lock(submit_mutex_);
    if (refused_) return false;
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return false;
    const auto bytes = static_cast<unsigned>(memory.size());
    if (write)
      io_uring_prep_write(sqe, fd, memory.data(), bytes, offset);
    else
      io_uring_prep_read(sqe, fd, memory.data(), bytes, offset);
    sqe->user_data = number;
    int submitted;
    do {
      submitted = io_uring_submit(&ring_);
    } while (submitted == -EINTR);
    if (submitted == 1) return true;
    // It stands in the queue and could be taken later: as nothing.
    io_uring_prep_nop(sqe);
    sqe->user_data = 0;
    refused_ = true;
    return false;
  }

  // Waits until something has ended, as pread and pwrite wait for a disk: without a deadline that
  // this process could keep. One thread waits in the kernel, the others for it.
  void Reap() CKPT_REQUIRES(mutex_) {
    if (reaping_) return reaped_.Wait(mutex_);
    reaping_ = true;
    mutex_.Unlock();
    io_uring_cqe* cqe = nullptr;
    while (io_uring_wait_cqe(&ring_, &cqe) == -EINTR) {
    }
    mutex_.Lock();
    while (cqe != nullptr) {
      if (cqe->user_data != 0) {
        ended_[cqe->user_data] = cqe->res;
        --under_way_;
      }
      io_uring_cqe_seen(&ring_, cqe);
      if (io_uring_peek_cqe(&ring_, &cqe) != 0) cqe = nullptr;
    }
    reaping_ = false;
    reaped_.NotifyAll();
  }

  io_uring ring_{};
  bool made_ = false;
  Mutex submit_mutex_;  // the queue's side of the ring; the other side is of whoever reaps
  bool refused_ CKPT_GUARDED_BY(submit_mutex_) = false;
  Mutex mutex_;
  CondVar reaped_;
  bool reaping_ CKPT_GUARDED_BY(mutex_) = false;
  uint32_t under_way_ CKPT_GUARDED_BY(mutex_) = 0;
  uint64_t last_number_ CKPT_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, int> ended_ CKPT_GUARDED_BY(mutex_);  // not awaited yet
};

class UringFile final : public File {
 public:
  explicit UringFile(std::unique_ptr<File> base) : base_(std::move(base)) {}

  Status PWrite(uint64_t offset, ByteSpan data) override { return base_->PWrite(offset, data); }
  Status PRead(uint64_t offset, MutableByteSpan out) override { return base_->PRead(offset, out); }
  Result<size_t> PReadSome(uint64_t offset, MutableByteSpan out) override {
    return base_->PReadSome(offset, out);
  }

  Result<Transfer> StartWrite(uint64_t offset, ByteSpan data) override {
    const int ring = RingFor(data.data(), offset, data.size());
    if (ring < 0 || failed_) return base_->StartWrite(offset, data);
    CKPT_FAULT("os.file.pwrite");
    return Start(ring, true, offset, {const_cast<std::byte*>(data.data()), data.size()});
  }
  Result<Transfer> StartRead(uint64_t offset, MutableByteSpan out) override {
    const int ring = RingFor(out.data(), offset, out.size());
    if (ring < 0) return base_->StartRead(offset, out);
    CKPT_FAULT("os.file.pread");
    return Start(ring, false, offset, out);
  }
  Result<size_t> Await(const Transfer& transfer) override {
    if (transfer.number == 0) return base_->Await(transfer);
    const int result = RingAt(static_cast<int>(transfer.number >> kRingShift))
                           ->Await(transfer.number & kNumberMask);
    CKPT_FAULT("os.file.await");
    const size_t moved = result > 0 ? static_cast<size_t>(result) : 0;
    if (moved == transfer.memory.size()) return moved;
    return Rest(transfer, moved);
  }
  uint32_t depth() const override { return kFileDepthMax; }

  Status Allocate(uint64_t bytes) override { return base_->Allocate(bytes); }
  Status Truncate(uint64_t bytes) override { return base_->Truncate(bytes); }
  Status Sync() override {
    Status status = base_->Sync();
    if (!status.ok()) failed_ = true;
    return status;
  }
  Status Close() override { return base_->Close(); }
  Result<uint64_t> Size() override { return base_->Size(); }
  bool direct() const override { return base_->direct(); }
  int descriptor() const override { return base_->descriptor(); }
  const std::string& path() const override { return base_->path(); }

 private:
  struct ThreadRing {
    std::thread::id thread;
    std::unique_ptr<Ring> ring;  // null: it got none
  };

  // The ring of this thread, made when it is first needed; -1: what is to be moved goes without.
  int RingFor(const void* memory, uint64_t offset, uint64_t bytes) {
    if (!base_->direct() || bytes == 0 || bytes > kTransferBytesMax) return -1;
    if (base_->descriptor() < 0 || !Aligned(memory, offset, bytes)) return -1;
    const std::thread::id self = std::this_thread::get_id();
    MutexLock lock(mutex_);
    for (size_t i = 0; i < rings_.size(); ++i) {
      if (rings_[i].thread == self) return rings_[i].ring != nullptr ? static_cast<int>(i) : -1;
    }
    if (rings_.size() == kRingsMax) return -1;
    rings_.push_back({self, std::make_unique<Ring>()});
    if (!rings_.back().ring->Make()) rings_.back().ring.reset();
    return rings_.back().ring != nullptr ? static_cast<int>(rings_.size() - 1) : -1;
  }
  Ring* RingAt(int index) {
    MutexLock lock(mutex_);
    return rings_[static_cast<size_t>(index)].ring.get();
  }

  Result<Transfer> Start(int ring, bool write, uint64_t offset, MutableByteSpan memory) {
    const auto number = RingAt(ring)->Start(base_->descriptor(), write, offset, memory);
    if (number)
      return Transfer{static_cast<uint64_t>(ring) << kRingShift | *number, write, offset, memory};
    return write ? base_->StartWrite(offset, memory) : base_->StartRead(offset, memory);
  }

  // I2.
  Result<size_t> Rest(const Transfer& transfer, size_t moved) {
    const MutableByteSpan rest = transfer.memory.subspan(moved);
    if (transfer.write) {
      CKPT_RETURN_IF_ERROR(base_->PWrite(transfer.offset + moved, rest));
      return transfer.memory.size();
    }
    if (moved % kPageBytes != 0) return moved;  // the end of the file
    CKPT_ASSIGN_OR_RETURN(const size_t more, base_->PReadSome(transfer.offset + moved, rest));
    return moved + more;
  }

  static constexpr uint64_t kTransferBytesMax = uint64_t{1} << 30;
  static constexpr size_t kRingsMax = 64;  // threads of one file; of more, they go without
  static constexpr int kRingShift = 48;    // of a transfer's number
  static constexpr uint64_t kNumberMask = (uint64_t{1} << kRingShift) - 1;

  const std::unique_ptr<File> base_;
  std::atomic<bool> failed_{false};  // a sync did: then the base says so
  Mutex mutex_;
  // Destroyed before the file is closed.
  std::vector<ThreadRing> rings_ CKPT_GUARDED_BY(mutex_);
};

class Uring final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    return Queued(base_.Open(path, options));
  }
  Result<std::unique_ptr<File>> OpenBeneath(const std::string& dir, const std::string& name,
                                            const OpenOptions& options) override {
    return Queued(base_.OpenBeneath(dir, name, options));
  }
  Status MakeDir(const std::string& path) override { return base_.MakeDir(path); }
  Status MakeDirs(const std::string& path) override { return base_.MakeDirs(path); }
  Status Link(const std::string& from, const std::string& to) override {
    return base_.Link(from, to);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return base_.Rename(from, to);
  }
  Status RenameNoReplace(const std::string& from, const std::string& to) override {
    return base_.RenameNoReplace(from, to);
  }
  Status Unlink(const std::string& path) override { return base_.Unlink(path); }
  Status RemoveDir(const std::string& path) override { return base_.RemoveDir(path); }
  Status RemoveTree(const std::string& path) override { return base_.RemoveTree(path); }
  Result<std::vector<DirEntry>> List(const std::string& dir) override { return base_.List(dir); }
  Result<FileStat> Stat(const std::string& path) override { return base_.Stat(path); }
  Status SyncDir(const std::string& dir) override { return base_.SyncDir(dir); }

 private:
  // Through the page cache a ring gains nothing: its writes are copies, made while it is asked.
  static Result<std::unique_ptr<File>> Queued(Result<std::unique_ptr<File>> opened) {
    if (!opened.ok() || !(*opened)->direct()) return opened;
    return std::unique_ptr<File>(std::make_unique<UringFile>(std::move(opened).value()));
  }

  FileSystem& base_ = PosixFileSystem();
};

bool UringAllowed() {
  io_uring ring;
  if (io_uring_queue_init(kFileDepthMax, &ring, 0) != 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

// The error that stands in the way, 0 for none, and of what it is. A profile may let a ring be made
// and not be used.
std::pair<int, const char*> TryRing() {
  io_uring ring;
  if (const int made = io_uring_queue_init(kFileDepthMax, &ring, 0); made != 0)
    return {-made, "making a ring"};
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  int done = io_uring_submit(&ring);
  if (done >= 0) {
    __kernel_timespec wait{.tv_sec = kRingTryMaxSeconds, .tv_nsec = 0};
    io_uring_cqe* cqe = nullptr;
    done = io_uring_wait_cqe_timeout(&ring, &cqe, &wait);
  }
  io_uring_queue_exit(&ring);
  return {done < 0 ? -done : 0, "using a ring"};
}

// '0': everybody may; nothing where the kernel does not know the switch.
std::string DisabledBySysctl() {
  const auto file =
      PosixFileSystem().Open("/proc/sys/kernel/io_uring_disabled", OpenOptions::Read());
  std::byte digit{'0'};
  if (file.ok()) (*file)->PReadSome(0, {&digit, 1}).status().IgnoreError();
  return {static_cast<char>(digit)};
}

std::string WayToARing(int error) {
  if (const std::string off = DisabledBySysctl(); off != "0")
    return "set the sysctl kernel.io_uring_disabled to 0; it is " + off;
  if (error == ENOSYS) return "it came with Linux 5.1, and can be left out of a kernel";
  if (error == ENOMEM) return "raise the limit of locked memory (ulimit -l)";
  return "let the container's seccomp profile pass io_uring_setup, io_uring_enter and "
         "io_uring_register";
}

}  // namespace

Finding CheckUring() {
  const auto [error, what] = TryRing();
  const std::string name = "kernel: io_uring";
  if (error == 0) return {name, FindingLevel::kOk, "large files go through it", ""};
  return {name, FindingLevel::kWarn,
          ErrnoStatus(error, what).message() +
              "; large files are written and read by threads, which costs a little",
          WayToARing(error)};
}

FileSystem& UringFileSystem() {
  static FileSystem& fs = UringAllowed() ? *static_cast<FileSystem*>(new Uring) : PosixFileSystem();
  return fs;
}

}  // namespace ckpt::os
