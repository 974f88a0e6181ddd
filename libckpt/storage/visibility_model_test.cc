// All orders of events: processes that share one store, each paused for as long as it likes between
// any two system calls, decide by the functions of visibility.h; a breadth-first search over every
// reachable state checks the promises of docs/format/commit.md. Each rule left out alone must be
// found, else the search proves nothing.
//
//   old     epoch 2: commits B, acknowledges it, retires A
//   middle  epoch 3: claims, lists, collects garbage, commits C, retires A
//   young   epoch 4: claims, lists, collects garbage
//   drain   epoch 2's draining attempt X, committed while the others start
//
// A (epoch 1) is committed and acknowledged at the start, and EPOCH.2 names it. The store may crash
// once: what is not synced is lost. One step is one system call on the job's directory.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "libckpt/storage/visibility.h"

namespace ckpt::storage {
namespace {

enum : int { A, B, C, X, kAttempts };
constexpr char kNames[] = "ABCX";
constexpr std::array<uint64_t, kAttempts> kEpochOf = {1, 2, 3, 2};
enum : uint8_t { kNone, kVolatile, kDurable, kTorn };                         // a COMMIT
enum : uint8_t { kOwn = 0, kTrash2 = 2, kTrash3 = 3, kDead = 8, kGone = 9 };  // where it lies
enum : int { kOld, kMiddle, kYoung, kDrain, kProcesses };
enum Pc : uint8_t {
  kLook1,
  kRecord,
  kLink,
  kFill,
  kThen1,
  kThen2,
  kThen3,  // a commit
  kRetire,
  kRetireLook,
  kRetireDead,
  kClaim,
  kPromised,
  kRescue,
  kListNames,
  kListTrash,
  kPutList,
  kLookAfter,
  kRescueAgain,
  kCollect,
  kEnd
};

struct Rules {
  bool sync_before_ack = true;   // S1
  bool managed_looks = true;     // S2
  bool ack_after_record = true;  // S1, S2
  bool rescue = true;            // S3: and the second rename, to .dead
  bool list_trash = true;        // S3
  bool from_base = true;         // S4: a list is made from the list before it
  bool wait_for_list = true;     // S5
  bool mark = true;              // S5
  bool link_commit = true;       // S7
  bool list_decides = true;      // S8
  bool look_after_list = true;   // S9
  bool agree = true;             // S10
  bool carry = true;             // S10
};
struct Setting {
  std::array<bool, kProcesses> runs = {true, true, true, false};
  std::array<bool, 5> managed = {};  // by epoch
  bool crash = false;
  bool torn = false;
};

struct State {
  std::array<uint8_t, kAttempts> place{}, commit{}, acknowledged{}, fenced{};
  std::array<uint8_t, kProcesses> pc{};
  uint8_t claims = 0, lists = 0;           // bit n: epoch n
  std::array<uint8_t, 5> list{}, known{};  // EPOCH.n; lists that were complete when n was claimed
  std::array<uint8_t, 5> names{};          // of the listing under way
  std::array<uint8_t, 5> last{}, any{}, any_dead{}, listings{};  // listings so far
  uint8_t crashes_left = 0, coordinator = 0, recorded = 0;
  bool operator==(const State& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};
static_assert(std::has_unique_object_representations_v<State>);
struct Hash {
  size_t operator()(const State& s) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&s), sizeof s});
  }
};

AttemptId IdOf(int i) { return AttemptId{Epoch(kEpochOf[i]), Step(10 * (i + 1)), Attempt(1)}; }
bool Committed(const State& s, int i) {
  return s.commit[i] == kVolatile || s.commit[i] == kDurable;
}
int Highest(uint8_t bits) {
  int n = 0;
  for (int i = 1; i < 8; ++i) n = (bits >> i & 1) != 0 ? i : n;
  return n;
}
EpochList ListOf(const State& s, int n) {
  EpochList list{Epoch(static_cast<uint64_t>(n)), {}};
  if (n == 0) return list;
  for (int i = 0; i < kAttempts; ++i) {
    if ((s.list[n] >> i & 1) != 0) list.adopted.push_back(IdOf(i));
  }
  std::sort(list.adopted.begin(), list.adopted.end());
  return list;
}
Verdict Look(const State& s, int i) {
  const Epoch claim(static_cast<uint64_t>(Highest(s.claims)));
  return MayCommit(IdOf(i), {claim, ListOf(s, Highest(s.lists))});
}
bool Seen(const State& s, int i) {
  return s.place[i] == kOwn && IsVisible(IdOf(i), Committed(s, i), ListOf(s, Highest(s.lists)));
}

class Search {
 public:
  Search(Rules rules, Setting setting) : rules_(rules), setting_(setting) {}

  // The first violation with its shortest trace, or "".
  std::string Run() {
    State first;
    first.commit[A] = kDurable;
    first.acknowledged[A] = 1;
    first.claims = first.lists = 0b110;
    first.list[2] = 1 << A;
    first.crashes_left = setting_.crash ? 1 : 0;
    first.coordinator = 2;
    first.pc = {kLook1, kClaim, kClaim, kLook1};
    for (int p = 0; p < kProcesses; ++p) {
      if (!setting_.runs[p]) first.pc[p] = kEnd;
    }
    from_.emplace(first, Step{first, ""});
    queue_.push_back(first);
    while (!queue_.empty() && found_.empty()) {
      now_ = queue_.front();
      queue_.pop_front();
      moves_ = 0;
      Moves();
      const bool done =
          std::all_of(now_.pc.begin(), now_.pc.end(), [](uint8_t pc) { return pc == kEnd; });
      if (found_.empty() && moves_ == 0 && !done) Fail(now_, "somebody waits for ever");
    }
    return found_;
  }
  size_t states() const { return from_.size(); }

 private:
  struct Step {
    State from;
    std::string label;
  };

  // One step of some process: the state afterwards, whatever it violates.
  void To(const State& next, const std::string& label, const std::string& violation = "") {
    ++moves_;
    const bool fresh = from_.emplace(next, Step{now_, label}).second;
    if (!found_.empty()) return;
    const std::string wrong = violation.empty() ? Violation(next) : violation;
    if (!wrong.empty()) {
      from_[next] = Step{now_, label};
      Fail(next, wrong);
    } else if (fresh) {
      queue_.push_back(next);
    }
  }
  void Fail(const State& state, const std::string& what) {
    std::deque<std::string> trace;
    for (State s = state; !from_[s].label.empty(); s = from_[s].from)
      trace.push_front(from_[s].label);
    found_ = what;
    for (const std::string& label : trace) found_ += "\n  " + label;
  }

  std::string Violation(const State& s) const {
    const int n = Highest(s.lists);
    for (int i = 0; i < kAttempts; ++i) {
      const std::string name(1, kNames[i]);
      const bool here = s.place[i] == kOwn, newer = n > static_cast<int>(kEpochOf[i]);
      const bool promised = (s.recorded >> i & 1) != 0;
      if (s.acknowledged[i] && s.place[i] == kGone)
        return "acknowledged " + name + " was collected as garbage";
      if (s.acknowledged[i] && here && !Committed(s, i) && (!promised || newer))
        return "acknowledged " + name + " has no COMMIT";
      if (s.acknowledged[i] && here && Committed(s, i) && !Seen(s, i))
        return "acknowledged " + name + " is there and not visible";
      if (s.fenced[i] && Seen(s, i) && newer) return name + " was fenced and is visible";
    }
    if (s.fenced[X] && (s.list[3] | s.list[4]) >> X & 1)
      return "the adopted draining X was answered fenced";
    if (s.place[A] != kDead) return "";
    for (int i = 0; i < kAttempts; ++i) {
      if (i != A && s.acknowledged[i] && s.commit[i] == kDurable && Seen(s, i)) return "";
    }
    return "A was deleted and no other acknowledged, durable, visible checkpoint exists";
  }

  void Moves() {
    CommitMoves(kOld, 2, B, "old");
    if (now_.pc[kOld] != kEnd) RetireMoves(kOld, 2, "old");
    ClaimMoves(kMiddle, 3, "middle");
    CommitMoves(kMiddle, 3, C, "middle");
    RetireMoves(kMiddle, 3, "middle");
    if ((now_.claims >> 3 & 1) != 0) ClaimMoves(kYoung, 4, "young");
    CommitMoves(kDrain, 2, X, "drain");
    if (now_.crashes_left == 0) return;
    State next = now_;
    next.crashes_left = 0;
    for (uint8_t& commit : next.commit) {
      if (commit == kVolatile) commit = kNone;
    }
    if (next.commit != now_.commit) To(next, "STORE CRASH: what was not synced is lost");
  }

  void CommitMoves(int p, int e, int i, const std::string& who) {
    const bool managed = setting_.managed[e];
    const bool looks = rules_.managed_looks || !managed;
    const std::string commit = std::string(" COMMIT.") + kNames[i];
    State next = now_;
    switch (now_.pc[p]) {
      case kLook1:
        if (!looks) {
          next.pc[p] = kRecord;
          return To(next, who + ": does not look");
        }
        return FirstLook(p, i, managed, who);
      case kRecord:
        if (now_.coordinator != e && i != X) {
          next.fenced[i] = 1;
          next.pc[p] = kEnd;
          return To(next, who + ": the coordinator refuses");
        }
        next.recorded |= static_cast<uint8_t>(1 << i);
        if (!rules_.ack_after_record) next.acknowledged[i] = 1;
        next.pc[p] = kLink;
        return To(next, who + ": the coordinator records" + commit);
      case kLink:
        next.pc[p] = now_.place[i] != kOwn ? kEnd : kThen1;
        if (next.pc[p] == kThen1 && now_.commit[i] == kNone) {
          const bool torn = setting_.torn && !rules_.link_commit;
          next.commit[i] = torn ? kTorn : kVolatile;
          next.pc[p] = torn ? kFill : kThen1;
        }
        return To(next, who + ": creates" + commit);
      case kFill:
        next.commit[i] = kVolatile;
        next.pc[p] = now_.commit[i] == kTorn ? kThen1 : kEnd;
        if (next.pc[p] == kEnd) next.commit[i] = now_.commit[i];
        return To(next, who + ": writes" + commit);
      case kThen1:
        return rules_.sync_before_ack ? Sync(p, i, who) : SecondLook(p, i, looks, who);
      case kThen2:
        return rules_.sync_before_ack ? SecondLook(p, i, looks, who) : Acknowledge(p, i, who);
      case kThen3:
        return rules_.sync_before_ack ? Acknowledge(p, i, who) : Sync(p, i, who);
      default:
        return;
    }
  }
  void FirstLook(int p, int i, bool managed, const std::string& who) {
    State next = now_;
    const Verdict verdict = Look(now_, i);
    if (verdict == Verdict::kYes) {
      next.pc[p] = managed ? kRecord : kLink;
      To(next, who + ": looks, may go on");
    } else if (verdict == Verdict::kFenced || !rules_.wait_for_list) {
      next.fenced[i] = 1;
      next.pc[p] = kEnd;
      To(next, who + ": looks, FENCED");
    } else {
      GiveUp(p, who);
    }
  }
  void SecondLook(int p, int i, bool looks, const std::string& who) {
    State next = now_;
    next.pc[p]++;
    if (!looks) return To(next, who + ": does not look again");
    const Verdict verdict = Look(now_, i);
    const bool newer = Highest(now_.claims) > static_cast<int>(kEpochOf[i]);
    const bool believes = rules_.list_decides || p == kDrain;
    if (!newer || (verdict == Verdict::kYes && believes))
      return To(next, who + ": looks again, may acknowledge");
    if (believes && verdict == Verdict::kUndecided) return GiveUp(p, who);
    next = now_;
    next.fenced[i] = 1;
    next.pc[p] = kEnd;
    To(next, who + ": looks again, FENCED");
  }
  // At the deadline of an undecided look: neither acknowledged nor fenced. (It may also wait.)
  void GiveUp(int p, const std::string& who) {
    State next = now_;
    next.pc[p] = kEnd;
    To(next, who + ": UNAVAILABLE, maybe applied");
  }
  void Sync(int p, int i, const std::string& who) {
    State next = now_;
    const bool there = now_.place[i] == kOwn && Committed(now_, i);
    if (there) next.commit[i] = kDurable;
    next.pc[p] = there ? NextThen(p) : static_cast<uint8_t>(kEnd);
    To(next, who + ": syncs");
  }
  void Acknowledge(int p, int i, const std::string& who) {
    State next = now_;
    next.acknowledged[i] = 1;
    next.pc[p] = NextThen(p);
    To(next, who + ": acknowledges " + kNames[i]);
  }
  uint8_t NextThen(int p) const {
    if (now_.pc[p] != kThen3) return static_cast<uint8_t>(now_.pc[p] + 1);
    return p == kDrain ? kEnd : kRetire;
  }

  void RetireMoves(int p, int e, const std::string& who) {
    State next = now_;
    const bool newer = Highest(now_.claims) > e;
    switch (now_.pc[p]) {
      case kRetire:
        // It keeps what an open attempt may refer to.
        next.pc[p] = now_.place[A] == kOwn && !setting_.runs[kDrain] ? kRetireLook : kEnd;
        if (next.pc[p] == kRetireLook) next.place[A] = static_cast<uint8_t>(e);
        return To(next, who + ": renames A to .trash");
      case kRetireLook:
        if (newer && next.place[A] == e) next.place[A] = kOwn;
        next.pc[p] = newer ? kEnd : kRetireDead;
        return To(next, who + (newer ? ": sees a newer claim, renames A back" : ": looks"));
      case kRetireDead: {
        next.pc[p] = kEnd;
        if (rules_.rescue && now_.place[A] != e) return To(next, who + ": A was rescued, stops");
        next.place[A] = kDead;
        std::string wrong;
        for (int n = e + 1; n <= 4; ++n) {
          if ((now_.lists >> n & 1) != 0 && (now_.list[n] >> A & 1) != 0)
            wrong = "a frozen epoch deleted A, which a newer list names";
        }
        return To(next, who + ": deletes A", wrong);
      }
      default:
        return;
    }
  }

  void ClaimMoves(int p, int e, const std::string& who) {
    State next = now_;
    switch (now_.pc[p]) {
      case kClaim:
        next.claims |= static_cast<uint8_t>(1 << e);
        next.known[e] = now_.lists;
        if (setting_.managed[e]) next.coordinator = static_cast<uint8_t>(e);
        next.pc[p] = kPromised;
        return To(next, who + ": claims");
      case kPromised: {
        std::string wrong;
        for (int i = 0; i < kAttempts && setting_.managed[e]; ++i) {
          if ((now_.recorded >> i & 1) == 0 || now_.place[i] != kOwn) continue;
          if (now_.commit[i] == kTorn) wrong = "a torn COMMIT holds its name against the promise";
          if (now_.commit[i] == kNone) next.commit[i] = kDurable;
        }
        next.pc[p] = rules_.rescue ? kRescue : kListNames;
        return To(next, who + ": creates promised COMMITs", wrong);
      }
      case kRescue:
      case kRescueAgain:
        if (InTrash(now_, e)) next.place[A] = kOwn;
        next.pc[p] = now_.pc[p] == kRescue ? kListNames : kCollect;
        return To(next, who + ": takes back what lies in .trash");
      case kListNames:
        next.names[e] = SeenNames(e);
        next.pc[p] = kListTrash;
        return To(next, who + ": reads the names");
      case kListTrash:
        return ListTrash(p, e, who);
      case kPutList:
        return PutList(p, e, who);
      case kLookAfter: {
        const bool newer = Highest(now_.claims) > e;
        next.pc[p] = newer && rules_.look_after_list ? kEnd : kRescueAgain;
        if (!rules_.rescue && next.pc[p] == kRescueAgain) next.pc[p] = kCollect;
        return To(next, who + (newer ? ": sees a newer claim" : ": looks after its list"));
      }
      case kCollect:
        for (const int i : {B, X}) {
          const bool ours = i != X || setting_.runs[kDrain];
          if (ours && static_cast<int>(kEpochOf[i]) < e && (now_.list[e] >> i & 1) == 0 &&
              now_.place[i] == kOwn)
            next.place[i] = kGone;
        }
        next.pc[p] = p == kMiddle ? kLook1 : kEnd;
        return To(next, who + ": collects garbage");
      default:
        return;
    }
  }
  static bool InTrash(const State& s, int e) {
    return (s.place[A] == kTrash2 || s.place[A] == kTrash3) && s.place[A] < e;
  }
  // Bits of attempts under their own names that are committed, or draining.
  uint8_t SeenNames(int e) const {
    uint8_t seen = 0;
    for (int i = 0; i < kAttempts; ++i) {
      if (static_cast<int>(kEpochOf[i]) >= e || now_.place[i] != kOwn) continue;
      if (Committed(now_, i)) seen |= static_cast<uint8_t>(1 << i);
      if (i == X && Draining(e)) seen |= static_cast<uint8_t>(1 << i);
    }
    return seen;
  }
  // Without the mark only the first successor, on the node that holds the copy, knows of it.
  bool Draining(int e) const { return setting_.runs[kDrain] && (rules_.mark || e == 3); }

  void ListTrash(int p, int e, const std::string& who) {
    State next = now_;
    uint8_t seen = now_.names[e];
    if (rules_.list_trash && InTrash(now_, e)) seen |= 1 << A;
    if (now_.place[A] == kDead) next.any_dead[e] = 1;
    const bool again = rules_.agree && (now_.listings[e] == 0 || seen != now_.last[e]);
    next.any[e] |= seen;
    next.last[e] = seen;
    next.listings[e] = 1;
    next.pc[p] = again ? kListNames : kPutList;
    To(next, who + ": reads .trash" + (again ? ", once more" : ""));
  }
  uint8_t Compose(int e) const {
    const uint8_t below = now_.lists & static_cast<uint8_t>((1 << e) - 1);
    EpochList base = ListOf(now_, Highest(below));
    std::vector<SeenAttempt> seen;
    for (int i = 0; i < kAttempts; ++i) {
      const bool saw = (now_.any[e] >> i & 1) != 0;
      if (saw) seen.push_back({IdOf(i), Place::kOwn, i != X || Committed(now_, i), i == X});
      if (i == A && now_.any_dead[e] != 0) seen.push_back({IdOf(A), Place::kDead, false, false});
      if (!rules_.carry && !saw) std::erase(base.adopted, IdOf(i));
    }
    const std::vector<AttemptId> list =
        ComposeList(Epoch(static_cast<uint64_t>(e)), base, seen, {});
    uint8_t bits = 0;
    for (int i = 0; i < kAttempts; ++i) {
      const bool named = std::count(list.begin(), list.end(), IdOf(i)) != 0;
      const bool saw = (now_.any[e] >> i & 1) != 0;
      if (rules_.from_base ? named : saw) bits |= static_cast<uint8_t>(1 << i);
    }
    return bits;
  }
  void PutList(int p, int e, const std::string& who) {
    State next = now_;
    next.list[e] = Compose(e);
    next.lists |= static_cast<uint8_t>(1 << e);
    next.names[e] = next.any[e] = next.last[e] = next.listings[e] = next.any_dead[e] = 0;
    next.pc[p] = kLookAfter;
    std::string wrong, names;
    for (int i = 0; i < kAttempts; ++i) {
      if ((next.list[e] >> i & 1) == 0) continue;
      names += kNames[i];
      for (int n = static_cast<int>(kEpochOf[i]) + 1; n < e; ++n) {
        const bool knew = (now_.lists >> n & 1) != 0 &&
                          (!rules_.look_after_list || (now_.known[e] >> n & 1) != 0);
        if (knew && (now_.list[n] >> i & 1) == 0)
          wrong = std::string(1, kNames[i]) + ", refused by an older list, is visible again";
      }
    }
    To(next, who + ": writes its list {" + names + "}", wrong);
  }

  const Rules rules_;
  const Setting setting_;
  std::unordered_map<State, Step, Hash> from_;
  std::deque<State> queue_;
  State now_;
  int moves_ = 0;
  std::string found_;
};

Setting With(bool young, bool drain, bool crash = false, bool torn = false) {
  Setting setting;
  setting.runs = {true, true, young, drain};
  setting.crash = crash;
  setting.torn = torn;
  return setting;
}
Setting Managed(Setting setting, std::vector<int> epochs) {
  for (const int epoch : epochs) setting.managed[static_cast<size_t>(epoch)] = true;
  return setting;
}
void ExpectHolds(const Setting& setting) {
  Search search({}, setting);
  EXPECT_EQ(search.Run(), "");
  EXPECT_GT(search.states(), 1000u);
  std::cout << search.states() << " states\n";
}
void ExpectFound(const std::string& what, const Rules& rules, const Setting& setting) {
  Search search(rules, setting);
  const std::string found = search.Run();
  EXPECT_NE(found.find(what), std::string::npos) << "found: " << found;
}

TEST(VisibilityModel, StandaloneHolds) { ExpectHolds(With(true, false, true, true)); }
TEST(VisibilityModel, StandaloneWithADrainHolds) { ExpectHolds(With(true, true, true, true)); }
TEST(VisibilityModel, ManagedThenStandaloneHolds) {
  ExpectHolds(Managed(With(true, true, true, true), {2}));
}
TEST(VisibilityModel, ManagedThenManagedHolds) {
  ExpectHolds(Managed(With(true, true, true, true), {2, 3}));
}
TEST(VisibilityModel, StandaloneThenManagedHolds) {
  ExpectHolds(Managed(With(true, true, true, true), {3}));
}

TEST(VisibilityModel, S1_SyncBeforeTheAnswer) {
  ExpectFound("acknowledged B has no COMMIT", {.sync_before_ack = false}, With(false, false, true));
}
TEST(VisibilityModel, S1_ARecordIsNoAnswer) {
  ExpectFound("acknowledged B has no COMMIT", {.ack_after_record = false},
              Managed(With(false, false), {2}));
}
TEST(VisibilityModel, S2_AManagedLeaderLooks) {
  ExpectFound("acknowledged B is there and not visible", {.managed_looks = false},
              Managed(With(false, false), {2}));
}
TEST(VisibilityModel, S3_Rescue) {
  ExpectFound("a frozen epoch deleted A", {.rescue = false}, With(false, false));
}
TEST(VisibilityModel, S3_TrashIsListed) {
  ExpectFound("acknowledged A is there and not visible",
              {.list_trash = false, .agree = false, .carry = false}, With(false, false));
}
TEST(VisibilityModel, S4_FromTheListBefore) {
  ExpectFound("B, refused by an older list, is visible again", {.from_base = false},
              With(true, false));
}
TEST(VisibilityModel, S5_WaitForTheList) {
  ExpectFound("draining X was answered fenced", {.wait_for_list = false}, With(false, true));
}
TEST(VisibilityModel, S5_Mark) {
  ExpectFound("draining X was answered fenced", {.mark = false}, With(true, true));
}
TEST(VisibilityModel, S7_Link) {
  ExpectFound("a torn COMMIT holds its name", {.link_commit = false},
              Managed(With(false, false, true, true), {2, 3}));
}
TEST(VisibilityModel, S8_TheListDecides) {
  ExpectFound("B was fenced and is visible", {.list_decides = false}, With(false, false));
}
TEST(VisibilityModel, S9_LookAfterTheList) {
  ExpectFound("acknowledged B was collected", {.look_after_list = false}, With(true, false));
}
TEST(VisibilityModel, S10_OneListingIsNoSnapshot) {
  ExpectFound("acknowledged A is there and not visible", {.agree = false, .carry = false},
              With(false, false));
}
TEST(VisibilityModel, S10_NorAreTwoThatAgree) {
  ExpectFound("acknowledged A is there and not visible", {.carry = false}, With(true, false));
}

}  // namespace
}  // namespace ckpt::storage
