"""What the ranks do, while they do it: a line for each rank that moves on a terminal, a line for each change elsewhere."""
import collections
import json
import os
import subprocess
import sys
import threading
import time

SECONDS_PER_CELL = 0.5
CELLS = {"starting": "·", "running": "█", "suspending": "▓", "suspended": "░", "preempted": "░", "pending": " "}
LEGEND = "█ runs  ▓ stops  ░ in RAM, slot free  · starts"


class Live:
    """Prints for the demo; between its lines stands the picture of the last minute or so."""

    def __init__(self, out=sys.stdout):
        self.out, self.tty = out, out.isatty()
        self.lock, self.jobs, self.lanes = threading.Lock(), {}, collections.OrderedDict()
        self.drawn, self.stopped, self.watch, self.threads = 0, threading.Event(), None, []

    def start(self, ckptctl, env):
        self.watch = subprocess.Popen([str(ckptctl), "jobs", "--watch", "-o", "json"], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
        self.threads = [threading.Thread(target=self.read, daemon=True)]
        if self.tty:
            self.threads.append(threading.Thread(target=self.draw_on, daemon=True))
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.stopped.set()
        if self.watch:
            self.watch.terminate()
            self.watch.wait()
        for thread in self.threads:
            thread.join()
        with self.lock:
            self.clear()

    def print(self, text):
        with self.lock:
            self.clear()
            print(text, file=self.out, flush=True)
            self.draw()

    # ---- inside ------------------------------------------------------------------------------------
    def read(self):
        for line in self.watch.stdout:
            jobs = {job["spec"]["name"]: job for job in json.loads(line)["jobs"]}
            for name, job in jobs.items():
                now = (job["state"], job["epoch"])
                before = self.jobs.get(name)
                if not self.tty and (before is None or (before["state"], before["epoch"]) != now):
                    nodes = ", ".join(node["node"] for node in job["placement"]["nodes"])
                    self.print(f"   - {name} is {job['state']}" + (f", epoch {job['epoch']} on {nodes}" if nodes else ""))
            with self.lock:
                self.jobs = jobs

    def draw_on(self):
        while not self.stopped.wait(SECONDS_PER_CELL):
            with self.lock:
                self.advance()
                self.clear()
                self.draw()

    def advance(self):
        width = max(20, os.get_terminal_size(self.out.fileno()).columns - 40)
        for name, job in self.jobs.items():
            if job["state"] in ("finished", "failed", "cancelled"):
                for lane in [lane for lane in self.lanes if lane[0] == name]:
                    del self.lanes[lane]
                continue
            for node in job["placement"]["nodes"]:
                for rank in range(node["first_rank"], node["first_rank"] + node["rank_count"]):
                    cells, _ = self.lanes.get((name, rank), ("", ""))
                    self.lanes[(name, rank)] = ((cells + CELLS.get(job["state"], "?"))[-width:], node["node"])

    def draw(self):
        if not self.tty or not self.lanes or self.stopped.is_set():
            return
        lines = [f"  {name} {rank}".ljust(14)[:14] + f"{node:>8} {cells}" for (name, rank), (cells, node) in self.lanes.items()]
        lines.append(f"  {time.strftime('%H:%M:%S')}  {LEGEND}")
        self.out.write("".join(f"\r{line}\x1b[K\n" for line in lines))
        self.out.flush()
        self.drawn = len(lines)

    def clear(self):
        if self.drawn:
            self.out.write(f"\x1b[{self.drawn}A\r\x1b[J")
        self.drawn = 0
