"""Runs a program, unchanged, that gets SIGTERM in the step before the boundary of step STOP: stopped.py STOP program args…
(STOP 0: it gets none)."""

import os
import runpy
import signal
import sys

from libckpt.torch import Run

stop, program = int(sys.argv[1]), sys.argv[2]
step_of_run = Run.step


def step(self, number=None, **metrics):
    if stop and (self.global_step + 1 if number is None else number) == stop:
        os.kill(os.getpid(), signal.SIGTERM)
    step_of_run(self, number, **metrics)


Run.step = step
sys.argv = [program, *sys.argv[3:]]
runpy.run_path(program, run_name="__main__")
