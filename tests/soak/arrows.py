#!/usr/bin/env python3
"""A migration, preemption, suspend, resume or checkpoint, again and again: as soon as ckptd has stored one of its steps, one
process of it is killed, or stopped for a while. Every job must still finish with the losses and the final state of a run that was never interrupted.

The cases are all combinations of operation, stored step, process and signal, in an order that follows from the seed.
"""
import argparse
import itertools
import json
import pathlib
import random
import subprocess
import sys
import threading
import time

from script import Action
from soak import ROOT, SLOTS, Soak

STEPS = {  # what ckptd tells of an operation, and of whom: the job that is stopped, or the one that gets its slots
    "migrate": [("suspending", "j"), ("staged", "j"), ("released", "j"), ("fetching", "j"), ("fetched", "j"), ("launched", "j"),
                ("resumed", "j"), ("done", "j")],
    "preempt": [("reserved", "u"), ("suspending", "j"), ("staged", "j"), ("released", "j"), ("granted", "u"), ("launched", "u"),
                ("running", "u")],
    "suspend": [("suspending", "j"), ("cut", "j"), ("staged", "j"), ("released", "j"), ("durable", "j")],
    "resume": [("launched", "j"), ("resumed", "j"), ("done", "j")],
    "checkpoint": [("durable", "j"), ("done", "j")],
}
WHO = ["rank", "leading ckpt-run", "other ckpt-run", "agent it leaves", "agent it stays on", "agent it goes to", "ckptd"]
HOW = ["kill", "stop"]
STOP_SECONDS, AWAY_SECONDS = 1.5, 0.5
CASE_SECONDS = 150


def all_cases():
    for operation, steps in STEPS.items():
        yield from itertools.product([operation], steps, WHO, HOW)


class Arrows(Soak):
    def play(self):
        self.faults.start = time.monotonic()
        cases = list(all_cases())
        random.Random(self.args.seed).shuffle(cases)
        end = time.monotonic() + self.args.minutes * 60
        self.done = self.hit = 0
        for number, case in enumerate(cases[:self.args.cases], 1):
            if time.monotonic() > end or (self.problems and not self.args.go_on):
                break
            self.one(number, *case)
            self.done += 1
        print(f"{self.done} of {len(cases)} cases, {self.hit} of them hit a process", flush=True)

    def one(self, number, operation, step, who, how):
        kind, of = step
        self.say(f"# case {number}: {operation}, at {kind}, {how} {who}")
        name, urgent = f"j{number:03}", f"u{number:03}"
        nodes = self.args.nodes
        self.jobs.submit({"job": name, "ranks": SLOTS * (nodes - 1) - 1, "steps": 150, "seed": 1, "save_every": 20, "priority": 1})
        job = self.until(f"{name} runs at step 10", lambda: self.look_at(name, "running", 10))
        if job is None:
            return
        there = [n["node"] for n in job["placement"]["nodes"]]
        free = next(n for n in self.cluster.node_names if n not in there)
        if operation == "resume":
            self.jobs.call("suspend", name, "--wait")
            self.jobs.look()
        since = self.jobs.events[-1]["revision"]
        told = self.follow(since, name if of == "j" else urgent, kind)
        if operation == "migrate":
            self.jobs.ask("migrate", job, "--from", there[1], "--to", free, wait=True)
        elif operation == "preempt":
            self.jobs.submit({"job": urgent, "ranks": SLOTS * nodes - 2, "steps": 80, "seed": 1, "save_every": 0, "priority": 90},
                             urgent=True)
        else:
            self.jobs.ask(operation, job, wait=True)
        if self.until(f"{kind} is told", lambda: told.is_set() or None) is None:
            return
        self.strike(who, how, name, there, free)
        mine = [name] + ([urgent] if operation == "preempt" else [])
        self.until(f"{' and '.join(mine)} finished", lambda: self.all_over(mine))

    def strike(self, who, how, name, there, free):
        length = AWAY_SECONDS if how == "kill" else STOP_SECONDS
        node = {"agent it leaves": there[1], "agent it stays on": there[0], "agent it goes to": free,
                "leading ckpt-run": there[0], "other ckpt-run": there[1]}.get(who)
        program = "rank" if who == "rank" else "run" if "ckpt-run" in who else "agent" if "agent" in who else "ckptd"
        fields = {"for": length} | ({"node": node} if node else {}) | ({"job": name} if program in ("rank", "run") else {})
        self.hit += self.faults.do(Action(0, f"{how}_{program}", **fields))

    def again(self):
        return f"again the same cases: ./run soak arrows --nodes {self.args.nodes} --seed {self.args.seed} --cases {self.done + 1}"

    # ---- waiting
    def until(self, what, condition):
        """As an operator would: what was taken away comes back, what stands still is resumed."""
        end = time.monotonic() + CASE_SECONDS
        while (value := condition()) is None:
            if time.monotonic() > end:
                states = [f"{j['spec']['name']} is {j['state']} ({j['reason']})" for j in self.jobs.view if j["state"] not in
                          ("finished", "cancelled")]
                self.problem(f"{what}: not within {CASE_SECONDS} s; {'; '.join(states)}")
                return None
            self.faults.take_back()
            time.sleep(0.1)
        return value

    def look_at(self, name, state, step):
        return next((j for j in self.jobs.view if j["spec"]["name"] == name and j["state"] == state and j["step"] >= step), None)

    def all_over(self, names):
        if self.faults.away:
            return None
        jobs = {j["spec"]["name"]: j for j in self.jobs.view}
        for job in (jobs[n] for n in names if n in jobs):
            if job["state"] in ("suspended", "failed"):
                self.jobs.call("resume", job["spec"]["name"])
        return True if all(n in jobs and jobs[n]["state"] == "finished" for n in names) else None

    def follow(self, since, job, kind):
        """An event that is set as soon as ckptd tells that of that job."""
        told = threading.Event()
        process = subprocess.Popen([*self.cluster.network.enter("hub"), str(self.cluster.bin / "ckptctl"), "events", "--follow", "--since",
                                    str(since), "-o", "json"], env=self.cluster.env, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)

        def read():
            for line in process.stdout:
                event = json.loads(line)
                if event["job"] == job and event["kind"] == kind:
                    told.set()
                    break
            told.set()  # also when ckptd has gone
            process.kill()
            process.wait()
        threading.Thread(target=read, name="follow", daemon=True).start()
        return told


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(prog="./run soak arrows", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="ends after this time even if cases are left")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the cases")
    parser.add_argument("--cases", type=int, help="only so many of them")
    parser.add_argument("--nodes", type=int, default=3, help="of the cluster; each job takes all but one")
    parser.add_argument("--go-on", action="store_true", help="do not end at the first problem")
    parser.add_argument("--bin", default=ROOT / "build" / "test" / "bin", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.nodes < 3:
        parser.error("--nodes: a migration needs a node to leave, one to stay on and one to go to")
    return args


if __name__ == "__main__":
    sys.exit(Arrows(parse_arguments()).run())
