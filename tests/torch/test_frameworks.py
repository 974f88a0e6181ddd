"""Other people's loops, suspended and resumed: the same losses, weights, optimizer and random numbers as straight through."""

import importlib.util

import pytest
from conftest import HERE

EXAMPLES = HERE.parent.parent / "examples"


def without(name):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def result(rank):
    """What the program said at its end."""
    found = [line for line in rank.out.read_text().splitlines() if line.startswith(("logged", "loss"))]
    assert len(found) > 1 and found[-1].startswith("loss"), rank.out.read_text()
    return found


def same_after(launch, program, stops, *options, world=1):
    """Straight, and split at `stops`."""
    assert launch.run(world, 0, program, "--path", "straight", *options, script="stopped.py") == [0] * world
    expected = [result(rank) for rank in launch.ranks[-world:]]
    for stop in stops:
        codes = launch.run(world, stop, program, "--path", "split", *options, script="stopped.py")
        assert codes == [75] * world, f"stop at {stop}"
        assert list((launch.folder / "split").glob(f"s{stop}.*/COMMIT"))
    assert launch.run(world, 0, program, "--path", "split", *options, script="stopped.py") == [0] * world
    assert [result(rank) for rank in launch.ranks[-world:]] == expected


@without("transformers")
@pytest.mark.parametrize("accumulate,stops", [(1, [7, 20]), (2, [4])])  # 20 batches, or 10 updates, are an epoch
def test_hugging_face_trainer(launch, accumulate, stops):
    same_after(launch, EXAMPLES / "torch_hf" / "train.py", stops, "--steps", 24 // accumulate, "--accumulate", accumulate)


@without("accelerate")
@pytest.mark.parametrize("world,stops", [(1, [3, 8, 13]), (2, [2, 7])])  # 8 or 4 batches are an epoch
def test_accelerate(launch, world, stops):
    """Its loader too, whose batches are read one ahead."""
    same_after(launch, EXAMPLES / "torch_accelerate" / "train.py", stops, "--steps", 18 // world, world=world)


@without("lightning")
@pytest.mark.parametrize("accumulate,stops", [(1, [4, 12, 21]), (2, [3])])  # 10 batches, or 5 updates, are an epoch
def test_lightning(launch, accumulate, stops):
    same_after(launch, EXAMPLES / "torch_lightning" / "train.py", stops, "--steps", 24 // accumulate, "--accumulate", accumulate)


@without("lightning")
def test_lightning_under_ddp(launch):
    """Any one rank is told, all stop at one step; 5 batches of each rank are an epoch."""
    same_after(launch, EXAMPLES / "torch_lightning" / "train.py", [3, 8], "--steps", 12, world=2)


@without("torchdata")
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader(launch, workers):
    same_after(launch, HERE / "stateful_worker.py", [3, 8, 13], "--workers", workers)
