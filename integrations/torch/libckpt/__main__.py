"""`python -m libckpt doctor`: what this machine and this installation can do, and what is missing. `export` and `import`:
weights out of and into a run's directory."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import resource
import shutil
import sys
import tempfile
from typing import Callable, List, Optional, Tuple

Finding = Tuple[bool, str]


def _library() -> Finding:
    try:
        from . import _core
    except ImportError as error:
        return False, f"the extension module does not load: {error}"
    return True, f"C ABI version {_core.ABI_VERSION}"


def _round_trip() -> Finding:
    """Saves and loads a value through a store of its own."""
    from . import _core
    from ._errors import Error

    with tempfile.TemporaryDirectory() as folder:
        try:
            state = _core.State()
            state.add_value("doctor", False, "1")
            session = _core.Session(store=folder, rank=0, world_size=1)
            session.track(state)
            session.save(1).wait(3, 60.0)
            session.close(60.0)
            session = _core.Session(store=folder, rank=0, world_size=1)
            reader = session.reader("latest")
            good = reader.value("doctor") == "1"
            reader.close()
            session.close(60.0)
        except Error as error:
            return False, f"a save and a load in {tempfile.gettempdir()}: {error}"
    return good, f"a save and a load in {tempfile.gettempdir()}"


def _torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return False, "torch is not installed; libckpt.torch needs it (2.4 or later)"
    import torch

    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 4):
        return False, f"torch {torch.__version__} is older than 2.4"
    devices = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "CPU only"
    return True, f"torch {torch.__version__}, {devices}"


def _launcher() -> Finding:
    inside = os.environ.get("CKPT_RUN")
    if inside:
        return os.path.exists(inside), f"under ckpt-run, at {inside}"
    found = shutil.which("ckpt-run")
    if found:
        return True, f"ckpt-run at {found}"
    return False, "ckpt-run is not on the PATH: runs are standalone (state is lost with the process until it is durable)"


def _memory() -> Finding:
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return True, f"{pages * size / 2**30:.1f} GiB of memory are free; a save holds up to two copies of what it writes"


def _files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft >= 256, f"{soft} open files are allowed"


CHECKS: List[Tuple[str, Callable[[], Finding], bool]] = [
    ("library", _library, True),
    ("store", _round_trip, True),
    ("torch", _torch, False),
    ("ckpt-run", _launcher, False),
    ("memory", _memory, False),
    ("files", _files, True),
]


def doctor() -> int:
    """1 if something without which nothing works is missing."""
    print(f"python {platform.python_version()} on {platform.system()} {platform.release()}")
    missing = False
    for name, check, needed in CHECKS:
        good, text = check()
        missing = missing or (needed and not good)
        print(f"{'ok     ' if good else 'MISSING' if needed else 'without'}  {name}: {text}")
        if not good and name == "library":
            break
    return 1 if missing else 0


def _convert(given: argparse.Namespace) -> int:
    from ._errors import Error
    from .torch import convert

    try:
        if given.command == "export":
            count = convert.export(given.path, given.out, given.format, part=given.part, selector=given.select,
                                   shard_bytes=int(given.shard_gb * 1e9))
        else:
            count = convert.import_(given.given, given.path, step=given.step, prefix=given.prefix,
                                    ties=given.tie)
    except (Error, OSError) as error:
        print(f"{given.command}: {error}", file=sys.stderr)
        return 1
    print(f"{count} tensors")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m libckpt", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what is missing")
    out = commands.add_parser("export", help="write the model's weights")
    out.add_argument("path", help="a run's directory, or one checkpoint's")
    out.add_argument("out", help="OUT.pt, or a directory, which must not exist")
    out.add_argument("--format", choices=["pt", "hf", "dcp"], default="", help="else pt for OUT.pt, hf for a directory")
    out.add_argument("--part", default="model", help="what was given by that name (of several: model.NAME)")
    out.add_argument("--select", default="", help="step:N or a checkpoint's name, for another one than the newest")
    out.add_argument("--shard-gb", type=float, default=5.0, help="a safetensors file holds at most that much (default: 5)")
    into = commands.add_parser("import", help="make a run's directory of weights")
    into.add_argument("given", help="a .pt file of tensors by name, a Hugging Face directory of safetensors, or one of DCP")
    into.add_argument("path", help="the directory to make")
    into.add_argument("--step", type=int, default=0, help="the step that it is said to be of")
    into.add_argument("--prefix", default="", help="only tensors with such names, without it: model. for DCP of {'model': …}")
    into.add_argument("--tie", action="append", default=[], metavar="NAME=FIRST", help="one tensor that the module has under two "
                      "names; DCP stores it twice")
    return parser


def main(arguments: Optional[List[str]] = None) -> int:
    given = _parser().parse_args(arguments)
    return doctor() if given.command == "doctor" else _convert(given)


if __name__ == "__main__":
    sys.exit(main())
