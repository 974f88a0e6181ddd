"""End to end, on the built programs (CKPT_BIN, set by ./run test)."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "demo"))


@pytest.fixture(scope="session")
def bin_dir():
    path = pathlib.Path(os.environ.get("CKPT_BIN", ROOT / "build" / "test" / "bin"))
    if not (path / "ckpt-run").exists():
        pytest.fail(f"{path}/ckpt-run is not built; run ./run test")
    return path.resolve()


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(b"".join(p.read_bytes() for p in sorted(pathlib.Path("/usr/share/common-licenses").iterdir())
                              if p.is_file() and not p.is_symlink()))
    return path


class Reference:
    """Losses and final digests of an uninterrupted run of the trainer that knows nothing of libckpt."""

    def __init__(self, bin_dir, text, folder, ranks, steps, hidden):
        self.bin, self.text, self.ranks, self.steps, self.hidden = bin_dir, text, ranks, steps, hidden
        (folder / "meet").mkdir()
        argv = self.argv("train_plain", folder) + ["--rendezvous", str(folder / "meet")]
        runs = [subprocess.Popen(argv, env=dict(os.environ, RANK=str(r), WORLD_SIZE=str(ranks)), stdout=subprocess.DEVNULL)
                for r in range(ranks)]
        assert [run.wait(120) for run in runs] == [0] * ranks
        self.losses, self.digests = self.read(folder)

    def argv(self, program, folder):
        return [str(self.bin / program), "--text", str(self.text), "--steps", str(self.steps), "--hidden", str(self.hidden),
                "--batch", "8", "--loss-file", str(folder / "loss"), "--digest-file", str(folder / "digest")]

    def read(self, folder):
        losses = {}
        for line in open(folder / "loss"):
            step, bits, _ = line.split()
            assert losses.setdefault(int(step), bits) == bits, f"step {step} was computed twice with different losses"
        return losses, [(folder / f"digest.{r}").read_text() for r in range(self.ranks)]

    def check(self, folder):
        losses, digests = self.read(folder)
        assert losses == self.losses
        assert digests == self.digests


@pytest.fixture(scope="session")
def reference(bin_dir, text, tmp_path_factory):
    made = {}

    def get(ranks, steps=400, hidden=64):
        key = (ranks, steps, hidden)
        if key not in made:
            made[key] = Reference(bin_dir, text, tmp_path_factory.mktemp("reference"), *key)
        return made[key]

    return get
