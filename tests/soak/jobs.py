"""The jobs of a soak: what was submitted, what ckptd says of them, what is asked of it, and what they would have computed
without any of it."""
import concurrent.futures
import json
import os
import shutil
import subprocess
import threading
import time

HIDDEN, BATCH, PAUSE_MS = 32, 4, 20
OK_CODES = (0, 1, 3)  # done; refused or failed, with a reason; no coordinator in reach


class Jobs:
    def __init__(self, cluster, text, problem, say):
        self.cluster, self.text, self.problem, self.say = cluster, text, problem, say
        self.known = {}       # name -> fields of its action
        self.cancelled = set()
        self.deadlines = {}   # operation id -> seconds
        self.view, self.nodes, self.events = [], [], []
        self.asked, self.answers = 0, {0: 0, 1: 0, 3: 0}
        self.pool = concurrent.futures.ThreadPoolExecutor(6, "ask")
        self.pending = []
        self.references = {}
        self.lock = threading.Lock()
        (self.cluster.out / "jobs").mkdir()

    # ---- looking
    def look(self):
        """True when ckptd answered."""
        with self.lock:
            return self.look_now()

    def look_now(self):
        since = self.events[-1]["revision"] if self.events else 0
        events, jobs, nodes = (self.cluster.try_ctl(*argv) for argv in (("events", "--since", since), ("jobs",), ("nodes",)))
        if events is None or jobs is None or nodes is None:
            return False
        self.events += [e for e in events["events"] if e["revision"] > since]
        self.view, self.nodes = jobs["jobs"], nodes["nodes"]
        return True

    def in_state(self, states):
        return [j for j in self.view if j["state"] in states and j["spec"]["name"] in self.known]

    # ---- asking
    def call(self, *argv):
        """One ckptctl that changes something; in the background, because ckptd may be away."""
        done = self.cluster.run_ctl(*argv)
        self.asked += 1
        if done.returncode not in OK_CODES:
            self.problem(f"ckptctl {' '.join(map(str, argv))}: exit {done.returncode}: {done.stderr.strip()}")
        else:
            self.answers[done.returncode] += 1
            if done.returncode != 0 and not done.stderr.strip():
                self.problem(f"ckptctl {' '.join(map(str, argv))}: exit {done.returncode} without a word")
        if done.returncode != 0:
            self.say(f"# ckptctl {' '.join(map(str, argv[:4]))}: exit {done.returncode}: {done.stderr.strip()}")
        return done

    def soon(self, call, *args):
        self.pending = [p for p in self.pending if not p.done()] + [self.pool.submit(self.guarded, call, *args)]

    def guarded(self, call, *args):
        try:
            call(*args)
        except Exception as error:  # of the soak itself: a thread must not swallow it
            self.problem(f"{call.__name__}: {error!r}")

    def wait_for_answers(self, seconds):
        done, late = concurrent.futures.wait(self.pending, seconds)
        if late:
            self.problem(f"{len(late)} calls of ckptctl have no answer after {seconds} s")

    def submit(self, fields, urgent=False):
        self.known[fields["job"]] = dict(fields)
        self.soon(self.submit_now, dict(fields), urgent)

    def submit_now(self, fields, urgent):
        name = fields["job"]
        folder = self.cluster.out / "jobs" / name
        folder.mkdir()
        argv = ["submit", "--name", name, "--ranks", fields["ranks"], "--priority", fields["priority"], "--restarts-max", 1000,
                "--class", "realtime" if urgent else "training", "--", *self.command("train", fields, folder), "--pause-ms", PAUSE_MS]
        if fields["save_every"]:
            argv += ["--save-every", fields["save_every"]]
        end = time.monotonic() + 60
        while (done := self.call(*argv)).returncode == 3 and time.monotonic() < end:
            time.sleep(0.5)
        if done.returncode != 0 and "in use" not in done.stderr:  # it may have been heard, and its answer lost
            del self.known[name]
        elif urgent:
            self.make_room(name)

    def make_room(self, name):
        quoted = self.call("quote", name, "-o", "json")
        if quoted.returncode != 0:
            return
        plan = json.loads(quoted.stdout)
        done = self.call("apply", plan["id"], "--wait")
        if done.returncode == 0:
            for victim in plan["victims"]:
                self.expect_gone(f"apply for {name}", victim["job"], victim["epoch"])

    def ask(self, verb, job, *flags, wait):
        self.soon(self.ask_now, verb, job["spec"]["name"], job["epoch"], flags, wait)

    def ask_now(self, verb, name, epoch, flags, wait):
        done = self.call(verb, name, *flags, *(["--wait"] if wait else []), "-o", "json")
        if verb == "cancel" and done.returncode == 0:
            self.cancelled.add(name)
        if done.returncode != 0:
            return
        operation = json.loads(done.stdout)
        if "--deadline" in flags:
            self.deadlines[operation["op_id"]] = float(flags[flags.index("--deadline") + 1].rstrip("s"))
        if verb in ("suspend", "cancel") and wait and operation["state"] == "done":
            self.expect_gone(f"{verb} --wait", name, epoch)

    def expect_gone(self, what, job, epoch):
        left = [str(p) for p in self.cluster.of("rank", job) if p.epoch <= epoch]
        if left:
            self.problem(f"{what} was done while this was left: {', '.join(left)}")

    # ---- what they compute
    def command(self, program, fields, folder):
        return [str(self.cluster.bin / program), "--text", str(self.text), "--steps", str(fields["steps"]), "--hidden", str(HIDDEN),
                "--batch", str(BATCH), "--seed", str(fields["seed"]), "--loss-file", str(folder / "loss"),
                "--digest-file", str(folder / "digest")]

    def reference(self, fields):
        """Losses and final digests of a run that knows nothing of libckpt."""
        key = (fields["ranks"], fields["steps"], fields["seed"])
        if key not in self.references:
            folder = self.cluster.out / "reference"
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "meet").mkdir(parents=True)
            argv = self.command("train_plain", fields, folder) + ["--rendezvous", str(folder / "meet")]
            runs = [subprocess.Popen(argv, env=dict(os.environ, RANK=str(r), WORLD_SIZE=str(key[0])), stdout=subprocess.DEVNULL)
                    for r in range(key[0])]
            codes = [run.wait(120) for run in runs]
            if any(codes):
                raise OSError(f"the uninterrupted run of {key} ended with {codes}")
            self.references[key] = self.read(folder, key[0])
            shutil.rmtree(folder)
        return self.references[key]

    @staticmethod
    def read(folder, ranks):
        with open(folder / "loss") as file:
            losses = [tuple(line.split()[:2]) for line in file]
        return losses, [(folder / f"digest.{r}").read_text().strip() for r in range(ranks)]

    def compare(self, name):
        """Every loss, however often it was computed, and the final state of every rank."""
        fields = self.known[name]
        losses, digests = self.reference(fields)
        wanted = dict(losses)
        try:
            mine, end = self.read(self.cluster.out / "jobs" / name, fields["ranks"])
        except OSError as error:
            self.problem(f"job {name} finished, but {error}")
            return
        wrong = [step for step, bits in mine if wanted.get(step) != bits]
        missing = sorted(set(wanted) - {step for step, _ in mine}, key=int)
        if wrong:
            self.problem(f"job {name}: losses of steps {wrong[:5]} … differ from an uninterrupted run")
        if missing:
            self.problem(f"job {name}: no loss for steps {missing[:5]} …")
        if end != digests:
            self.problem(f"job {name}: final digests {end}, an uninterrupted run has {digests}")
