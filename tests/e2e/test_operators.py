"""Several operators who do not know of each other, urgent jobs, signals and kills at once: CKPT_SOAK_SECONDS of that (10), and then
every job ends with the trajectory of one that was left alone."""
import json
import os
import random
import signal
import threading
import time

from cluster import wait_for
from test_cluster import cluster, pids_of, submit  # noqa: F401 (the fixture)
from test_failures import runs_of

SECONDS = float(os.environ.get("CKPT_SOAK_SECONDS", "10"))
SEED = int(os.environ.get("CKPT_TEST_SEED", random.randrange(2**32)))
JOBS = ("one", "two")


class Operator(threading.Thread):
    def __init__(self, cluster, number, until):
        super().__init__()
        self.cluster, self.number, self.until = cluster, number, until
        self.chance = random.Random(SEED + number)
        self.unexpected = []

    def run(self):
        acts = [self.suspend, self.resume, self.resume, self.migrate, self.withdraw, self.checkpoint, self.urgent, self.signal]
        while time.monotonic() < self.until:
            argv = self.chance.choice(acts)(self.chance.choice(JOBS))
            done = self.cluster.run_ctl(*argv) if argv else None
            if done is not None and done.returncode not in (0, 1):  # refused is fine
                self.unexpected.append((argv, done.returncode, done.stderr))
            time.sleep(self.chance.random() * 0.6)

    def suspend(self, job):
        return ["suspend", job, "--deadline", f"{self.chance.choice([1, 2, 5, 30])}s"]

    def resume(self, job):
        return ["resume", job]

    def migrate(self, job):
        return ["migrate", job, "--from", self.chance.choice("abc"), "--to", self.chance.choice("abc")]

    def checkpoint(self, job):
        return ["checkpoint", job]

    def withdraw(self, job):
        known = [event["op_id"] for event in self.cluster.ctl("events")["events"][-40:] if event.get("op_id")]
        return ["withdraw", self.chance.choice(known)] if known else None

    def urgent(self, job):
        name = f"urgent-{self.number}-{self.chance.randrange(10**9)}"
        self.cluster.run_ctl("submit", "--name", name, "--ranks", self.chance.choice([1, 2, 4]), "--priority", 99, "--class", "realtime",
                             "--", "sleep", str(self.chance.random() * 3))
        quote = self.cluster.run_ctl("quote", name, "-o", "json")
        return ["apply", json.loads(quote.stdout)["id"]] if quote.returncode == 0 else None

    def signal(self, job):
        there = pids_of(self.cluster, job) + [run[2] for run in runs_of(self.cluster, job)]
        if there:
            try:
                os.kill(self.chance.choice(there), self.chance.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGKILL]))
            except ProcessLookupError:
                pass


def finishes(cluster, name):
    job = cluster.job(name)
    if job["state"] in ("suspended", "failed"):
        cluster.run_ctl("resume", name)
    return job["state"] == "finished"


def test_operators_against_each_other(cluster, reference, tmp_path):
    print(f"CKPT_TEST_SEED={SEED}")
    want = reference(2, steps=600)
    for node in "abc":
        cluster.start_agent(node, 2, "256MiB")
    for number, name in enumerate(JOBS):
        (tmp_path / name).mkdir()
        submit(cluster, want, tmp_path / name, name, 2, "--priority", 5 + number, save_every=60)
    operators = [Operator(cluster, number, time.monotonic() + SECONDS) for number in range(4)]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join()
    assert [operator.unexpected for operator in operators] == [[], [], [], []]
    for job in cluster.ctl("jobs")["jobs"]:
        if job["spec"]["name"] not in JOBS:
            cluster.run_ctl("cancel", job["spec"]["name"])
    for name in JOBS:
        wait_for(f"{name} finishes", lambda: finishes(cluster, name), 300, every=0.5)
        want.check(tmp_path / name)
    wait_for("no process is left", lambda: not any(runs_of(cluster, name) or pids_of(cluster, name) for name in JOBS), 90)
    wait_for("all slots are free", lambda: all(node["slots_free"] == node["info"]["slots"] for node in cluster.nodes()), 90)
