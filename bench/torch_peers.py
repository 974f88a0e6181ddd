#!/usr/bin/env python3
"""libckpt.torch beside torch.save and torch.distributed.checkpoint, on one state, on this machine.

    build/venv-torch/bin/python bench/torch_peers.py [--size-mib 1024] [--rounds 3] [--dir FOLDER] [--only libckpt,torch.save]

Each peer runs in a fresh process and saves three times; what is reported is the median of the later saves of all rounds. Beside
each peer, in the same minute, the limits: a memcpy of the same bytes into touched memory, and a write of the same bytes with
fsync. One JSON object a line: name, value, unit, limit, ratio.

  stall     from the call to where the state may be changed
  durable   from the call to where every file and folder that was written has been fsynced (done here for peers that do not)
  restore   into tensors that exist, from a warm page cache, and whether what came back is equal
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PEERS = ["libckpt", "torch.save", "dcp.save", "dcp.async_save"]
SAVES = 3


def make_state(size_mib):
    """Weights and the two moments of Adam, a third of the bytes each, in 96 tensors, plus 32 scalars."""
    import torch

    torch.manual_seed(0)
    count = size_mib * 2**20 // 4 // 96
    state = {f"layer{i}.{kind}": torch.randn(count) for i in range(32) for kind in ("weight", "exp_avg", "exp_avg_sq")}
    state.update({f"layer{i}.step": torch.tensor(float(i)) for i in range(32)})
    return state


def fsync_tree(folder):
    for root, _, names in os.walk(folder):
        for name in [*names, "."]:
            handle = os.open(os.path.join(root, name), os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)


def limits(state, folder):
    import torch

    big = [t for t in state.values() if t.numel() > 1]
    copies = [torch.zeros_like(t) for t in big]
    times = []
    for _ in range(3):
        begun = time.perf_counter()
        for copy, tensor in zip(copies, big):
            copy.copy_(tensor)
        times.append(time.perf_counter() - begun)
    del copies
    path = os.path.join(folder, "limit")
    begun = time.perf_counter()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    for tensor in big:
        os.write(handle, memoryview(tensor.numpy()).cast("B"))
    os.fsync(handle)
    os.close(handle)
    write = time.perf_counter() - begun
    os.unlink(path)
    return min(times), write


class Libckpt:
    def __init__(self, state, folder):
        import libckpt.torch as ckpt

        self.run = ckpt.open(folder, extra=state, rng=False)

    def save(self, step):
        self.run.global_step = step
        self.pending = self.run.save()

    def wait(self):
        self.pending.wait()

    @staticmethod
    def load(state, folder):
        import libckpt.torch as ckpt

        ckpt.open(folder, extra=state, rng=False).close()


class TorchSave:
    def __init__(self, state, folder):
        self.state, self.folder = state, folder

    def save(self, step):
        import torch

        torch.save(self.state, os.path.join(self.folder, f"{step}.pt"))

    def wait(self):
        fsync_tree(self.folder)

    @staticmethod
    def load(state, folder):
        import torch

        newest = max(pathlib.Path(folder).glob("*.pt"), key=lambda p: int(p.stem))
        for name, tensor in torch.load(newest, weights_only=True).items():
            state[name].copy_(tensor)


class Dcp:
    asynchronous = False

    def __init__(self, state, folder):
        import torch.distributed.checkpoint as dcp

        if self.asynchronous:
            import torch

            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.dcp, self.state, self.folder, self.future = dcp, state, folder, None

    def save(self, step):
        call = self.dcp.async_save if self.asynchronous else self.dcp.save
        self.future = call(self.state, checkpoint_id=os.path.join(self.folder, str(step)))

    def wait(self):
        if self.asynchronous:
            self.future.result()
        fsync_tree(self.folder)

    @staticmethod
    def load(state, folder):
        import torch.distributed.checkpoint as dcp

        newest = max(pathlib.Path(folder).iterdir(), key=lambda p: int(p.name))
        dcp.load(state, checkpoint_id=str(newest))


class DcpAsync(Dcp):
    asynchronous = True


CLASSES = dict(zip(PEERS, (Libckpt, TorchSave, Dcp, DcpAsync)))


def measure(name, size_mib, folder):
    """In a process of its own: [stall, durable] of each save, restore, whether it is equal, and the limits."""
    import torch

    state = make_state(size_mib)
    memcpy, write = limits(state, folder)
    store = os.path.join(folder, "store")
    os.mkdir(store)
    peer, saves = CLASSES[name](state, store), []
    for step in range(1, SAVES + 1):
        begun = time.perf_counter()
        peer.save(step)
        stall = time.perf_counter() - begun
        peer.wait()
        saves.append([stall, time.perf_counter() - begun])
    if name == "libckpt":
        peer.run.close()
    target = {key: torch.zeros_like(tensor) for key, tensor in state.items()}
    begun = time.perf_counter()
    CLASSES[name].load(target, store)
    restore = time.perf_counter() - begun
    equal = all(torch.equal(state[key], target[key]) for key in state)
    print(json.dumps({"saves": saves, "restore": restore, "equal": equal, "memcpy": memcpy, "write": write}), flush=True)
    os._exit(0)


def report(name, records):
    later = [save for record in records for save in record["saves"][1:]]
    rows = {
        "stall": (statistics.median(s for s, _ in later), statistics.median(r["memcpy"] for r in records)),
        "first_stall": (statistics.median(r["saves"][0][0] for r in records), statistics.median(r["memcpy"] for r in records)),
        "durable": (statistics.median(d for _, d in later), statistics.median(r["write"] for r in records)),
        "restore": (statistics.median(r["restore"] for r in records), statistics.median(r["memcpy"] for r in records)),
    }
    for what, (value, limit) in rows.items():
        print(json.dumps({"name": f"{name}.{what}", "value": round(value, 4), "unit": "s", "limit": round(limit, 4),
                          "ratio": round(value / limit, 2), "equal": all(r["equal"] for r in records)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None, help="a folder on the disk in question")
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.size_mib, args.dir)
    names = args.only.split(",")
    records = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            folder = tempfile.mkdtemp(prefix="torch_peers.", dir=args.dir)
            try:
                command = [sys.executable, __file__, "--measure", name, "--size-mib", str(args.size_mib), "--dir", folder]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0 or not done.stdout.strip():
                    sys.exit(f"{name}: {done.stdout}{done.stderr}")
                records[name].append(json.loads(done.stdout.splitlines()[-1]))
            finally:
                shutil.rmtree(folder)
    for name in names:
        report(name, records[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
