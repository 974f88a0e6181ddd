// A gang laid out on a table, for tests that play one order of events by hand: messages lie in a
// bag until the test delivers them, once, twice or never; words are plain; nothing moves by itself.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/gang/leader.h"
#include "coordinator/gang/member.h"

namespace ckpt::gang::sim {

inline constexpr int64_t kSecond = 1'000'000'000;

class Table : public Pages {
 public:
  struct Letter {
    uint32_t member = 0;
    Msg msg;
  };

  // All members are linked; `configure` may change the leader's configuration.
  Table(uint32_t members, uint32_t ranks_each,
        const std::function<void(LeaderConfig*)>& configure = {});

  // ---- the machines
  void Leads(const LeaderEvent& event);                  // a step of the leader
  void Acts(uint32_t member, const MemberEvent& event);  // a step of a member
  void Passes(int64_t ns) { now += ns; }
  void TickAll();
  // The leader dies; its page stays. It comes back with `Return`.
  void LeaderDies();
  void LeaderReturns(bool all_join = true);

  // ---- messages. Takes the oldest of this type (and member) from the bag; false if there is none.
  bool ToMember(uint32_t member, MsgType type, bool keep = false);
  bool ToLeader(uint32_t member, MsgType type, bool keep = false);
  void DeliverAll();  // until both bags are empty
  void Lose();        // empties both bags
  uint32_t CountToMember(uint32_t member, MsgType type) const;

  // ---- ranks
  void StepsTo(uint32_t rank,
               uint32_t boundary);  // step() up to this boundary, no look at the word
  void ReachCut(uint32_t rank);     // up to the cut in its word, and pokes its member
  void Seals(uint32_t rank);        // what its order line asks for
  void CommsDown(uint32_t rank, Status status = OkStatus());
  void CommsUp(uint32_t rank, Status status = OkStatus());
  void Exits(uint32_t rank, int code = 0, int signal = 0);
  void AllReach();
  void AllSeal();
  void AllDown();
  void Released();  // all ranks exit with 75 and every member has measured it
  // A whole save of the program at the ranks' boundary, up to GANG_COMPLETE; false if refused.
  bool ProgramSave();
  void Written(uint32_t member, uint32_t attempt, Status status = OkStatus());

  // From a command to the barrier named; everything is delivered.
  void UntilQuiesced(const Command& command);
  void UntilSealed(const Command& command);
  void UntilDown(const Command& command);

  const Report* LastReport(OpPhase phase) const;
  template <typename Action>
  uint32_t Count(uint32_t member) const {
    uint32_t count = 0;
    for (const auto& [owner, action] : done) {
      count += owner == member && std::holds_alternative<Action>(action) ? 1 : 0;
    }
    return count;
  }
  template <typename Action>
  const Action* Last(uint32_t member) const {
    for (auto it = done.rbegin(); it != done.rend(); ++it) {
      if (it->first != member) continue;
      if (const Action* action = std::get_if<Action>(&it->second)) return action;
    }
    return nullptr;
  }
  uint32_t MemberOf(uint32_t rank) const { return rank / ranks_each_; }

  // Pages
  Word Load(Rank rank) override { return words[rank.value()]; }
  bool Cas(Rank rank, Word expected, Word desired) override;
  void StoreOrder(Rank rank, const RankOrder& order) override { orders[rank.value()] = order; }
  void Wake(Rank) override {}
  int64_t StepNs(Rank) override { return step_ns; }

  int64_t now = 1000 * kSecond;
  int64_t step_ns = 10'000'000;  // as the ranks have measured it
  std::vector<Word> words;
  std::vector<RankOrder> orders;
  std::vector<Letter> to_members, to_leader;
  std::vector<std::pair<uint32_t, MemberAction>> done;  // what members asked of their ckpt-run
  std::vector<LeaderAction> led;                        // what the leader asked of its own
  std::vector<Report> reports;
  std::string page;            // the leader's
  bool hold_persists = false;  // stores are lost until further notice
  bool auto_mark = true;       // MarkDraining succeeds at once
  bool auto_commit = true;     // CommitAttempt succeeds at once
  std::unique_ptr<Leader> leader;
  std::vector<std::unique_ptr<Member>> members;

 private:
  uint32_t ranks_each_;
  LeaderConfig config_;
};

}  // namespace ckpt::gang::sim
