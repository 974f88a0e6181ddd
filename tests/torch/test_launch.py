"""How a training is started and told to stop: by hand, by torchrun, by ckpt-run, on other numbers of ranks."""

import collections
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import HERE, free_port
from test_trajectories import lines

TRAIN = HERE.parent.parent / "examples" / "torch_plain" / "train.py"
WORKER = HERE / "worker.py"


def start(folder, *command, **variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen([str(c) for c in command], cwd=folder, env=environment, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def finish(process, timeout=300):
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        out += "\n(timed out)"
    print(out)
    return process.returncode, out


def weights(out):
    return re.findall(r"^weights (\w+)$", out, re.M)


def losses(path):
    found = {}
    for line in path.read_text().splitlines():
        step, loss = line.split()
        assert found.setdefault(step, loss) == loss
    return found


def test_example_is_suspended_and_goes_on(tmp_path):
    """The three lines, as a user starts them: killed once, suspended twice, the same losses and weights."""
    small = ["--steps", 40, "--width", 16, "--save-every", 4]
    code, out = finish(start(tmp_path, sys.executable, TRAIN, *small, "--path", "straight", "--losses", "a.txt"))
    assert code == 0
    expected = weights(out)
    for number, wanted in ((signal.SIGTERM, 10), (signal.SIGKILL, 17), (signal.SIGINT, 25)):
        process = start(tmp_path, sys.executable, TRAIN, *small, "--path", "split", "--losses", "b.txt")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if (tmp_path / "b.txt").exists() and len(losses(tmp_path / "b.txt")) >= wanted:
                break
            time.sleep(0.005)
        process.send_signal(number)
        code, _ = finish(process)
        assert code == (-9 if number == signal.SIGKILL else 75)
    code, out = finish(start(tmp_path, sys.executable, TRAIN, *small, "--path", "split", "--losses", "b.txt"))
    assert code == 0 and weights(out) == expected and len(expected) == 1
    assert losses(tmp_path / "b.txt") == losses(tmp_path / "a.txt")


def torchrun(port, *more):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", port, *more, WORKER]


@pytest.mark.parametrize("restarts", [0, 2])
def test_torchrun_one_rank_is_told(tmp_path, launch, restarts):
    """SIGTERM reaches rank 1 alone; all ranks stop at one step and leave with 75, and torchrun's restarts do not undo it."""
    options = ["--mode", "ddp", "--steps", 20, "--path", "store", "--write", "split"]
    program = torchrun(free_port(), "--max-restarts", restarts)
    code, out = finish(start(tmp_path, *program, *options, "--stop-at", 7, "--stop-rank", 1))
    assert code != 0 and (restarts or "exitcode  : 75" in out)
    names = [p.parent.name for p in (tmp_path / "store").glob("s*/COMMIT")]
    assert names == ["s7.e1.a1"]
    assert sorted(lines(tmp_path, "split", 1)) == list(range(7))
    if restarts:
        return
    assert launch.run(2, *options) == [0, 0]
    assert launch.run(2, "--mode", "ddp", "--steps", 20, "--path", "none", "--write", "straight", "--without") == [0, 0]
    for rank in range(2):
        assert lines(tmp_path, "split", rank) == lines(tmp_path, "straight", rank)


def test_another_number_of_ranks_repeats_and_skips_no_sample(launch):
    assert launch.run(2, "--batch", 4, "--stop-after", 5, script="elastic_worker.py") == [75, 75]
    assert launch.run(1, "--batch", 8, "--stop-after", 2, script="elastic_worker.py") == [75]
    assert launch.run(4, "--batch", 4, script="elastic_worker.py") == [1] * 4  # 56 samples are no whole batches of 4 × 4
    assert "no whole number of batches" in launch.ranks[-1].out.read_text()
    assert launch.run(4, "--batch", 2, script="elastic_worker.py") == [0] * 4
    seen = collections.defaultdict(list)
    for path in launch.folder.glob("samples.*"):
        for line in path.read_text().splitlines():
            epoch, *samples = map(int, line.split())
            seen[epoch] += samples
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(96))


def test_ranks_that_nobody_connected_are_refused(launch):
    assert launch.run(1, "--path", "store", "--write", "x", env={"WORLD_SIZE": "2"}) == [1]
    assert "init_process_group" in launch.ranks[0].out.read_text()


def test_ckpt_run_in_reach_of_nobody_is_an_error(launch):
    assert launch.run(1, "--path", "store", "--write", "x", env={"CKPT_RUN": "/nowhere/socket"}) == [1]
    assert "UNAVAILABLE" in launch.ranks[0].out.read_text()


CKPT_RUN = pathlib.Path(os.environ.get("CKPT_BIN", "build/release/bin")) / "ckpt-run"
CKPT_RUN = CKPT_RUN if CKPT_RUN.exists() else pathlib.Path(shutil.which("ckpt-run") or "")


@pytest.mark.skipif(not CKPT_RUN.is_file(), reason="ckpt-run is not built (CKPT_BIN, or on the PATH)")
@pytest.mark.parametrize("mode,world", [("plain", 1), ("ddp", 2), ("fsdp", 2)])
def test_ckpt_run(tmp_path, launch, mode, world):
    """The whole gang is suspended through any one rank, twice, and goes on as if nothing had been."""
    options = ["--mode", mode, "--steps", 20]
    assert launch.run(world, *options, "--path", "none", "--write", "straight", "--without") == [0] * world
    program = [CKPT_RUN.resolve(), "--ranks", world, "--store", "store", "--", sys.executable, WORKER, *options, "--path", "none",
               "--write", "split"]
    for stop in (3, 9, -1):
        process = start(tmp_path, *program, "--stop-at", stop, "--stop-rank", world - 1, "--pace", 1)
        code, out = finish(process)
        assert code == (0 if stop < 0 else 75)
    for rank in range(world):
        assert lines(tmp_path, "split", rank) == lines(tmp_path, "straight", rank)
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(not CKPT_RUN.is_file(), reason="ckpt-run is not built (CKPT_BIN, or on the PATH)")
def test_ckpt_run_over_torchrun(tmp_path, launch):
    """ckpt-run has torchrun for a child, and the ranks are torchrun's: rank 1 is told, all stop at one step, exit 75."""
    options = ["--mode", "ddp", "--steps", 20]
    assert launch.run(2, *options, "--path", "none", "--write", "straight", "--without") == [0, 0]
    for stop, restarts in ((7, 2), (-1, 0)):
        program = [CKPT_RUN.resolve(), "--store", "store", "--", *torchrun(free_port(), "--max-restarts", restarts)]
        code, out = finish(start(tmp_path, *program, *options, "--path", "none", "--write", "split", "--stop-at", stop,
                                 "--stop-rank", 1, "--pace", 1))
        assert code == (0 if stop < 0 else 75)
        assert "a second time" not in out
    for rank in range(2):
        assert lines(tmp_path, "split", rank) == lines(tmp_path, "straight", rank)


@pytest.mark.skipif(not CKPT_RUN.is_file(), reason="ckpt-run is not built (CKPT_BIN, or on the PATH)")
def test_a_slow_store_holds_no_step_up(tmp_path, launch):
    """Each block that is written takes longer than a step: saves are left out and said so, the training is what it was."""
    options = ["--mode", "ddp", "--steps", 20]
    assert launch.run(2, *options, "--path", "none", "--write", "straight", "--without") == [0, 0]
    program = [CKPT_RUN.resolve(), "--ranks", 2, "--store", "store", "--", sys.executable, WORKER, *options, "--path", "none",
               "--write", "split", "--save-every", 1]
    code, out = finish(start(tmp_path, *program, CKPT_FAULT_AT="engine.write.block=sleep2000"))
    assert code == 0 and "not saved, training goes on: RESOURCE_EXHAUSTED" in out
    assert list((tmp_path / "store").glob("s*/COMMIT"))
    for rank in range(2):
        assert lines(tmp_path, "split", rank) == lines(tmp_path, "straight", rank)
