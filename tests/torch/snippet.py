"""One rank that runs the code it is given, with `ckpt`, `torch`, `rank` and `world` at hand and the process group up."""

import os
import sys

import torch

import libckpt.torch as ckpt

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if world > 1:
    torch.distributed.init_process_group("gloo")
exec(compile(sys.argv[1], "snippet", "exec"), {"ckpt": ckpt, "torch": torch, "rank": rank, "world": world})
if world > 1:
    torch.distributed.destroy_process_group()
