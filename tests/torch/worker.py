"""One rank of a training whose every step is written down before it is taken: the batch, the random states, the weights and
the optimizer as digests, then the loss. Two trainings are the same if their lines are."""

import argparse
import hashlib
import os
import random
import signal
import time

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import libckpt.torch as ckpt


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(24, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 24)) for _ in range(2)
        )
        self.unused = nn.Linear(3, 3)  # never gets a gradient
        self.frozen = nn.Linear(24, 24)
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    recompute = False

    @staticmethod
    def of(model):
        return getattr(model, "module", model)

    def forward(self, x):
        h = self.embed(x).mean(1)
        for block in self.blocks:
            h = h + (checkpoint(block, h, use_reentrant=False) if self.recompute else block(h))
        return self.head(h + self.frozen(h))


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def digest(tensors) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(full(tensor.detach()).contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()[:16]


def random_digest() -> str:
    parts = [repr(random.getstate()), torch.get_rng_state().numpy().tobytes().hex(), repr(numpy.random.get_state())]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def optimizer_tensors(model, optimizer):
    for parameter in model.parameters():
        for key in sorted(optimizer.state.get(parameter, {})):
            value = optimizer.state[parameter][key]
            if isinstance(value, torch.Tensor):
                yield value


def build(args, rank, world):
    torch.manual_seed(7)
    model = Net()
    if args.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if args.mode == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    make = {"adamw": lambda p: torch.optim.AdamW(p, lr=0.01), "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01)}[args.optim]
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20_000, cycle_momentum=False)
    data = torch.Generator().manual_seed(3)
    dataset = TensorDataset(torch.randint(0, 50, (120, 6), generator=data), torch.randint(0, 50, (120,), generator=data))
    sampler = DistributedSampler(dataset, world, rank, seed=5) if world > 1 else None
    loader = DataLoader(dataset, batch_size=8, shuffle=sampler is None, sampler=sampler, num_workers=args.workers)
    return model, optimizer, scheduler, loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--write", required=True)
    parser.add_argument("--mode", default="plain")
    parser.add_argument("--optim", default="adamw")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--amp", action="store_true", help="bf16, a grad scaler, recomputed activations, an average, two passes")
    parser.add_argument("--stop-at", type=int, default=-1)
    parser.add_argument("--stop-rank", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds a step takes once this rank got its signal")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that each step takes longer")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--save-each", action="store_true", help="a save at each step, awaited until it is durable")
    parser.add_argument("--without", action="store_true", help="the same training without libckpt")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if args.mode != "plain":
        torch.distributed.init_process_group("gloo")
    model, optimizer, scheduler, loader = build(args, rank, world)
    random.seed(rank), numpy.random.seed(rank), torch.manual_seed(100 + rank)
    state = {"epoch": 0, "seen": 0, "best": float("inf"), "trace": ()}
    run, more = None, {}
    if args.amp:
        Net.recompute = True
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        ema = torch.optim.swa_utils.AveragedModel(Net.of(model), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
        more = {"scaler": scaler, "ema": ema}
    if not args.without:
        run = ckpt.open(args.path, model=model, optim=optimizer, scheduler=scheduler, loader=loader, extra=state,
                        save_every=args.save_every, overlap=args.overlap, **more)
    step, pace = run.global_step if run else 0, 0.0
    with open(f"{args.write}.{rank}", "a") as log:
        while step < args.steps:
            if world > 1:
                loader.sampler.set_epoch(state["epoch"])
            for x, y in loader:
                line = [step, digest([x, y]), random_digest(), digest(model.parameters()), digest(model.buffers()),
                        digest(optimizer_tensors(model, optimizer)) + digest(ema.parameters() if args.amp else []), scheduler.get_last_lr()[0].hex(), repr(state)]
                optimizer.zero_grad()
                for part in range(2 if args.amp else 1):  # gradients of two passes
                    with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                        loss = nn.functional.cross_entropy(model(x), y) / (2 if args.amp else 1)
                    (scaler.scale(loss) if args.amp else loss).backward()
                if args.amp:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
                ema.update_parameters(Net.of(model)) if args.amp else None
                scheduler.step()
                random.random(), numpy.random.rand()
                step += 1
                state["seen"] += len(x)
                state["trace"] = (*state["trace"][-2:], step)
                print(*line, loss.item().hex(), sep="|", file=log, flush=True)
                if step == args.stop_at and rank == args.stop_rank:
                    os.kill(os.getpid(), signal.SIGTERM)
                    pace = args.pace
                time.sleep(pace + args.slow)
                if run:
                    run.step(loss=loss)
                    if args.save_each:
                        run.save(wait=True)
                if step >= args.steps:
                    break
            else:
                state["epoch"] += 1
    if run:
        run.finish(save=args.save_every > 0 and world == 1)
    if args.mode != "plain":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
