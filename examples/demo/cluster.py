"""Starts and ends the programs of a small cluster on this machine: ckptd, agents, and what they leave."""
import json
import os
import pathlib
import signal
import subprocess
import time


class DemoError(Exception):
    pass


def boottime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wait_for(what, condition, seconds=60.0, every=0.1):
    """Returns the first true value of `condition`; says what was awaited when time is over."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise DemoError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Cluster:
    def __init__(self, bin_dir, out_dir, say=print):
        self.say = say
        self.bin, self.out = pathlib.Path(bin_dir).resolve(), pathlib.Path(out_dir).resolve()
        self.socket = f"unix:{self.out}/ckptd.sock"
        self.programs = {}
        self.env = dict(os.environ, CKPT_SERVER=self.socket)

    def start(self, name, *argv):
        log = open(self.out / f"{name}.log", "ab")
        self.programs[name] = subprocess.Popen([str(a) for a in argv], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                               env=self.env, start_new_session=True)
        log.close()
        return self.programs[name]

    def start_ckptd(self):
        self.start("ckptd", self.bin / "ckptd", "--listen", self.socket, "--data", self.out / "ckptd")
        wait_for("ckptd answers", lambda: self.check("ckptd") and self.try_ctl("jobs") is not None)

    def start_agent(self, node, slots, staging):
        self.start(f"agent-{node}", self.bin / "ckpt-agent", "--name", node, "--coordinator", self.socket,
                   "--slots", slots, "--staging-budget", staging, "--state-dir", self.out / "nodes" / node,
                   "--store-root", self.out / "store")
        wait_for(f"node {node} is up", lambda: self.check(f"agent-{node}") and any(
            n["info"]["name"] == node and n.get("connected") for n in self.nodes()))

    def check(self, name):
        code = self.programs[name].poll()
        if code is not None:
            tail = (self.out / f"{name}.log").read_text(errors="replace").splitlines()[-5:]
            raise DemoError(f"{name} ended with {code}:\n" + "\n".join(tail))
        return True

    def run_ctl(self, *argv):
        return subprocess.run([str(self.bin / "ckptctl"), *map(str, argv)], env=self.env, capture_output=True, text=True)

    def try_ctl(self, *argv):
        done = self.run_ctl(*argv, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def ctl(self, *argv):
        done = self.run_ctl(*argv, "-o", "json")
        if done.returncode != 0:
            raise DemoError(f"ckptctl {' '.join(map(str, argv))}: exit {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def show(self, *argv):
        """Runs a command as a person would and prints what they would see."""
        self.say(f"$ ckptctl {' '.join(map(str, argv))}")
        done = self.run_ctl(*argv)
        self.say("  " + (done.stdout + done.stderr).rstrip().replace("\n", "\n  "))
        if done.returncode != 0:
            raise DemoError(f"ckptctl {argv[0]} failed with {done.returncode}")
        return done.stdout

    def nodes(self):
        return self.ctl("nodes")["nodes"]

    def job(self, name):
        return self.ctl("job", name)

    def stop(self):
        """Ends every program, and what a killed agent would leave running."""
        for name in sorted(self.programs):
            if self.programs[name].poll() is None:
                self.programs[name].terminate()
        for program in self.programs.values():
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        marker = f"CKPT_SERVER={self.socket}\0".encode()  # only what this cluster started inherits it
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if marker in (entry / "environ").read_bytes() + b"\0":
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass
