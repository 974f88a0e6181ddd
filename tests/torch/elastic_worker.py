"""One rank that writes down which samples it got, and is suspended after some batches."""

import argparse
import os
import signal

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import libckpt.torch as ckpt

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--stop-after", type=int, default=-1)
args = parser.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    torch.distributed.init_process_group("gloo")
dataset = TensorDataset(torch.arange(96))
sampler = DistributedSampler(dataset, world, rank, shuffle=True, seed=4)
loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler)
state = {"epoch": 0}
run = ckpt.open("store", loader=loader, extra=state)
with open(f"samples.{rank}", "a") as log:
    for epoch in range(state["epoch"], 2):
        state["epoch"] = epoch
        sampler.set_epoch(epoch)
        for i, (samples,) in enumerate(loader, 1):
            print(epoch, *samples.tolist(), file=log, flush=True)
            if i == args.stop_after and rank == world - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            run.step()
run.finish()
if world > 1:
    torch.distributed.destroy_process_group()
