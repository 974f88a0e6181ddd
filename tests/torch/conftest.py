"""Tests of the Python package with PyTorch. They need an interpreter that has torch and libckpt: tests/torch/run.sh makes
one; in any other they are not collected."""

import importlib.util
import os
import pathlib
import socket
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("libckpt") is None:
    collect_ignore_glob = ["test_*.py"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Launcher:
    """Starts ranks of a script and waits for them."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.running = []

    def start(self, world: int, *command: str, script: str = "worker.py", env=None):
        port = str(free_port())
        ranks = []
        for rank in range(world):
            variables = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", **(env or {})}
            out = open(self.folder / f"out.{len(self.running)}.{rank}", "w+")
            ranks.append((subprocess.Popen([sys.executable, str(HERE / script), *map(str, command)], env=variables,
                                           cwd=self.folder, stdout=out, stderr=subprocess.STDOUT), out))
        self.running.extend(ranks)
        return ranks

    def wait(self, ranks, timeout: float = 240):
        codes = []
        for process, out in ranks:
            try:
                codes.append(process.wait(timeout))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append("timeout")
        if any(code not in (0, 75) for code in codes):
            for process, out in ranks:
                out.seek(0)
                print(out.read())
        return codes

    def run(self, world: int, *command: str, **keywords):
        return self.wait(self.start(world, *command, **keywords))


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    for process, out in launcher.running:
        if process.poll() is None:
            process.kill()
        process.wait()
        out.close()
