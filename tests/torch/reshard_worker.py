"""One rank that builds a model of a given kind, loads what is there, compares it with what is expected, and saves.

The expected state is a function of names and step, so that every rank of every shape can compute it by itself."""

import argparse
import os
import zlib

import torch
from torch import nn

import libckpt.torch as ckpt
from libckpt.torch._parts import unwrap
from libckpt.torch._tensors import box_of


def expected(name, shape, step):
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{step}".encode()))
    return torch.randn(tuple(shape), generator=generator)


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def fill(tensor, name, step):
    """Writes the expected values into a tensor of any placement."""
    whole = expected(name, tensor.shape, step).to(tensor.dtype)
    with torch.no_grad():
        if hasattr(tensor, "placements"):
            # What torch makes of it is held against the expected whole after the next load, by full_tensor().
            shape, offset = box_of(tensor, name)
            tensor._local_tensor.copy_(whole[tuple(slice(o, o + n) for o, n in zip(offset, shape))])
        else:
            tensor.copy_(whole)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        hidden = 2 * width + width % 2
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(x + self.down(self.up(x).relu()))


def build(kind, world, width):
    torch.manual_seed(os.getpid())  # nothing may depend on how it begins
    model = nn.Sequential(Block(width), Block(width), nn.Linear(width, 5))
    if kind == "plain":
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind in ("tp", "fsdp_tp"):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        shape = (world,) if kind == "tp" else (world // 2, 2)
        names = ("tp",) if kind == "tp" else ("dp", "tp")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for block in model[:2]:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if kind == "tp":
            return model
        mesh = mesh["dp"]
    elif kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,))
    for block in model[:2]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh) or model


def buffers(model):
    return unwrap(model).named_buffers()


def named_state(model, optimizer):
    for name, parameter in unwrap(model).named_parameters():
        yield name, parameter
        for key in ("exp_avg", "exp_avg_sq"):
            if parameter in optimizer.state:
                yield f"{name}/{key}", optimizer.state[parameter][key]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--expect", type=int, default=-1, help="the step that must be there")
    parser.add_argument("--width", type=int, default=7, help="7 is uneven on any mesh")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        torch.distributed.init_process_group("gloo")
    model = build(args.kind, world, args.width)
    optimizer = torch.optim.Adam(model.parameters())
    run = ckpt.open(args.path, model=model, optim=optimizer, extra={"kind": "any"})
    if args.expect >= 0:
        assert run.global_step == args.expect, run.global_step
        seen = 0
        for name, tensor in named_state(model, optimizer):
            assert torch.equal(full(tensor), expected(name, tensor.shape, args.expect)), name
            seen += 1
        assert seen == 3 * sum(1 for _ in model.parameters())
        assert all(s["step"].device.type == "cpu" and s["step"].item() == args.expect for s in optimizer.state.values())
        for name, buffer in buffers(model):
            assert buffer.float().mean().item() == args.expect, name
    else:
        assert run.resumed_from is None
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes the state of the optimizer
    step = run.global_step + 1
    for name, tensor in named_state(model, optimizer):
        fill(tensor, name, step)
    for state in optimizer.state.values():
        state["step"].fill_(step)
    for name, buffer in buffers(model):
        buffer.fill_(step)
    run.step()
    run.save(wait=True)
    run.finish()
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
