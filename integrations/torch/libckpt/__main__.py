"""`python -m libckpt doctor`: what this machine and this installation can do, and what is missing."""

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


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m libckpt", description=__doc__)
    parser.add_subparsers(dest="command", required=True).add_parser("doctor", help="what is missing")
    parser.parse_args(arguments)
    return doctor()


if __name__ == "__main__":
    sys.exit(main())
