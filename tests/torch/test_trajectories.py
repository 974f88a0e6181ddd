"""A training that is suspended, killed and moved is the training that was not: every line of its log is the same."""

import os
import random
import shutil
import time

import pytest

STEPS = 20
SOAK = int(os.environ.get("CKPT_SOAK", "1"))  # longer campaigns: ./run soak torch; 25 kill 200 times and save 1,000 times


def lines(folder, name, rank=0):
    """The log by step. A step that was taken twice (after a kill) must have been the same both times."""
    found = {}
    for line in (folder / f"{name}.{rank}").read_text().splitlines():
        step, rest = line.split("|", 1)
        if rest.count("|") == 7:  # a killed process may leave half a line
            assert found.setdefault(int(step), rest) == rest, f"step {step} went differently the second time"
    return found


def straight(launch, world, *options):
    assert launch.run(world, "--path", "none", "--write", "straight", "--without", "--steps", STEPS, *options) == [0] * world
    return [lines(launch.folder, "straight", rank) for rank in range(world)]


def suspended(launch, world, stops, *options, path="store", log="split"):
    for stop in stops:
        rank = random.randrange(world)
        codes = launch.run(world, "--path", path, "--write", log, "--steps", STEPS, "--stop-at", stop, "--stop-rank", rank, *options)
        assert codes == [75] * world, f"stop at {stop}"
    assert launch.run(world, "--path", path, "--write", log, "--steps", STEPS, *options) == [0] * world


@pytest.mark.parametrize("optim", ["adamw", "sgd", "adagrad"])
def test_suspended_at_random_steps(launch, optim):
    expected = straight(launch, 1, "--optim", optim)
    suspended(launch, 1, sorted(random.sample(range(1, STEPS), 3)), "--optim", optim)
    assert lines(launch.folder, "split") == expected[0]


def test_with_loader_workers(launch):
    expected = straight(launch, 1, "--workers", 2)
    suspended(launch, 1, [4, 15, 16], "--workers", 2)
    assert lines(launch.folder, "split") == expected[0]


@pytest.mark.parametrize("mode,world", [("plain", 1), ("ddp", 2)])
def test_mixed_precision_scaler_average_and_recomputation(launch, mode, world):
    expected = straight(launch, world, "--amp", "--mode", mode)
    suspended(launch, world, sorted(random.sample(range(1, STEPS), 2)), "--amp", "--mode", mode)
    assert [lines(launch.folder, "split", rank) for rank in range(world)] == expected


@pytest.mark.parametrize("overlap", [[], ["--overlap"]], ids=["copied at once", "overlapped"])
def test_killed_at_random_moments(launch, overlap):
    expected = straight(launch, 1)
    for kill in range(8 * SOAK):
        if kill % 8 == 0:  # a new training
            (launch.folder / "split.0").unlink(missing_ok=True)
            shutil.rmtree(launch.folder / "store", ignore_errors=True)
        ranks = launch.start(1, "--path", "store", "--write", "split", "--steps", STEPS, "--save-every", 2, *overlap)
        deadline = time.monotonic() + 60
        begun = len(lines(launch.folder, "split")) if (launch.folder / "split.0").exists() else 0
        wanted = begun + random.randrange(1, 6)
        while time.monotonic() < deadline and ranks[0].running():
            if (launch.folder / "split.0").exists() and len(lines(launch.folder, "split")) >= min(wanted, STEPS):
                break
            time.sleep(0.002)
        ranks[0].kill()
        ranks[0].wait(30)
    assert launch.run(1, "--path", "store", "--write", "split", "--steps", STEPS, "--save-every", 2, *overlap) == [0]
    assert lines(launch.folder, "split") == expected[0]


@pytest.mark.parametrize("mode,saves", [("ddp", []), ("fsdp", []), ("fsdp", ["--save-every", "1", "--overlap"])])
def test_two_ranks(launch, mode, saves):
    expected = straight(launch, 2, "--mode", mode)
    suspended(launch, 2, sorted(random.sample(range(1, STEPS), 2)), "--mode", mode, *saves)
    for rank in range(2):
        assert lines(launch.folder, "split", rank) == expected[rank]


def test_libckpt_changes_nothing(launch):
    """Being tracked draws no random number and moves no tensor."""
    expected = straight(launch, 1)
    assert launch.run(1, "--path", "store", "--write", "tracked", "--steps", STEPS, "--save-every", 3) == [0]
    assert lines(launch.folder, "tracked") == expected[0]


@pytest.mark.parametrize("saves", [["--save-every", 1], ["--save-each"]], ids=["when there is room", "each awaited"])
def test_many_saves_between_collectives(launch, saves):
    """A save at every step, while DDP reduces gradients: no collective of ours meets one of the training's."""
    steps = 40 * SOAK
    codes = launch.wait(launch.start(2, "--path", "store", "--write", "split", "--mode", "ddp", "--steps", steps, *saves),
                        timeout=240 + steps)
    assert codes == [0, 0]
    assert len(lines(launch.folder, "split")) == steps
    saved = [path.parent.name for path in (launch.folder / "store").glob("s*/COMMIT")]
    # Of those that are not awaited some find both staging slots in use, on all ranks alike.
    assert len(saved) >= (steps if saves == ["--save-each"] else 3)
