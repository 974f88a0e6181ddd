"""The programs under test: ckptd, an agent a node, and whatever these start; found in /proc by a mark in their environment."""
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "demo"))
from cluster import Cluster, DemoError, alive, wait_for  # noqa: E402
from network import HUB, make_network  # noqa: E402

CALL_SECONDS = 60  # of one ckptctl; it gives up on a coordinator that is not there much earlier


class Process:
    """One process of the soak, as it was when it was seen."""

    def __init__(self, pid, program, env, argv):
        self.pid, self.program, self.env, self.argv = pid, program, env, argv
        self.job = env.get("CKPT_JOB") if program == "rank" else self.flag("--job")
        self.epoch = int(env.get("CKPT_EPOCH", 0)) if program == "rank" else int(self.flag("--epoch") or 0)
        self.rank = int(env["RANK"]) if program == "rank" else None
        self.node = os.path.basename(os.path.dirname(env["CKPT_LAUNCH"].rsplit("@", 1)[1])) if "CKPT_LAUNCH" in env else None

    def flag(self, name):
        return self.argv[self.argv.index(name) + 1] if name in self.argv[:-1] else None

    def __str__(self):
        return f"{self.program} {self.job}.e{self.epoch}" + (f" rank {self.rank}" if self.rank is not None else "") + \
            f" on {self.node} (pid {self.pid})"


class SoakCluster(Cluster):
    def __init__(self, bin_dir, out, nodes, slots, store):
        super().__init__(bin_dir, out)
        self.node_names, self.slots, self.store = nodes, slots, store
        self.network, self.why_plain = make_network(nodes)
        self.mark = f"CKPT_SOAK={self.out}"
        self.tmp = self.out / "tmp"
        self.tmp.mkdir()
        self.socket = self.network.server
        self.env.update(CKPT_SERVER=self.network.server, CKPT_SOAK=str(self.out), TMPDIR=str(self.tmp))
        self.env.pop("XDG_RUNTIME_DIR", None)  # would be preferred to TMPDIR
        self.base_memory = {}

    # ---- starting and ending
    def spawn(self, name, node, *argv):
        env = dict(self.env, TRAIN_HOST=self.network.addresses[node])
        with open(self.out / f"{name}.log", "ab") as log:
            self.programs[name] = subprocess.Popen([*self.network.enter(node), *map(str, argv)], stdout=log, stderr=log,
                                                   stdin=subprocess.DEVNULL, env=env, start_new_session=True)

    def launch_ckptd(self):
        self.spawn("ckptd", HUB, self.bin / "ckptd", "--listen", self.network.server, "--data", self.out / "ckptd")

    def launch_agent(self, node):
        self.spawn(f"agent-{node}", node, self.bin / "ckpt-agent", "--name", node, "--coordinator", self.network.server,
                   "--address", self.network.addresses[node], "--slots", self.slots, "--staging-budget", "512MiB",
                   "--state-dir", self.out / "nodes" / node, "--store-root", self.store)

    def launch(self, name):
        """`name` is "ckptd" or "agent-NODE"."""
        self.launch_ckptd() if name == "ckptd" else self.launch_agent(name.removeprefix("agent-"))

    def running(self, name):
        return name in self.programs and self.programs[name].poll() is None

    def start(self):
        self.launch_ckptd()
        wait_for("ckptd answers", lambda: self.check("ckptd") and self.try_ctl("jobs") is not None)
        for node in self.node_names:
            self.launch_agent(node)
        self.wait_connected()

    def wait_connected(self, seconds=60):
        wait_for("all nodes are connected", lambda: (nodes := self.try_ctl("nodes")) and
                 sorted(n["info"]["name"] for n in nodes["nodes"] if n["connected"]) == sorted(self.node_names), seconds)

    def end(self, name, how):
        """Signals one of the programs and waits for its end: an agent that alone holds a copy takes a minute."""
        program = self.programs[name]
        program.send_signal(how)
        if how != signal.SIGKILL:
            program.send_signal(signal.SIGCONT)  # a stopped one hears nothing
        return program.wait(90)

    def stop(self):
        for name in sorted(self.programs):
            if self.running(name):
                try:
                    self.end(name, signal.SIGTERM)
                except subprocess.TimeoutExpired:
                    self.end(name, signal.SIGKILL)
        for process in self.processes():
            os.kill(process.pid, signal.SIGKILL)
        wait_for("every process of the soak is gone", lambda: not self.processes(), 30)
        self.network.close()

    # ---- looking
    def run_ctl(self, *argv):
        try:
            return subprocess.run([*self.network.enter(HUB), str(self.bin / "ckptctl"), *map(str, argv)],
                                  env={k: v for k, v in self.env.items() if k != "CKPT_SOAK"}, capture_output=True, text=True,
                                  timeout=CALL_SECONDS)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 3, "", f"no answer within {CALL_SECONDS} s")

    def processes(self):
        """All living processes of the soak but ckptctl."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            process = self.look(int(entry))
            if process is not None and alive(process.pid):
                found.append(process)
        return sorted(found, key=lambda p: (str(p.job), p.epoch, p.program, p.rank or 0, str(p.node)))

    def look(self, pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
            if self.mark not in words:
                return None
            env = dict(word.split("=", 1) for word in words if "=" in word)
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                argv = file.read().decode(errors="replace").split("\0")
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return None
        return Process(pid, "rank" if "RANK" in env and "CKPT_RUN" in env else program, env, argv)

    def of(self, program, job=None):
        return [p for p in self.processes() if p.program == program and job in (None, p.job)]

    # ---- memory
    def memory_of(self, name):
        """(resident bytes, memfds) of ckptd or an agent."""
        pid = self.programs[name].pid
        with open(f"/proc/{pid}/status") as status:
            rss = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
        memfds = 0
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                memfds += os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:")
            except OSError:
                pass
        return rss, memfds

    def note_base_memory(self):
        time.sleep(0.5)
        self.base_memory = {name: self.memory_of(name) for name in self.programs}


__all__ = ["DemoError", "Process", "SoakCluster", "alive", "wait_for"]
