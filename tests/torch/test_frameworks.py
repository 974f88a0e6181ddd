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


def same_after(launch, program, stops, *options):
    """Straight, and split at `stops`."""
    assert launch.run(1, 0, program, "--path", "straight", *options, script="stopped.py") == [0]
    expected = result(launch.ranks[-1])
    for stop in stops:
        assert launch.run(1, stop, program, "--path", "split", *options, script="stopped.py") == [75], f"stop at {stop}"
        assert list((launch.folder / "split").glob(f"s{stop}.*/COMMIT"))
    assert launch.run(1, 0, program, "--path", "split", *options, script="stopped.py") == [0]
    assert result(launch.ranks[-1]) == expected


@without("transformers")
@pytest.mark.parametrize("accumulate,stops", [(1, [7, 20]), (2, [4])])  # 20 batches, or 10 updates, are an epoch
def test_hugging_face_trainer(launch, accumulate, stops):
    same_after(launch, EXAMPLES / "torch_hf" / "train.py", stops, "--steps", 24 // accumulate, "--accumulate", accumulate)


@without("accelerate")
def test_accelerate(launch):
    same_after(launch, EXAMPLES / "torch_accelerate" / "train.py", [3, 8, 13], "--steps", 18)  # 8 batches are an epoch


@without("torchdata")
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader(launch, workers):
    same_after(launch, HERE / "stateful_worker.py", [3, 8, 13], "--workers", workers)
