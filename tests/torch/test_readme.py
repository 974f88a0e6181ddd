"""The Python example of the README, run as it stands there: killed on its way, it ends with the weights of a run that was not."""

import pathlib
import re
import subprocess
import sys

import libckpt.torch as ckpt
import torch

README = pathlib.Path(__file__).parents[2] / "README.md"


def test_the_example_goes_on_where_it_was(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    step = "run.step(loss=loss)"
    dies = program.replace(step, f"{step}; run.global_step == 47 and __import__('os')._exit(9)")
    assert dies != program
    ends = {}
    for name, sources in (("straight", [program]), ("killed", [dies, program])):
        folder = tmp_path / name
        folder.mkdir()
        for source in sources:
            done = subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, timeout=120)
            assert done.returncode == (9 if source is dies else 0), done.stderr
        model = torch.nn.Linear(8, 1)
        assert ckpt.load(folder / "runs/line", model=model) == 100
        ends[name] = model.state_dict()
    assert all(torch.equal(ends["straight"][key], ends["killed"][key]) for key in ends["straight"])
