"""Starts ranks by fork from a process that has imported torch once: a test of four ranks need not import it four times.

One JSON object a line on stdin, one answer a line on stdout: {"start": script, "args", "env", "out"} gives a pid,
{"wait": pid, "timeout": seconds} an exit code (negative for a signal) or null."""

import json
import os
import runpy
import sys
import time

import numpy  # noqa: F401
import torch
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.tensor.parallel  # noqa: F401
import torch.optim.lr_scheduler  # noqa: F401
import torch.optim.swa_utils  # noqa: F401

import libckpt.torch  # noqa: F401

torch.optim.SGD([torch.zeros(1)], lr=1.0)  # an optimizer imports half of torch when it is made


def become(order):
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1), os.dup2(out, 2)
    os.close(0)
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = [order["start"], *order["args"]]
    code = 1
    try:
        runpy.run_path(order["start"], run_name="__main__")
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else (0 if left.code is None else 1)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def wait(pid, timeout):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


for line in sys.stdin:
    order = json.loads(line)
    if "start" in order:
        pid = os.fork()
        if pid == 0:
            become(order)
        answer = pid
    else:
        answer = wait(order["wait"], order["timeout"])
    print(json.dumps(answer), flush=True)
