#!/usr/bin/env python3
"""Random jobs on a small cluster, urgent ones that displace them, and everything killed, stopped, cut off and started again.

At the end everything is healed and each job must finish with the losses and the final state of a run that was never
interrupted; no slot, memory or process may be left over, and ckptd's history must be consistent. Exit code 0: it held.
"""
import argparse
import json
import pathlib
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback

import history
import script
from faults import Faults
from jobs import Jobs
from nodes import DemoError, SoakCluster, wait_for
from store import Store

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOTS = 2
SETTLE_SECONDS = 300        # from the last fault until every job has finished
LEFTOVER_SECONDS = 90       # a ckpt-run gives a member up that is out of reach for 60 s
MEMORY_SLACK = 48 << 20     # what an allocator may keep
PROBLEMS_MAX = 50
OVER = ("finished", "cancelled")


class Soak:
    def __init__(self, args):
        self.args = args
        self.problems, self.lock = [], threading.Lock()
        self.out = pathlib.Path(tempfile.mkdtemp(prefix="ckpt-soak-"))
        self.store = Store(self.out)
        self.cluster = SoakCluster(args.bin, self.out, [chr(ord("a") + i) for i in range(args.nodes)], SLOTS, self.store.path)
        text = self.out / "text"
        text.write_bytes(pathlib.Path(__file__).read_bytes() * 8)
        self.log = open(self.out / "script", "w")
        self.jobs = Jobs(self.cluster, text, self.problem, self.say)
        self.faults = Faults(self.cluster, self.jobs, self.store, self.log)
        self.ending = threading.Event()
        self.epochs = {}

    def say(self, text):
        self.faults.say(text)

    def problem(self, text):
        with self.lock:
            self.problems.append(text)
        print(f"PROBLEM at {self.faults.now():.1f} s: {text}", flush=True)
        self.say(f"# PROBLEM at {self.faults.now():.2f}: {text}")

    # ---- while it runs
    def actions(self):
        if self.args.script:
            return script.read(self.args.script)
        return script.write(self.args.seed, self.args.minutes * 60, self.args.gap, self.cluster.network.can_partition, self.store.small)

    def play(self):
        self.faults.start = time.monotonic()
        for action in self.actions():
            while self.faults.now() < action.at and len(self.problems) < PROBLEMS_MAX:
                time.sleep(max(0.0, min(action.at, self.faults.next_undo(), self.faults.now() + 0.5) - self.faults.now()))
                self.faults.take_back()
            if len(self.problems) >= PROBLEMS_MAX or (self.problems and not self.args.go_on):
                break
            self.faults.do(action)

    def watch(self):
        """Looks all the time, and checks what must hold at every moment."""
        while not self.ending.wait(0.4):
            try:
                self.check_ranks()
                self.check_programs()
                if self.jobs.look():
                    self.check_view()
            except Exception:
                self.problem("the soak itself: " + traceback.format_exc())

    def check_ranks(self):
        """No node runs more ranks than it has slots, no job in two epochs at once: processes, not what ckptd believes."""
        wrong = self.ranks_too_many()
        if wrong:
            time.sleep(0.05)  # a list of processes is not of one moment: what is in two of them was there between them
            again = self.ranks_too_many()
            for text in sorted(set(wrong) & set(again)):
                if wrong[text] & again[text] == wrong[text]:
                    self.problem(text)

    def ranks_too_many(self):
        nodes, epochs, wrong = {}, {}, {}
        for rank in self.cluster.of("rank"):
            nodes.setdefault(rank.node, set()).add(rank.pid)
            epochs.setdefault(rank.job, {}).setdefault(rank.epoch, set()).add(rank.pid)
        for node, pids in nodes.items():
            if len(pids) > SLOTS:
                wrong[f"node {node} runs {len(pids)} ranks in {SLOTS} slots"] = pids
        for job, mine in epochs.items():
            if len(mine) > 1:
                wrong[f"job {job} has ranks of epochs {sorted(mine)} at once"] = set().union(*mine.values())
        return wrong

    def check_programs(self):
        for name, program in list(self.cluster.programs.items()):
            code = program.poll()
            if code is not None and name not in self.faults.away and program is self.cluster.programs[name]:
                time.sleep(0.2)  # it may just be being ended
                if name not in self.faults.away and program is self.cluster.programs[name]:
                    tail = (self.out / f"{name}.log").read_text(errors="replace").splitlines()[-3:]
                    self.problem(f"{name} ended by itself with {code}: {' | '.join(tail)}")

    def check_view(self):
        used = {}
        for job in self.jobs.view:
            name = job["spec"]["name"]
            if job["epoch"] < self.epochs.get(name, 0):
                self.problem(f"job {name} went from epoch {self.epochs[name]} back to {job['epoch']}")
            self.epochs[name] = job["epoch"]
            if job["state"] in ("starting", "running", "suspending", "unknown"):
                for place in job["placement"]["nodes"]:
                    used[place["node"]] = used.get(place["node"], 0) + place["rank_count"]
        for node, slots in used.items():
            if slots > SLOTS:
                self.problem(f"ckptd has given away {slots} of {SLOTS} slots of node {node}")

    # ---- the end
    def heal(self):
        self.faults.take_back(all_of_it=True)
        self.cluster.wait_connected()
        self.jobs.wait_for_answers(120)

    def settle(self):
        """An operator at work: resumes what was suspended or given up, until every job is over."""
        end = time.monotonic() + SETTLE_SECONDS

        def over():
            for job in self.jobs.in_state(("suspended", "failed")):
                if job["state"] == "failed":
                    self.say(f"# {job['spec']['name']} had failed: {job['reason']}")
                self.jobs.call("resume", job["spec"]["name"])
            return self.jobs.look() and {j["spec"]["name"] for j in self.jobs.in_state(OVER)} >= set(self.jobs.known)

        while not over():
            if time.monotonic() > end:
                left = [f"{j['spec']['name']} is {j['state']} ({j['reason']})" for j in self.jobs.view if j["state"] not in OVER]
                self.problem(f"not finished {SETTLE_SECONDS} s after everything was healed: {'; '.join(left)}")
                return
            time.sleep(0.5)

    def check_end(self):
        for job in self.jobs.in_state(OVER):
            name = job["spec"]["name"]
            if job["state"] == "finished":
                self.jobs.compare(name)
            elif name not in self.jobs.cancelled:
                self.say(f"# {name} was cancelled by a call whose answer was lost")
        self.check_stores()
        self.check_leftovers()
        self.jobs.look()
        for text in history.check(self.jobs.events, self.jobs.deadlines, self.faults.excuses_until_now()):
            self.problem(text)

    def check_stores(self):
        """What was said to be durable is there, and whole."""
        durable = {}
        for event in self.jobs.events:
            if event["kind"] == "durable":
                durable.setdefault(event["job"], set()).add(history.copy_of(event))
        for name, copies in sorted(durable.items()):
            path = self.store.path / name
            done = self.cluster.run_ctl("verify", path)
            if done.returncode != 0:
                self.problem(f"verify of {name}: exit {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}")
            listed = self.cluster.try_ctl("ls", path)
            there = {(c["epoch"], c["step"], c["attempt"]) for c in (listed or {"checkpoints": []})["checkpoints"] if c["visible"]}
            if copies - there:
                self.problem(f"job {name}: was durable, and is not in {path}: {sorted(copies - there)}")

    def check_leftovers(self):
        def free():
            self.jobs.look()
            return all(n["slots_free"] == SLOTS and not n["holds"] and not n["jobs"] and n["info"]["staging_used_bytes"] == 0
                       for n in self.jobs.nodes) and not self.cluster.of("ckpt-run") and not self.cluster.of("rank")
        try:
            wait_for("all slots, grants and staging memory are free", free, LEFTOVER_SECONDS)
        except DemoError as error:
            left = ", ".join(str(p) for p in self.cluster.of("ckpt-run") + self.cluster.of("rank"))
            nodes = [{k: n[k] for k in ("slots_free", "holds", "jobs")} | {"staging": n["info"]["staging_used_bytes"]} for n in self.jobs.nodes]
            self.problem(f"{error}: {nodes}; processes: {left or 'none'}")
        for name, (base, _) in sorted(self.cluster.base_memory.items()):
            rss, memfds = self.cluster.memory_of(name)
            if memfds:
                self.problem(f"{name} still holds {memfds} memfds")
            if rss > base + MEMORY_SLACK:
                self.problem(f"{name} has {rss >> 20} MiB of memory; it started with {base >> 20}")
        # The next ckpt-run removes what those that were killed have left.
        self.cluster.spawn("last-run", self.cluster.node_names[0], self.cluster.bin / "ckpt-run", "--job", "last", "--store",
                           self.out / "last", "--", "true")
        self.cluster.programs.pop("last-run").wait(30)
        for path in [*self.cluster.tmp.iterdir(), *self.out.glob("nodes/*/jobs/*")]:
            self.problem(f"left over: {path}")

    def check_records(self):
        """After ckptd has ended."""
        with sqlite3.connect(self.out / "ckptd" / "state.db") as db:
            words = [row[0] for row in db.execute("pragma integrity_check")]
        if words != ["ok"]:
            self.problem(f"state.db: {words[:3]}")

    def run(self):
        network = "namespaces" if self.cluster.network.can_partition else f"plain loopback, links stay up ({self.cluster.why_plain})"
        store = "an ext4 of its own" if self.store.small else f"a directory, never full ({self.store.why_plain})"
        print(f"{pathlib.Path(sys.argv[0]).stem}: seed {self.args.seed}, {self.args.nodes} nodes of {SLOTS} slots; network: {network}; store: {store}; {self.out}",
              flush=True)
        watcher = threading.Thread(target=self.watch, name="watch")
        try:
            self.cluster.start()
            self.cluster.note_base_memory()
            watcher.start()
            self.play()
            self.heal()
            self.settle()
            self.ending.set()
            watcher.join()
            self.check_end()
        except DemoError as error:
            self.problem(str(error))
        except Exception:
            self.problem("the soak itself: " + traceback.format_exc())
        finally:
            self.ending.set()
            self.faults.take_back(all_of_it=True)
            self.cluster.stop()
            self.check_records()
            (self.out / "events.json").write_text(json.dumps(self.jobs.events, indent=1))
            self.store_away()
        return self.verdict()

    def store_away(self):
        if self.problems:
            return
        self.store.close()
        shutil.rmtree(self.out)

    def again(self):
        return (f"again with the same seed: ./run soak jobs --seed {self.args.seed} --minutes {self.args.minutes:g} --nodes "
                f"{self.args.nodes}\nagain what was really hit: ./run soak jobs --nodes {self.args.nodes} --script {self.out}/script")

    def verdict(self):
        kinds = {}
        for event in self.jobs.events:
            kinds[event["kind"]] = kinds.get(event["kind"], 0) + 1
        ended = {state: len(self.jobs.in_state((state,))) for state in OVER}
        launches, back = kinds.get("launched", 0), kinds.get("resumed", 0)
        print(f"{len(self.jobs.known)} jobs: {ended['finished']} finished, {ended['cancelled']} cancelled; {launches} launches, {back} of them "
              f"from a copy; {kinds.get('durable', 0)} durable copies; {kinds.get('granted', 0)} grants; {self.jobs.asked} requests, "
              f"{self.jobs.answers[1]} refused, {self.jobs.answers[3]} found no coordinator; {self.faults.now():.0f} s", flush=True)
        if not self.problems:
            print("it held", flush=True)
            return 0
        print(f"{len(self.problems)} PROBLEMS, the first: {self.problems[0]}\n"
              f"what was done, and when: {self.out}/script; history: {self.out}/events.json; logs: {self.out}/*.log, {self.out}/nodes/*/logs\n"
              f"{self.again()}", flush=True)
        if self.store.small:
            print(f"afterwards: umount {self.store.path}; rm -r {self.out}", flush=True)
        return 1


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(prog="./run soak jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="how long things are done to it; healing and finishing come on top")
    parser.add_argument("--seed", type=int, help="of everything that is random (default: from the clock)")
    parser.add_argument("--nodes", type=int, default=3, choices=range(2, 5), help="agents, of two slots each (default 3)")
    parser.add_argument("--gap", type=float, default=0.7, help="seconds between two actions, on average (default 0.7)")
    parser.add_argument("--script", help="plays this instead of one made from the seed")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first problem")
    parser.add_argument("--bin", default=ROOT / "build" / "test" / "bin", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.seed is None:
        args.seed = time.time_ns() % 1_000_000
    return args


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    sys.exit(Soak(parse_arguments()).run())
