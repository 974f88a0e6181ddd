// The other end of a rank: a ckpt-run of one rank that does nothing by itself. A real socket, real
// frames, a real control page, real staging memory; the test says when to propose, commit, release,
// roll back or die. What it may do to the word is what coordinator/gang/member.h does.
//
// Threads: one at a time (the test's), while the rank runs on another.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libckpt/base/clock.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/engine/staging.h"
#include "libckpt/os/memfd.h"
#include "libckpt/wire/channel.h"
#include "libckpt/wire/page.h"

namespace ckpt::testing {

class RunPeer {
 public:
  struct Config {
    std::string socket;  // a path that does not exist yet
    JobId job_id = JobId::Random();
    uint64_t epoch = 1;
    uint32_t rank = 0, world = 1;
    std::string store;
    wire::ResumeKind resume = wire::ResumeKind::kNone;
    AttemptId resume_from;
  };

  // Listens; a page is made.
  static Result<std::unique_ptr<RunPeer>> Listen(const Config& config);

  // Takes the next connection, reads HELLO, answers WELCOME with the page.
  Result<wire::Hello> Welcome(const Deadline& deadline);
  // The same, but answered with FAILED.
  Status Refuse(const Status& why, const Deadline& deadline);
  // Reads LAYOUT, plans for one rank, formats both slots and sends them.
  Status SendSlots(const Deadline& deadline);

  // The next frame of type T; others that come before it are kept for later calls.
  template <typename T>
  Result<T> Expect(const Deadline& deadline) {
    CKPT_ASSIGN_OR_RETURN(wire::Frame frame, Take(deadline, [](const wire::Frame& f) {
                            return std::holds_alternative<T>(f.body);
                          }));
    last_request_ = frame.request;
    return std::get<T>(std::move(frame.body));
  }
  // An answer to what Expect returned last; and a frame out of turn.
  Status Answer(wire::Body body) { return Send(last_request_, std::move(body)); }
  Status Tell(wire::Body body) { return Send(0, std::move(body)); }
  // Answers RESTORE_OPEN with these regions.
  Status ServeRam(const std::vector<const os::Memfd*>& regions, const Deadline& deadline);

  // The word. False if the rank got there first.
  bool Propose(uint32_t cut, WordState proposed, const wire::Order& order);
  bool Raise(uint32_t cut, const wire::Order& order);
  bool Commit();
  bool Stage();     // barrier 1: COMMITTED_STOP → STAGING
  bool Withdraw();  // PROPOSED or COMMITTED → IDLE
  bool Settle();    // REFUSED or STAGING → IDLE
  void StoreOutcome(wire::PageOutcome outcome);
  void StoreOrder(const wire::Order& order) { wire::StoreOrder(page_, order); }
  Word word() const { return wire::LoadWord(*page_); }
  const wire::ControlPage& page() const { return *page_; }
  // Waits until `done`; false at the deadline.
  bool Await(const std::function<bool()>& done, const Deadline& deadline) const;

  engine::StagingRegion* region(uint32_t slot) { return slots_[slot].region.get(); }
  const os::Memfd& memfd(uint32_t slot) const { return slots_[slot].memfd; }

  void HangUp();      // the connection breaks; the listener stays
  void Die();         // nobody listens any more
  Status ComeBack();  // listens again at the same path, with the same page
  Status FreshPage();

 private:
  struct Slot {
    os::Memfd memfd;
    os::Mapping mapping;
    std::unique_ptr<engine::StagingRegion> region;
  };
  explicit RunPeer(Config config) : config_(std::move(config)) {}
  Status Send(uint32_t request, wire::Body body, std::vector<int> fds = {});
  Result<wire::Frame> Take(const Deadline& deadline,
                           const std::function<bool(const wire::Frame&)>& wanted);
  bool Move(const std::function<std::optional<Word>(Word)>& to);

  const Config config_;
  os::UniqueFd listener_;
  wire::Channel channel_;
  os::Memfd page_memfd_;
  std::vector<os::Mapping> page_mappings_;
  wire::ControlPage* page_ = nullptr;
  std::array<Slot, kStagingSlotsMax> slots_;
  std::deque<wire::Incoming<wire::Frame>> kept_;
  std::vector<os::UniqueFd> last_fds_;
  uint32_t last_request_ = 0;
};

}  // namespace ckpt::testing
