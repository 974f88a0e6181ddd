"""One rank that saves and loads by torch.distributed.checkpoint; see test_dcp.py."""

import argparse
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from libckpt.torch.dcp import Reader, Stager, Writer
from reshard_worker import build, expected, fill, full


def back_end(name, path):
    if name == "ours":
        return Writer(path), Reader(path)
    return dcp.FileSystemWriter(path, overwrite=True), dcp.FileSystemReader(path)


class PlannerThatFails(DefaultSavePlanner):
    def resolve_data(self, item):
        if os.environ["RANK"] == "1":
            raise ValueError("no such luck")
        return super().resolve_data(item)


def tensors(state, prefix=""):
    for key, value in state.items():
        name = f"{prefix}/{key}"
        if isinstance(value, dict):
            yield from tensors(value, name)
        elif isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim:
            yield name, value


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--back-end", required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--expect", type=int, default=-1)
    parser.add_argument("--async", dest="asynchronous", action="store_true")
    parser.add_argument("--fail", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        torch.distributed.init_process_group("gloo")
    model = build(args.kind, world, 8)
    model = model.module if args.kind == "ddp" else model
    optimizer = torch.optim.Adam(model.parameters())
    writer, reader = back_end(args.back_end, args.path)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    if args.expect >= 0:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optim": optimizer_state, "step": -1}
        dcp.load(state, storage_reader=reader)
        set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
        assert state["step"] == args.expect, state["step"]
        for name, tensor in tensors({"model": model_state, "optim": optimizer_state["state"]}):
            assert torch.equal(full(tensor), expected(name, tensor.shape, args.expect)), name

    step = args.expect + 1
    model_state, optimizer_state = get_state_dict(model, optimizer)
    for name, tensor in tensors({"model": model_state, "optim": optimizer_state["state"]}):
        fill(tensor, name, step)
    state = {"model": model_state, "optim": optimizer_state, "step": step}
    if args.fail:
        try:
            dcp.save(state, storage_writer=writer, planner=PlannerThatFails())
        except dcp.CheckpointException as error:
            print(error)
            assert "no such luck" in str(error)
            return
        raise AssertionError("it was saved")
    if args.asynchronous:
        future = dcp.async_save(state, storage_writer=writer, async_stager=Stager() if args.back_end == "ours" else None)
        for _, tensor in tensors(state):
            with torch.no_grad():
                tensor.zero_()  # the loop goes on
        future.result()
    else:
        dcp.save(state, storage_writer=writer)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
