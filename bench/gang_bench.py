#!/usr/bin/env python3
"""What giving up, coming back and moving costs, by the real programs: ckptd, agents, ckpt-run, ranks with a large state.

  gang_bench.py BIN_DIR [--mib N] [--rounds N]

Each line is a JSON object: a median over rounds, the limit measured in the same rounds, their ratio, the target.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples" / "demo"))
from cluster import Cluster, boottime, wait_for  # noqa: E402

STEP_MS = 50
SETTLE_S = 3  # of training before anything is asked: staging memory is touched beforehand, not in the first second


def event_time(line):
    """Seconds of a line of ckptd's log."""
    return datetime.datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp()


def report(name, pairs, target, lower, unit):
    ratios = [value / limit for value, limit in pairs]
    ratio = statistics.median(ratios)
    print(json.dumps({"name": name, "value": round(statistics.median(v for v, _ in pairs), 4),
                      "limit": round(statistics.median(l for _, l in pairs), 4), "ratio": round(ratio, 4), "target": target,
                      "pass": ratio <= target if lower else ratio >= target, "unit": unit, "rounds": len(pairs)}), flush=True)


def tcp_rate(total_bytes, keep):
    """Bytes a second of the best of 1, 2, 4 and 8 streams on loopback: into a buffer, or kept in fresh shared memory."""
    piece = memoryview(bytearray(1 << 20))

    def receive(listener, count):
        stream, _ = listener.accept()
        into, left = memoryview(bytearray(1 << 18)), count
        memory = os.memfd_create("kept") if keep else None
        while left > 0:
            got = stream.recv_into(into)
            if keep:
                os.write(memory, into[:got])
            left -= got
        stream.close()
        if keep:
            kept.append(memory)

    def send(port, count):
        with socket.create_connection(("127.0.0.1", port)) as stream:
            for _ in range(count // len(piece)):
                stream.sendall(piece)

    best = 0.0
    for streams in (1, 2, 4, 8):
        kept = []
        share = total_bytes // streams >> 20 << 20
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(streams)]
        threads = [threading.Thread(target=receive, args=(listener, share)) for listener in listeners]
        threads += [threading.Thread(target=send, args=(listener.getsockname()[1], share)) for listener in listeners]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = max(best, share * streams / (time.monotonic() - began))
        for memory in kept:
            os.close(memory)
        for listener in listeners:
            listener.close()
    return best


class GangBench:
    def __init__(self, bin_dir, out, mib, rounds):
        self.cluster, self.out, self.mib, self.rounds = Cluster(bin_dir, out), out, mib, rounds
        self.rank = pathlib.Path(bin_dir).resolve() / "gang_bench_rank"
        self.bytes = 2 * mib << 20

    def job(self, name="big"):
        return self.cluster.job(name)

    def ctl(self, *argv):
        done = self.cluster.run_ctl(*argv)
        if done.returncode != 0:
            raise RuntimeError(f"ckptctl {argv[0]}: {done.stderr.strip()}")

    def moments(self, what, since):
        """When each rank did `what` last, if after `since` (seconds of boottime)."""
        found = []
        for path in self.out.glob("moments.*"):
            times = [int(line.split()[1]) / 1e9 for line in path.read_text().splitlines() if line.split()[0] == what]
            found += [t for t in times[-1:] if t > since]
        return found

    def event(self, what):
        """When ckptd said so last."""
        return event_time([line for line in (self.out / "ckptd.log").read_text().splitlines() if what in line][-1])

    def stepping(self, since):
        wait_for("both ranks step", lambda: len(self.moments("stepped", since)) == 2 and self.job()["state"] == "running", 120, 0.02)

    def stop_times(self):
        times = wait_for("the comparison with memcpy", lambda: (t := self.job()["last_stop"])["memcpy_ratio"] and t, 60, 0.05)
        self.durable()
        return times

    def durable(self):
        wait_for("durable", lambda: self.job()["copies"][0]["durable"], 120)

    def start(self):
        self.cluster.start_ckptd()
        for node in ("a", "b"):
            self.cluster.start_agent(node, 2, f"{4 * self.mib * 2 + 512}MiB")
        began = boottime()
        self.ctl("submit", "--name", "big", "--ranks", 2, "--priority", 1, "--", self.rank, self.mib, STEP_MS, self.out / "moments")
        self.stepping(began)

    def suspend_and_resume(self):
        granted, resumed = [], []
        for _ in range(self.rounds):
            time.sleep(SETTLE_S)
            began = boottime()
            self.cluster.run_ctl("nodes")
            round_trip = boottime() - began
            began = boottime()
            self.ctl("suspend", "big", "--wait")
            times = self.stop_times()
            copy = times["stall_ns"] / times["memcpy_ratio"] / 1e9
            leaving = (times["released_ns"] - max(times["comms_down_ns"], times["staged_ns"])) / 1e9
            limit = STEP_MS / 1e3 + round_trip + 1.2 * copy + 0.1 + leaving
            granted.append((times["released_ns"] / 1e9 - began, limit))
            began = boottime()
            self.ctl("resume", "big")
            self.stepping(began)
            starting = max(self.moments("restoring", began)) - began
            rate = times["staged_bytes"] / copy  # of a memcpy on these cores
            resumed.append((max(self.moments("stepped", began)) - began, starting + self.bytes / (0.8 * rate) + 0.2))
        report("request_to_released", granted, 1.0, True, "s")
        report("resume_to_first_step", resumed, 1.0, True, "s")

    def migrate(self):
        plain, kept, nodes = [], [], ["a", "b"]
        for _ in range(self.rounds):
            time.sleep(SETTLE_S)
            here = self.job()["placement"]["nodes"][0]["node"]
            there = nodes[1 - nodes.index(here)]
            began = boottime()
            self.ctl("migrate", "big", "--from", here, "--to", there, "--wait")
            self.stepping(began)
            # From the last process gone to all bytes verified there; starting the ranks is a resume's.
            rate = self.bytes / (self.event("fetched job big") - self.event("released job big")) / 1e9
            self.durable()
            plain.append((rate, tcp_rate(self.bytes, keep=False) / 1e9))
            kept.append((rate, tcp_rate(self.bytes, keep=True) / 1e9))
        report("migrate", plain, 0.8, False, "GB/s")
        report("migrate_beside_streams_that_keep_it", kept, 0.8, False, "GB/s")

    def run(self):
        try:
            self.start()
            self.suspend_and_resume()
            self.migrate()
        finally:
            self.cluster.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin_dir")
    parser.add_argument("--mib", type=int, default=1024, help="state of each of the two ranks")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    out = pathlib.Path(tempfile.mkdtemp(prefix="gang_bench.tmp.", dir="."))
    try:
        GangBench(options.bin_dir, out.resolve(), options.mib, options.rounds).run()
    finally:
        shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
