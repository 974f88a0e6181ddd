"""Ranks that an agent starts: submitted, suspended, migrated and resumed through ckptd by ckptctl."""

import pathlib
import sys

import pytest
from conftest import HERE
from test_launch import CKPT_RUN, WORKER
from test_trajectories import lines

sys.path.insert(0, str(HERE.parent.parent / "examples" / "demo"))
from cluster import Cluster, wait_for  # noqa: E402

PROGRAMS = CKPT_RUN.parent
pytestmark = pytest.mark.skipif(not (PROGRAMS / "ckptd").is_file(), reason="ckptd is not built (CKPT_BIN, or on the PATH)")


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(PROGRAMS, tmp_path / "cluster")
    made.out.mkdir()
    made.env["OMP_NUM_THREADS"] = "1"
    made.start_ckptd()
    yield made
    made.stop()


def submit(cluster, folder, world, *options):
    script = f"cd {folder} && exec {sys.executable} {WORKER} --path none --write split --slow 0.2 {' '.join(map(str, options))}"
    done = cluster.run_ctl("submit", "--name", "train", "--ranks", world, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr


def wait_state(cluster, state, step=0):
    return wait_for(f"train is {state}", lambda: (j := cluster.job("train"))["state"] == state and j["step"] >= step and j, 240)


def ctl(cluster, *argv):
    done = cluster.run_ctl(*argv, "--wait")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_suspended_migrated_and_resumed(cluster, launch, tmp_path: pathlib.Path, mode):
    steps, world = 40, 2
    options = ["--mode", mode, "--steps", steps]
    assert launch.run(world, *options, "--path", "none", "--write", "straight", "--without") == [0] * world
    cluster.start_agent("a", world, "512MiB")
    submit(cluster, tmp_path, world, *options)
    wait_state(cluster, "running", step=4)
    ctl(cluster, "suspend", "train")
    assert cluster.job("train")["copies"][0]["staged_gang"]
    cluster.start_agent("b", world, "512MiB")
    ctl(cluster, "resume", "train")
    wait_state(cluster, "running", step=cluster.job("train")["step"] + 4)
    ctl(cluster, "migrate", "train", "--from", "a", "--to", "b")
    job = wait_state(cluster, "finished")
    assert job["epoch"] == 3 and job["lost_steps"] == 0 and job["restart_count"] == 0, job
    for rank in range(world):
        assert lines(tmp_path, "split", rank) == lines(tmp_path, "straight", rank)
