import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def bin_dir():
    path = pathlib.Path(os.environ.get("CKPT_BIN", pathlib.Path(__file__).resolve().parents[2] / "build" / "test" / "bin"))
    if not (path / "ckpt-run").exists():
        pytest.fail(f"{path}/ckpt-run is not built; run ./run test")
    return path.resolve()
