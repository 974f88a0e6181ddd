"""Tests of the Python package with PyTorch. They need an interpreter that has torch and libckpt: tests/torch/run.sh makes
one; in any other they are not collected."""

import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


def installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # else it is a folder of this repository


if not (installed("torch") and installed("libckpt")):
    collect_ignore_glob = ["test_*.py"]


#: What ./run test runs of these; all of them: ./run test-torch.
SLICE = [
    "test_state.py::test_optimizers[AdamW]", "test_state.py::test_extra_comes_back_in_place",
    "test_state.py::test_changed_right_after_step", "test_state.py::test_refused_by_name_at_save[extra0-extra['a'][3]]",
    "test_state.py::test_a_fork_has_no_part_in_it", "test_state.py::test_wrappers_are_seen_through",
    "test_state.py::test_damaged_newest_falls_back_loudly", "test_state.py::test_import_is_light",
    "test_overlap.py::test_what_was_there_at_step_is_saved[latest]", "test_overlap.py::test_the_update_waits",
    "test_trajectories.py::test_two_ranks[fsdp-saves2]", "test_reshard.py::test_chain[fsdp 4-1-2]",
    "test_launch.py::test_ckpt_run_over_torchrun", "test_launch.py::test_another_number_of_ranks_repeats_and_skips_no_sample",
    "test_dcp.py::test_what_was_saved_is_loaded[ours]", "test_dcp.py::test_a_flipped_bit_is_found_and_named",
    "test_convert.py::test_pt",
]


def pytest_configure(config):
    config.addinivalue_line("markers", "slice: part of ./run test")


def pytest_collection_modifyitems(config, items):
    names = {item.nodeid.rpartition("tests/torch/")[2]: item for item in items}
    if config.getoption("markexpr") == "slice":
        missing = [name for name in SLICE if name not in names]
        assert not missing, f"conftest.py chooses tests that are not there: {missing}"
    for name in SLICE:
        if name in names:
            names[name].add_marker(pytest.mark.slice)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Zygote:
    """See zygote.py."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, str(HERE / "zygote.py")], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, env=environment, text=True)

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture(scope="session")
def zygote():
    process = Zygote()
    yield process
    process.close()


class Rank:
    def __init__(self, zygote: Zygote, pid: int, out: pathlib.Path) -> None:
        self.zygote, self.pid, self.out, self.code = zygote, pid, out, None

    def wait(self, timeout: float):
        if self.code is None:
            self.code = self.zygote.ask(wait=self.pid, timeout=timeout)
        return self.code

    def running(self) -> bool:
        return self.wait(0.01) is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.code is None:
            os.kill(self.pid, number)


class Launcher:
    """Starts ranks of a script and waits for them."""

    def __init__(self, zygote: Zygote, folder: pathlib.Path) -> None:
        self.zygote, self.folder, self.ranks = zygote, folder, []

    def start(self, world: int, *args, script: str = "worker.py", env=None):
        port = str(free_port())
        started = []
        for rank in range(world):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": port, **(env or {})}
            out = self.folder / f"out.{len(self.ranks) + rank}"
            pid = self.zygote.ask(start=str(HERE / script), args=[str(a) for a in args], env=variables, out=str(out),
                                  cwd=str(self.folder))
            started.append(Rank(self.zygote, pid, out))
        self.ranks.extend(started)
        return started

    def wait(self, ranks, timeout: float = 240):
        codes = []
        for rank in ranks:
            code = rank.wait(timeout)
            if code is None:
                rank.kill()
            codes.append("timeout" if code is None else code)
        if any(code not in (0, 75) for code in codes):
            for rank in ranks:
                print(rank.out.read_text())
        return codes

    def run(self, world: int, *args, **keywords):
        return self.wait(self.start(world, *args, **keywords))


@pytest.fixture
def launch(zygote, tmp_path):
    launcher = Launcher(zygote, tmp_path)
    yield launcher
    for rank in launcher.ranks:
        if rank.running():
            rank.kill()
            rank.wait(30)
