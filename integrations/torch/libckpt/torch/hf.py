"""Hugging Face Trainer: one call in the place of trainer.train().

    from libckpt.torch import hf
    trainer = Trainer(model, args, train_dataset=data)
    hf.train(trainer, "runs/gpt", save_every=100)      # goes on where it was; told to make room: saves, exit code 75

What the Trainer itself knows (step, log history, callbacks) is kept with weights, optimizer, schedule and random numbers. A
step is saved when the next one begins: after its logging, its evaluation and its callbacks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tempfile
from typing import Any, Dict, Iterable, Iterator, Optional, Union

import transformers
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState

from .._errors import Error
from . import _rng
from ._makers import make_object, makers_of
from ._run import DEFAULT_SIGNALS, PerRank, Run

__all__ = ["train"]

_NAME = "trainer"
_STATE_FILE = "trainer_state.json"
#: What a Trainer keeps while it trains and has no public name for.
_PRIVATE = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")


def train(
    trainer: Trainer,
    path: Union[str, "os.PathLike[str]", None] = None,
    *,
    save_every: int = 0,
    resume: Optional[str] = "",
    signals: Iterable[int] = DEFAULT_SIGNALS,
) -> Any:
    """trainer.train(), restored if there is something to restore, and suspended when the job must make room.

    path, save_every, resume, signals: as of ckpt.open. The Trainer's own save_strategy may be "no".
    """
    _check(trainer)
    with Run(path, [], save_every=save_every, signals=signals, exit_on_stop=True, resume=None, rng=True) as run:
        kept = None if resume is None else run.peek(resume, _NAME)
        callback = _Callback(trainer, run, resume if kept is not None else None)
        trainer.add_callback(callback)
        try:
            if kept is None:
                return trainer.train()
            with _resumable(trainer, kept["tree"]["state"]) as folder:
                return trainer.train(resume_from_checkpoint=folder)
        finally:
            trainer.remove_callback(callback)


def _check(trainer: Trainer) -> None:
    if int(transformers.__version__.split(".")[0]) < 5 or not hasattr(trainer, "_load_from_checkpoint"):
        raise Error(f"transformers {transformers.__version__}: libckpt.torch.hf knows the Trainer of release 5",
                    "FAILED_PRECONDITION")
    if trainer.is_deepspeed_enabled:
        raise Error("a Trainer with DeepSpeed keeps its state where libckpt does not see it; use FSDP2 or DDP",
                    "UNIMPLEMENTED")


@contextlib.contextmanager
def _resumable(trainer: Trainer, state: str) -> Iterator[str]:
    """A folder from which the Trainer takes its own state. All else is restored when training begins, so its loading of
    weights is left out."""
    with tempfile.TemporaryDirectory(prefix="libckpt-") as folder:
        with open(os.path.join(folder, _STATE_FILE), "w", encoding="utf-8") as file:
            file.write(state)
        vars(trainer)["_load_from_checkpoint"] = lambda *args, **keywords: None
        try:
            yield folder
        finally:
            del vars(trainer)["_load_from_checkpoint"]


class _Position:
    """Of each rank: where the Trainer is, and the random state in which its epoch began."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.epoch_began: Optional[Dict[str, Any]] = None

    def state_dict(self) -> Dict[str, Any]:
        private = {name: getattr(self.trainer, name) for name in _PRIVATE}
        return {"state": self._spelled(), "private": private, "epoch_began": self.epoch_began}

    def load_state_dict(self, kept: Dict[str, Any]) -> None:
        for name, value in kept["private"].items():
            setattr(self.trainer, name, value)
        self.epoch_began = kept["epoch_began"]

    def _spelled(self) -> str:
        state = dataclasses.asdict(self.trainer.state)
        callbacks: Dict[str, Any] = {}
        for callback in [*self.trainer.callback_handler.callbacks, self.trainer.control]:
            if isinstance(callback, ExportableState):
                callbacks.setdefault(type(callback).__name__, []).append(callback.state())
        state["stateful_callbacks"] = {name: own if len(own) > 1 else own[0] for name, own in callbacks.items()}
        return json.dumps(state)


class _Callback(TrainerCallback):
    def __init__(self, trainer: Trainer, run: Run, resume: Optional[str]) -> None:
        self._trainer = trainer
        self._run = run
        self._resume = resume
        self._position = _Position(trainer)
        self._random: Optional[Dict[str, Any]] = None  # of the resumed step, until it begins
        self._in_epoch = False  # the next epoch is the one that goes on

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        missing = [name for name in _PRIVATE if not hasattr(self._trainer, name)]
        if missing:
            raise Error(f"the Trainer of transformers {transformers.__version__} has no {missing[0]}: this release of "
                        "libckpt.torch.hf does not know it", "FAILED_PRECONDITION")
        expected = state.global_step
        optimizer, scheduler = given["optimizer"], given["lr_scheduler"]
        makers = makers_of(
            model=self._trainer.model,
            optim=getattr(optimizer, "optimizer", optimizer),  # as accelerate wraps them
            scheduler=getattr(scheduler, "scheduler", scheduler),
            scaler=self._trainer.accelerator.scaler,
        )
        makers.append(make_object(_NAME, PerRank(self._position), inline=True))
        self._run.attach(makers, self._resume)
        if self._run.resumed_from is None:
            return
        if self._run.global_step != expected:
            raise Error(f"the checkpoint of step {expected} is damaged, that of step {self._run.global_step} loads: start "
                        f"with resume='step:{self._run.global_step}'", "DATA_LOSS")
        self._random = _rng.capture()
        self._in_epoch = True

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._in_epoch and self._position.epoch_began is not None:
            _rng.apply(self._position.epoch_began)  # shuffles as it did
        self._in_epoch = False
        self._position.epoch_began = _rng.capture()

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._random is not None:
            _rng.apply(self._random)
            self._random = None
        elif state.global_step > self._run.global_step:
            self._run.step(state.global_step)
