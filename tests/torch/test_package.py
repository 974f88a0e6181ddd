"""What pip makes of the source, away from it."""

import pathlib
import subprocess
import sys

from conftest import HERE

PROGRAM = """
import sys, torch, libckpt.torch as ckpt
model = torch.nn.Linear(3, 3)
run = ckpt.open("runs/x", model=model)
run.step(); run.save(wait=True); run.close()
assert ckpt.load("runs/x", model=torch.nn.Linear(3, 3)) == 1
print(ckpt.__file__)
"""


def run(*argv, cwd):
    done = subprocess.run([str(a) for a in argv], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_source_distribution_builds_in_a_clean_environment(tmp_path: pathlib.Path):
    """The archive is all it has: what is missing from it is missing. torch comes from this environment."""
    run(sys.executable, "-c", f"from scikit_build_core.build import build_sdist; print(build_sdist({str(tmp_path)!r}))",
        cwd=HERE.parent.parent)
    archive, = tmp_path.glob("*.tar.gz")
    assert archive.stat().st_size < 20 << 20
    run(sys.executable, "-m", "venv", tmp_path / "clean", cwd=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", archive, cwd=tmp_path)
    shipped = run(python, "-m", "pip", "show", "-f", "libckpt", cwd=tmp_path)
    assert "libckpt/_core" in shipped and "libckpt/py.typed" in shipped
    torch = pathlib.Path(run(sys.executable, "-c", "import torch; print(torch.__path__[0])", cwd=tmp_path).strip()).parent
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "torch_of_the_tests.pth").write_text(f"{torch}\n")  # after the clean one: libckpt is the clean one's
    assert str(tmp_path) in run(python, "-c", PROGRAM, cwd=tmp_path)
    assert "ok       library" in run(python, "-m", "libckpt", "doctor", cwd=tmp_path)


def test_the_types_hold(tmp_path):
    run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, "libckpt", cwd=HERE.parent.parent / "integrations" / "torch")
