#!/usr/bin/env python3
"""The main job, end to end: a training gang makes room for an urgent job and comes back bit-identical.

Starts a coordinator and agents on this machine, trains a byte-level language model on four ranks, lets an urgent job take
two of the slots, resumes from RAM, migrates half of the gang to a third node, kills a rank, and compares every loss and the
final state with a run of the same program that knows nothing of libckpt.
"""
import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from cluster import Cluster, DemoError, alive, boottime, wait_for
from live import Live
from timeline import Timeline

TRAIN, URGENT = "train", "urgent"
MIB = 1 << 20


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a file to train on (default: the licence texts of this system)")
    parser.add_argument("--ranks", type=int, default=4, help="ranks of the training job, an even number (default 4)")
    parser.add_argument("--steps", type=int, default=110, help="steps to train (default 110)")
    parser.add_argument("--hidden", type=int, default=1664, help="width of the model (default 1664: 66 MiB of state a rank)")
    parser.add_argument("--save-every", type=int, default=10, help="steps between saves (default 10)")
    parser.add_argument("--out", default="build/demo", help="folder for everything the demo leaves (default build/demo)")
    parser.add_argument("--bin", default="build/release/bin", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ranks < 2 or args.ranks % 2:
        parser.error(f"--ranks {args.ranks}: needs an even number of at least 2, one half for each node")
    if args.steps < 60:
        parser.error(f"--steps {args.steps}: at least 60 are needed for all that is shown")
    if args.text and (not os.path.isfile(args.text) or os.path.getsize(args.text) < 25):
        parser.error(f"--text {args.text}: there is no such file, or it has fewer than 25 bytes to train on")
    return args


LIVE = Live()


def say(number, text):
    LIVE.print(f"\n\033[1m{number}. {text}\033[0m")


def note(text):
    LIVE.print(f"   {text}")


class Demo:
    def __init__(self, args):
        self.args = args
        self.out = pathlib.Path(args.out)
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        self.out = self.out.resolve()
        self.bin = pathlib.Path(args.bin).resolve()
        self.text = self.prepare_text()
        self.cluster = Cluster(self.bin, self.out, LIVE.print)
        self.placements = {}  # (job, epoch) -> [node of rank 0, …]
        self.stops = []       # (what, epoch that was stopped, granted_ns, its PhaseTimes)
        self.kills = []       # (boottime, text)
        self.lost = {}        # what -> GPU-seconds that the coordinator booked as lost by it

    def prepare_text(self):
        if self.args.text:
            return pathlib.Path(self.args.text).resolve()
        text = self.out / "licences.txt"
        parts = sorted(p for p in pathlib.Path("/usr/share/common-licenses").iterdir() if p.is_file() and not p.is_symlink())
        text.write_bytes(b"".join(p.read_bytes() for p in parts))
        if text.stat().st_size == 0:
            raise DemoError("this system ships no licence texts; give a text with --text FILE")
        return text

    def trainer(self, program, prefix):
        a = self.args
        return [str(self.bin / program), "--text", str(self.text), "--steps", str(a.steps), "--hidden", str(a.hidden),
                "--loss-file", f"{self.out}/{prefix}.loss", "--digest-file", f"{self.out}/{prefix}.digest"]

    # ---- the uninterrupted run, without libckpt ---------------------------------------------------
    def reference(self):
        meeting = self.out / "reference.rendezvous"
        meeting.mkdir()
        argv = self.trainer("train_plain", "reference") + ["--rendezvous", str(meeting)]
        start = time.monotonic()
        log = open(self.out / "reference.log", "wb")
        ranks = [subprocess.Popen(argv, stdout=log, stderr=log, env=dict(os.environ, RANK=str(r), WORLD_SIZE=str(self.args.ranks)))
                 for r in range(self.args.ranks)]
        if any([rank.wait() for rank in ranks]):
            raise DemoError(f"the reference run failed; see {self.out}/reference.log")
        note(f"{self.args.steps} steps on {self.args.ranks} ranks in {time.monotonic() - start:.1f} s; losses and digests kept")

    # ---- small views -------------------------------------------------------------------------------
    def job(self, name=TRAIN):
        job = self.cluster.job(name)
        ranks = [n["node"] for n in job.get("placement", {}).get("nodes", []) for _ in range(n["rank_count"])]
        if ranks:
            self.placements.setdefault((name, job["epoch"]), ranks)
        if job["state"] in ("failed", "cancelled"):
            raise DemoError(f"job {name} is {job['state']}: {job.get('reason', '')}")
        return job

    def wait_step(self, step, seconds=90):
        return wait_for(f"{TRAIN} runs at step {step}", lambda: (j := self.job())["state"] == "running" and j["step"] >= step and j,
                        seconds)

    def rank_pids(self):
        """Processes of the training job, by rank."""
        pids = {}
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "exe") == str(self.bin / "train"):
                    env = dict(v.split(b"=", 1) for v in (entry / "environ").read_bytes().split(b"\0") if b"=" in v)
                    if env.get(b"CKPT_JOB") == TRAIN.encode() and alive(int(entry.name)):
                        pids[int(env[b"RANK"])] = int(entry.name)
            except OSError:
                pass
        return pids

    # ---- what is shown -----------------------------------------------------------------------------
    def start(self):
        half = self.args.ranks // 2
        self.cluster.start_ckptd()
        LIVE.start(self.bin / "ckptctl", self.cluster.env)
        for node in ("alpha", "beta"):
            self.cluster.start_agent(node, half, "1GiB")
        self.cluster.show("nodes")

    def submit(self):
        spec = self.out / "train.yaml"
        command = self.trainer("train", "suspended") + ["--save-every", str(self.args.save_every)]
        spec.write_text(f"name: {TRAIN}\nranks: {self.args.ranks}\npriority: 10\nclass: training\n"
                        f"command: [{', '.join(repr(c) for c in command)}]\n")
        self.cluster.show("submit", spec)
        job = self.wait_step(self.args.save_every + 3)
        note(f"{TRAIN} is at step {job['step']}, epoch {job['epoch']}")

    def preempt(self):
        half = self.args.ranks // 2
        command = self.trainer("train", "urgent")
        command[command.index("--steps") + 1] = "12"
        self.cluster.show("submit", "--name", URGENT, "--ranks", half, "--priority", 100, "--class", "realtime", "--", *command)
        plan = re.search(r"\bp\d+-\d+\b", self.cluster.show("quote", URGENT)).group()
        before = set(self.rank_pids().values())
        self.cluster.show("apply", plan, "--wait")
        left = [pid for pid in before if alive(pid)]
        if left:
            raise DemoError(f"the slots were granted while processes {left} of the victim still ran")
        job = self.job()
        note(f"granted; no process of {TRAIN} is left, and `ckptctl job {TRAIN}` says:")
        self.cluster.show("job", TRAIN)
        granted = [e["boottime_ns"] for e in self.cluster.ctl("events")["events"] if e["kind"] == "granted" and e["job"] == URGENT]
        self.stops.append(("preemption", job["epoch"], granted[0], self.times_of_stop()))

    def book_lost(self, what):
        """What the coordinator has booked as lost since the last call, under `what`."""
        self.lost[what] = self.job()["lost_gpu_seconds"] - sum(self.lost.values())

    def times_of_stop(self):
        """Times of the newest stop; the comparison with memcpy is taken after the release and comes a little later."""
        end = time.monotonic() + 5
        while True:
            times = self.job()["last_stop"]
            if (times["memcpy_ratio"] and times["durable_ns"]) or time.monotonic() > end:
                return times
            time.sleep(0.05)

    def resume(self):
        wait_for(f"{URGENT} finishes", lambda: self.job(URGENT)["state"] == "finished")
        first = self.job()["epoch"]
        job = wait_for(f"{TRAIN} runs again", lambda: (j := self.job())["state"] == "running" and j["epoch"] > self.stops[0][1]
                       and j["step"] > 0 and j.get("resumed_from") and j)
        note(f"{TRAIN} is back as epoch {job['epoch']}, resumed from: {job['resumed_from']}")
        if not job["resumed_from"].startswith("ram"):
            raise DemoError(f"{TRAIN} was to resume from staging memory, not from: {job['resumed_from']}")
        self.wait_step(job["step"] + 3)
        self.book_lost("preemption")
        return first

    def migrate(self):
        self.cluster.start_agent("gamma", self.args.ranks // 2, "1GiB")
        epoch = self.job()["epoch"]
        self.cluster.show("migrate", TRAIN, "--from", "beta", "--to", "gamma", "--wait")
        self.stops.append(("migration", epoch, 0, self.times_of_stop()))
        job = wait_for(f"{TRAIN} runs on gamma", lambda: (j := self.job())["state"] == "running" and j["epoch"] > epoch
                       and j.get("resumed_from") and j)
        nodes = [n["node"] for n in job["placement"]["nodes"]]
        note(f"{TRAIN} runs on {', '.join(nodes)} as epoch {job['epoch']}, resumed from: {job['resumed_from']}")
        self.book_lost("migration")
        if "gamma" not in nodes or "beta" in nodes:
            raise DemoError(f"the migration left the gang on {nodes}")
        if not job["resumed_from"].startswith("ram"):
            raise DemoError(f"the migration was to go memory to memory, not through: {job['resumed_from']}")

    def kill(self):
        job = self.wait_step(self.job()["step"] + self.args.save_every + 2)
        victim = self.args.ranks - 1
        pid = self.rank_pids()[victim]
        os.kill(pid, signal.SIGKILL)
        self.kills.append((boottime(), f"SIGKILL to rank {victim} (pid {pid}) after step {job['step']}"))
        note(f"SIGKILL to rank {victim}, pid {pid}, after step {job['step']}")
        epoch = job["epoch"]
        job = wait_for(f"{TRAIN} restarts by itself", lambda: (j := self.job())["state"] == "running" and j["epoch"] > epoch
                       and j.get("resumed_from") and j)
        self.book_lost("kill")
        note(f"{TRAIN} restarted by itself as epoch {job['epoch']}, resumed from: {job['resumed_from']}")

    def finish(self):
        wait_for(f"{TRAIN} finishes", lambda: self.job()["state"] == "finished", 150)

    # ---- the proof ---------------------------------------------------------------------------------
    def compare(self):
        wanted = dict(line.split()[:2] for line in open(self.out / "reference.loss"))
        seen, twice = {}, 0
        for line in open(self.out / "suspended.loss"):
            step, bits, loss = line.split()
            twice += step in seen
            if wanted.get(step) != bits:
                raise DemoError(f"step {step}: loss {loss} has bits {bits}, the uninterrupted run has {wanted.get(step)}")
            seen[step] = bits
        if missing := sorted(set(wanted) - set(seen), key=int):
            raise DemoError(f"the suspended run has no loss for steps {missing[:10]}")
        for rank in range(self.args.ranks):
            mine, other = ((self.out / f"{name}.digest.{rank}").read_text() for name in ("suspended", "reference"))
            if mine != other:
                raise DemoError(f"rank {rank}: final digest {mine.strip()}, the uninterrupted run has {other.strip()}")
        note(f"all {len(wanted)} losses equal bit for bit ({twice} steps were computed twice after the kill), "
             f"and the final weights, moments and data positions of all {self.args.ranks} ranks")

    def table(self):
        columns = ("stall", "÷ memcpy", "cut→staged", "→released", "→granted", "→durable", "bytes", "lost GPU-s")
        print("\n" + f"{'':20}" + "".join(f"{c:>12}" for c in columns))
        for what, _, granted, times in self.stops:
            since = lambda ns: f"{(ns - times['cut_ns']) / 1e6:.0f} ms" if ns and times["cut_ns"] else "–"
            ratio = f"{times['memcpy_ratio']:.2f}" if times["memcpy_ratio"] else "–"
            cells = (f"{times['stall_ns'] / 1e6:.0f} ms", ratio, since(times["staged_ns"]), since(times["released_ns"]), since(granted),
                     since(times["durable_ns"]), f"{times['staged_bytes'] / MIB:.0f} MiB", f"{self.lost[what]:.1f}")
            print(f"{what:20}" + "".join(f"{c:>12}" for c in cells))
        print(f"{'SIGKILL of a rank':20}" + f"{self.lost['kill']:>{12 * len(columns)}.1f}")
        print("Times since the cut, of this run. ÷ memcpy: the stall against a plain copy of the same bytes, taken right after it.")

    def picture(self):
        events = self.cluster.ctl("events")["events"]
        at = lambda job, epoch, *kinds: [e["boottime_ns"] / 1e9 for e in events
                                         if e["job"] == job and e["epoch"] == epoch and e["kind"] in kinds]
        stops = {epoch: {k: v / 1e9 for k, v in times.items() if k.endswith("_ns") and v} for _, epoch, _, times in self.stops}
        line = Timeline(f"{self.args.ranks} ranks make room for an urgent job, come back, move and survive a kill")
        for (job, epoch), nodes in sorted(self.placements.items()):
            start = min(at(job, epoch, "launched", "running"))
            times = stops.get(epoch, {}) if job == TRAIN else {}
            following = at(job, epoch + 1, "launched", "running") + at(job, epoch, "finished")
            killed = [when for when, _ in self.kills if when > start]
            end = min([times["cut_ns"]] if times else killed + following)
            for rank, node in enumerate(nodes):
                line.bar(f"{job} rank {rank}", start, end, node, "run")
                if times:
                    line.bar(f"{job} rank {rank}", times["cut_ns"], times["staged_ns"], node, "copy")
                    line.bar(f"{job} rank {rank}", times["staged_ns"], min(following), node, "staged")
        for what, _, granted, times in self.stops:
            line.mark(times["cut_ns"] / 1e9, f"{what}: all ranks of {TRAIN} stand at one step")
            line.mark(times["released_ns"] / 1e9, f"{what}: no process of {TRAIN} left")
            line.mark(times["durable_ns"] / 1e9, f"{what}: the snapshot is durable")
            if granted:
                line.mark(granted / 1e9, f"{what}: slots granted to {URGENT}")
        for event in events:
            if event["kind"] in ("submitted", "finished"):
                line.mark(event["boottime_ns"] / 1e9, f"{event['job']} {event['kind']}")
        for when, text in self.kills:
            line.mark(when, text)
        path = self.out / "timeline.svg"
        path.write_text(line.svg())
        note(f"timeline: {os.path.relpath(path)}")

    def run(self):
        begin = time.monotonic()
        say(0, "The same training, uninterrupted and without libckpt, to compare with")
        self.reference()
        say(1, "A coordinator, and two agents: each a node with two slots" if self.args.ranks == 4 else "A coordinator and two agents")
        self.start()
        say(2, f"A {self.args.ranks}-rank training job on {self.text.name} ({self.text.stat().st_size} bytes)")
        self.submit()
        say(3, "An urgent job arrives: quote, stop the gang at one step, free the slots, grant them")
        self.preempt()
        say(4, "The urgent job ends; the gang resumes from staging memory")
        self.resume()
        say(5, "A third node joins; half of the gang moves there, memory to memory")
        self.migrate()
        say(6, "A rank is killed in mid-step")
        self.kill()
        self.finish()
        LIVE.stop()
        say(7, "Is it the same?")
        self.compare()
        self.table()
        self.picture()
        print(f"\nThe demo took {time.monotonic() - begin:.0f} s.")


def main():
    args = parse_arguments()
    demo = None
    try:
        demo = Demo(args)
        demo.run()
        return 0
    except DemoError as error:
        print(f"\nThe demo FAILED: {error}", file=sys.stderr)
        if demo:
            print(f"Logs: {demo.out}", file=sys.stderr)
        return 1
    finally:
        LIVE.stop()
        if demo:
            demo.cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
