"""torch.distributed.checkpoint over this library: what holds for torch's own file back end holds for it, and more."""

import copy
import io
import json
import os
import pathlib

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import libckpt
from libckpt.torch.dcp import Reader, Stager, Writer

BACK_ENDS = {
    "torch": (lambda path: dcp.FileSystemWriter(path, overwrite=True), dcp.FileSystemReader),
    "ours": (Writer, Reader),
}


@pytest.fixture(params=BACK_ENDS)
def back_end(request):
    return BACK_ENDS[request.param]


@pytest.fixture
def ours():
    return BACK_ENDS["ours"]


def some_state(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40), nn.Linear(40, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 30)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(), "optim": optimizer.state_dict(), "count": seed, "text": "naïve",
        "nested": {"list": [1, torch.arange(5) + seed], "none": None, "tuple": (1.5, b"x")},
    }


def zeroed(value):
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: zeroed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(zeroed(item) for item in value)
    return None if value is None else type(value)()


def assert_equal(a, b, where=""):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a.view(torch.uint8) if a.numel() and a.ndim else a,
                                                  b.view(torch.uint8) if a.numel() and a.ndim else b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), where
        for x, y in zip(a, b):
            assert_equal(x, y, where)
    else:
        assert type(a) is type(b) and a == b, where


# ---- what holds for both ----------------------------------------------------------------------------------------------


def test_what_was_saved_is_loaded(back_end, tmp_path):
    write, read = back_end
    state = some_state()
    dcp.save(state, storage_writer=write(tmp_path / "x"))
    loaded = zeroed(state)
    dcp.load(loaded, storage_reader=read(tmp_path / "x"))
    assert_equal(state, loaded)


def test_every_dtype_and_shape(back_end, tmp_path):
    write, read = back_end
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
             "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]
    bits = torch.arange(16 * 24, dtype=torch.int32).to(torch.uint8)
    state = {name: (bits % 2).bool() if name == "bool" else bits.clone().view(getattr(torch, name)) for name in names}
    state.update(scalar=torch.tensor(1.5), empty=torch.empty(0, 3), strided=torch.arange(24.0).reshape(4, 6).t()[::2],
                 nan=torch.tensor([float("nan"), -0.0, float("inf")]))
    dcp.save(state, storage_writer=write(tmp_path / "x"))
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(loaded, storage_reader=read(tmp_path / "x"))
    for name, tensor in state.items():
        assert_equal(tensor.contiguous(), loaded[name].contiguous(), name)


def test_a_part_is_loaded(back_end, tmp_path):
    write, read = back_end
    state = some_state()
    dcp.save(state, storage_writer=write(tmp_path / "x"))
    part = {"model": {"0.weight": torch.zeros(40, 30)}}
    dcp.load(part, storage_reader=read(tmp_path / "x"))
    assert torch.equal(part["model"]["0.weight"], state["model"]["0.weight"])


def test_into_another_dtype(back_end, tmp_path):
    write, read = back_end
    dcp.save({"a": torch.arange(6.0)}, storage_writer=write(tmp_path / "x"))
    target = {"a": torch.zeros(6, dtype=torch.bfloat16)}
    dcp.load(target, storage_reader=read(tmp_path / "x"))
    assert torch.equal(target["a"], torch.arange(6.0).bfloat16())


def test_what_is_not_there_is_an_error(back_end, tmp_path):
    write, read = back_end
    dcp.save({"a": torch.ones(3)}, storage_writer=write(tmp_path / "x"))
    with pytest.raises((dcp.CheckpointException, RuntimeError, KeyError), match="b"):
        dcp.load({"b": torch.ones(3)}, storage_reader=read(tmp_path / "x"))
    with pytest.raises((dcp.CheckpointException, ValueError), match="[Ss]ize"):
        dcp.load({"a": torch.ones(4)}, storage_reader=read(tmp_path / "x"))


def test_the_second_save_into_one_place_is_what_is_loaded(back_end, tmp_path):
    write, read = back_end
    for seed in (0, 1):
        dcp.save(some_state(seed), storage_writer=write(tmp_path / "x"))
    loaded = zeroed(some_state())
    dcp.load(loaded, storage_reader=read(tmp_path / "x"))
    assert_equal(some_state(1), loaded)


def test_an_asynchronous_save_holds_what_was_there_when_it_returned(back_end, tmp_path):
    write, read = back_end
    state = some_state()
    before = copy.deepcopy(state)
    stager = Stager() if write is Writer else None
    for turn in range(3):  # with memory that was kept
        future = dcp.async_save(state, storage_writer=write(tmp_path / str(turn)), async_stager=stager)
        for tensor in state["model"].values():
            tensor.add_(1)
        state["count"] += 1
        future.result()
        loaded = zeroed(state)
        dcp.load(loaded, storage_reader=read(tmp_path / str(turn)))
        assert_equal(before, loaded)
        before = copy.deepcopy(state)


@pytest.mark.parametrize("name", BACK_ENDS)
@pytest.mark.parametrize("asynchronous", [[], ["--async"]], ids=["save", "async_save"])
def test_another_number_of_ranks(launch, name, asynchronous):
    for step, (kind, world) in enumerate([("fsdp", 4), ("plain", 1), ("fsdp", 2), ("ddp", 2), ("hsdp", 4), ("tp", 2)]):
        options = ["--back-end", name, "--path", "store", "--kind", kind, *asynchronous]
        options += ["--expect", str(step - 1)] if step else []
        assert launch.run(world, *options, script="dcp_worker.py") == [0] * world, f"{kind} on {world}, after step {step - 1}"


# ---- what holds for ours only -----------------------------------------------------------------------------------------


def test_a_rank_that_fails_fails_the_save_on_all_and_the_older_one_stands(launch):
    options = ["--back-end", "ours", "--path", "store", "--kind", "fsdp"]
    assert launch.run(2, *options, script="dcp_worker.py") == [0, 0]
    assert launch.run(2, *options, "--expect", "0", "--fail", script="dcp_worker.py") == [0, 0]
    assert "rank 1 cannot save its part: ValueError: no such luck" in launch.ranks[-2].out.read_text()
    assert launch.run(2, *options, "--expect", "0", script="dcp_worker.py") == [0, 0]


def test_a_flipped_bit_is_found_and_named(ours, tmp_path):
    write, read = ours
    dcp.save(some_state(), storage_writer=write(tmp_path / "x"))
    shard = next((tmp_path / "x").glob("s*/*.safetensors"))
    raw = bytearray(shard.read_bytes())
    raw[-3] ^= 4
    shard.write_bytes(raw)
    with pytest.raises(dcp.CheckpointException, match=shard.name):
        dcp.load(zeroed(some_state()), storage_reader=read(tmp_path / "x"))


def test_a_directory_without_a_checkpoint(ours, tmp_path):
    with pytest.raises(dcp.CheckpointException, match="NOT_FOUND.*elsewhere"):
        dcp.load({"a": torch.ones(1)}, storage_reader=Reader(tmp_path / "elsewhere"))
    with pytest.raises(dcp.CheckpointException, match="where to"):
        dcp.save({"a": torch.ones(1)}, storage_writer=Writer())


def test_a_checkpoint_of_a_run_can_be_read(ours, tmp_path):
    import libckpt.torch as ckpt

    model = nn.Linear(4, 3)
    run = ckpt.open(tmp_path / "run", model=model)
    run.step()
    run.save(wait=True)
    names = [t["name"] for t in json.loads(libckpt._core.open_path(str(tmp_path / "run")).contents())["tensors"]]
    weight = next(name for name in names if name.endswith("weight"))
    target = {weight: torch.zeros(3, 4)}
    dcp.load(target, storage_reader=Reader(tmp_path / "run"))  # while it runs
    assert torch.equal(target[weight], model.weight)
    run.step()
    run.save(wait=True)  # it was not disturbed
    run.finish()


def test_other_bytes_come_back_as_they_were(ours, tmp_path):
    write, read = ours
    state = {"big": list(range(100_000)), "empty": ""}
    dcp.save(state, storage_writer=write(tmp_path / "x"))
    loaded = {"big": [0] * 100_000, "empty": "-"}
    dcp.load(loaded, storage_reader=read(tmp_path / "x"))
    assert loaded == state


def test_the_stager_keeps_its_memory_and_copies_tied_tensors_once():
    tied = torch.arange(8.0)
    state = {"a": tied, "b": {"again": tied, "list": [torch.ones(2, 3).t()]}, "n": [1]}
    stager = Stager()
    first = stager.stage(state)
    assert first["a"] is first["b"]["again"] and first["a"].data_ptr() != tied.data_ptr()
    address = first["a"].data_ptr()
    tied.add_(1)
    state["n"].append(2)
    assert first["n"] == [1] and first["a"][0] == 0
    second = stager.stage(state)
    assert second["a"].data_ptr() == address and second["a"][0] == 1
    assert second["b"]["list"][0].stride() == (1, 3)
    stager.close()
