"""Carries a script out: finds what an action may hit, does it, takes it back when its time is over, and writes down what it was."""
import heapq
import os
import random
import signal
import socket
import subprocess
import threading
import time

from script import Action

GARBAGE_SECONDS = 2
QUEUE_MAX = 4  # waiting jobs; more would only wait for the end


class Nothing(Exception):
    """There is nothing to do this to at the moment."""


class Faults:
    def __init__(self, cluster, jobs, store, log):
        self.cluster, self.jobs, self.store, self.log = cluster, jobs, store, log
        self.start = time.monotonic()
        self.undo = []        # heap of (when, number, name, callable)
        self.number = 0
        self.away = {}        # what is down, stopped or cut off now -> since when (wall clock)
        self.excuses = []     # (from, until), wall clock
        self.lock = threading.Lock()

    def now(self):
        return time.monotonic() - self.start

    def say(self, text):
        with self.lock:
            self.log.write(text + "\n")
            self.log.flush()

    def do(self, action):
        """False when there was nothing to do it to."""
        done = Action(round(self.now(), 2), action.kind, **{k: v for k, v in action.fields.items() if k != "pick"})
        try:
            getattr(self, action.kind)(action, done)
            self.say(str(done))
            return True
        except Nothing as why:
            self.say(f"# {done} : {why}")
            return False

    # ---- taking back
    def later(self, seconds, name, call):
        self.number += 1
        heapq.heappush(self.undo, (self.now() + seconds, self.number, name, call))

    def take_back(self, all_of_it=False):
        while self.undo and (all_of_it or self.undo[0][0] <= self.now()):
            _, _, name, call = heapq.heappop(self.undo)
            call()
            self.say(f"# {self.now():8.2f} {name}: taken back")

    def next_undo(self):
        return self.undo[0][0] if self.undo else float("inf")

    def leave(self, name):
        self.away[name] = time.time()

    def back(self, name):
        self.excuses.append((self.away.pop(name), time.time()))

    def excuses_until_now(self):
        return self.excuses + [(since, time.time()) for since in self.away.values()]

    # ---- choosing
    @staticmethod
    def choose(candidates, action, what):
        if not candidates:
            raise Nothing(f"no {what}")
        return candidates[int(action.get("pick", 0) * len(candidates))]

    def a_process(self, program, action, done):
        found = [p for p in self.cluster.of(program) if p.pid not in self.away and
                 all(action.get(field) in (None, getattr(p, field)) for field in ("job", "rank", "node"))]
        process = self.choose(found, action, f"{program} that runs")
        done.fields["job"] = process.job
        done.fields.update({"rank": process.rank} if program == "rank" else {"node": process.node})
        return process

    def a_node(self, action, done, prefix=""):
        nodes = [n for n in self.cluster.node_names if action.get("node") in (None, n) and prefix + n not in self.away]
        node = self.choose(nodes, action, "node that is there")
        done.fields["node"] = node
        return node

    # ---- ranks and ckpt-runs
    def signal(self, process, number):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            raise Nothing(f"{process} is gone") from None

    def pause(self, process, seconds):
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            raise Nothing(f"{process} is gone") from None
        self.signal(process, signal.SIGSTOP)
        self.leave(process.pid)

        def go_on():
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except ProcessLookupError:
                pass
            os.close(pidfd)
            self.back(process.pid)
        self.later(seconds, f"SIGSTOP of {process}", go_on)

    def kill_rank(self, action, done):
        self.signal(self.a_process("rank", action, done), signal.SIGKILL)

    def term_rank(self, action, done):
        self.signal(self.a_process("rank", action, done), signal.SIGTERM)

    def stop_rank(self, action, done):
        self.pause(self.a_process("rank", action, done), action.get("for"))

    def kill_run(self, action, done):
        self.signal(self.a_process("ckpt-run", action, done), signal.SIGKILL)

    def stop_run(self, action, done):
        self.pause(self.a_process("ckpt-run", action, done), action.get("for"))

    # ---- agents and ckptd
    def end_for(self, name, how, seconds):
        if name in self.away or not self.cluster.running(name):
            raise Nothing(f"{name} is away already")
        self.leave(name)
        self.cluster.end(name, how)

        def start():
            self.cluster.launch(name)
            self.back(name)
        self.later(seconds, f"end of {name}", start)

    def stop_for(self, name, seconds):
        if name in self.away or not self.cluster.running(name):
            raise Nothing(f"{name} is away already")
        self.leave(name)
        os.kill(self.cluster.programs[name].pid, signal.SIGSTOP)

        def go_on():
            os.kill(self.cluster.programs[name].pid, signal.SIGCONT)
            self.back(name)
        self.later(seconds, f"SIGSTOP of {name}", go_on)

    def kill_agent(self, action, done):
        self.end_for("agent-" + self.a_node(action, done, "agent-"), signal.SIGKILL, action.get("for"))

    def restart_agent(self, action, done):
        self.end_for("agent-" + self.a_node(action, done, "agent-"), signal.SIGTERM, action.get("for"))

    def stop_agent(self, action, done):
        self.stop_for("agent-" + self.a_node(action, done, "agent-"), action.get("for"))

    def kill_ckptd(self, action, done):
        self.end_for("ckptd", signal.SIGKILL, action.get("for"))

    def restart_ckptd(self, action, done):
        self.end_for("ckptd", signal.SIGTERM, action.get("for"))

    def stop_ckptd(self, action, done):
        self.stop_for("ckptd", action.get("for"))

    # ---- the world around them
    def link_down(self, action, done):
        node = self.a_node(action, done, "link-")
        self.cluster.network.link(node, False)
        self.leave("link-" + node)

        def up():
            self.cluster.network.link(node, True)
            self.back("link-" + node)
        self.later(action.get("for"), f"link of {node}", up)

    def fill_store(self, action, done):
        if "store" in self.away:
            raise Nothing("the store is full already")
        self.store.fill()
        self.leave("store")

        def empty():
            self.store.empty()
            self.back("store")
        self.later(action.get("for"), "full store", empty)

    def garbage(self, action, done):
        """Noise to every port that a program of the soak listens on."""
        rng = random.Random(action.get("noise"))
        ports = sorted(self.listening())
        done.fields["ports"] = len(ports)
        for node, port in ports:
            noise = rng.choice([rng.randbytes(rng.randint(1, 4096)), b"\xff" * 4096, b"GET / HTTP/1.1\r\n\r\n",
                                (rng.getrandbits(31)).to_bytes(4, "little") + rng.randbytes(60), b""])
            self.shout(node, port, noise)

    def listening(self):
        """(node, port) of all listening sockets there."""
        for name in self.cluster.network.addresses:
            done = subprocess.run([*self.cluster.network.enter(name), "ss", "-Hltn"], capture_output=True, text=True)
            for line in done.stdout.splitlines():
                address, _, port = line.split()[3].rpartition(":")
                if self.cluster.network.can_partition or f"127.0.0.1:{port}" in self.own_ports():
                    yield name, f"{address}:{port}"
            if not self.cluster.network.can_partition:
                return

    def own_ports(self):
        return {self.cluster.network.server} | {n["info"]["data_address"] for n in self.jobs.nodes}

    def shout(self, node, address, noise):
        text = ("import socket,sys\nh,_,p=sys.argv[1].rpartition(':')\n"
                f"s=socket.create_connection((h,int(p)),{GARBAGE_SECONDS})\ns.settimeout(0.3)\n"
                "s.sendall(sys.stdin.buffer.read())\ntry: s.recv(100)\nexcept OSError: pass\n")
        subprocess.Popen([*self.cluster.network.enter(node), "python3", "-c", text, address], stdin=subprocess.PIPE,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).communicate(noise)

    # ---- what people ask for
    def submit(self, action, done):
        if len(self.jobs.in_state(("pending", "preempted"))) >= QUEUE_MAX:
            raise Nothing("enough jobs wait already")
        self.jobs.submit(action.fields)

    def urgent(self, action, done):
        self.jobs.submit(action.fields, urgent=True)

    def ask(self, verb, states, action, done, *flags):
        jobs = [j for j in self.jobs.in_state(states) if action.get("job") in (None, j["spec"]["name"])]
        job = self.choose(jobs, action, f"job that is {' or '.join(states)}")
        done.fields["job"] = job["spec"]["name"]
        if action.get("deadline"):
            flags += ("--deadline", f"{action.get('deadline')}s")
        self.jobs.ask(verb, job, *flags, wait=bool(action.get("wait")))

    def suspend(self, action, done):
        self.ask("suspend", ("running",), action, done)

    def resume(self, action, done):
        self.ask("resume", ("suspended", "failed"), action, done)

    def checkpoint(self, action, done):
        self.ask("checkpoint", ("running",), action, done)

    def cancel(self, action, done):
        self.ask("cancel", ("running", "pending", "preempted", "suspended", "suspending", "starting"), action, done)

    def migrate(self, action, done):
        jobs = [j for j in self.jobs.in_state(("running",)) if action.get("job") in (None, j["spec"]["name"])]
        job = self.choose(jobs, action, "job that is running")
        there = [n["node"] for n in job["placement"]["nodes"]]
        free = [n for n in self.cluster.node_names if n not in there]
        to = action.get("to") or self.choose(free, action, "node that it does not run on")
        source = action.get("from") or self.choose(there, action, "node that it runs on")
        done.fields.update({"job": job["spec"]["name"], "from": source, "to": to})
        flags = ("--deadline", f"{action.get('deadline')}s") if action.get("deadline") else ()
        self.jobs.ask("migrate", job, "--from", source, "--to", to, *flags, wait=bool(action.get("wait")))


