"""Lightning: one callback.

    from libckpt.torch.lightning import Checkpoint
    trainer = Trainer(callbacks=[Checkpoint("runs/gpt", save_every=100)])
    trainer.fit(model, loader)          # goes on where it was; told to make room: saves, exit code 75

What the Trainer itself knows (its loops, the other callbacks, the datamodule) is kept with weights, optimizers, schedules, random
numbers and the position of the training loader. A step is saved at the end of its batch, after on_train_batch_end of the
module. One after which Lightning validates or ends an epoch is left out, and the next one is saved; never two in a row.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Union

import lightning.pytorch as pl
import torch

from .._errors import Error, NotExpressible
from . import _rng
from ._loader import LoaderPart
from ._makers import make_object, makers_of, optimizers_of
from ._parts import Part, Source, Value, World
from ._run import DEFAULT_SIGNALS, PerRank, Run

__all__ = ["Checkpoint"]

_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")


class Checkpoint(pl.Callback):
    """Restores when training begins, if there is something to restore. path, save_every, resume, signals, overlap: as of
    ckpt.open. `run` is the Run while it trains."""

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]", None] = None,
        *,
        save_every: int = 0,
        resume: Optional[str] = "",
        signals: Iterable[int] = DEFAULT_SIGNALS,
        overlap: bool = False,
    ) -> None:
        self.run: Optional[Run] = None
        self._path, self._save_every, self._resume = path, save_every, resume
        self._signals = list(signals)
        self._overlap = overlap
        self._random: Optional[Dict[str, Any]] = None  # of the resumed step, until training begins
        self._shadows: List[Any] = []
        self._last = -1  # the step that step() was called for
        self._left_out = False

    # ---- as Lightning calls it ----

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        _check(trainer)
        optimizers = {str(i): optimizer for i, optimizer in enumerate(trainer.optimizers)}
        self.run = Run(self._path, [], save_every=self._save_every, signals=self._signals, exit_on_stop=False, resume=None,
                       rng=True, fenced=optimizers_of(optimizers) if self._overlap else None)
        loaders = _Loaders()
        schedulers = {str(i): config.scheduler for i, config in enumerate(trainer.lr_scheduler_configs)}
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        makers = makers_of(model=pl_module, optim=optimizers, scheduler=schedulers, scaler=scaler)
        makers += [loaders.made_in, make_object("lightning", PerRank(_TrainerState(trainer, self)), inline=True)]
        self.run.attach(makers, self._resume)
        if self.run.resumed_from is not None:
            self._random = _rng.capture()
        self._last = trainer.global_step
        self._shadow(pl_module, "on_train_batch_end", lambda then: self._after_batch(trainer, then))
        self._shadow(trainer.fit_loop, "_load_combined_loader_states", lambda then: loaders.follow(trainer, then))
        self._shadow(trainer._signal_connector, "register_signal_handlers", lambda then: lambda: None)  # the run has its own

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._random is not None:
            _rng.apply(self._random)
            self._random = None

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._unshadow()
        if self.run is not None:
            self.run.finish()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._unshadow()
        if self.run is not None and not self.run.should_stop():
            self.run._give_up(None)

    # ---- inside ----

    def _after_batch(self, trainer: pl.Trainer, then: Callable[..., Any]) -> Callable[..., Any]:
        def on_train_batch_end(*given: Any) -> None:
            then(*given)
            if trainer.global_step == self._last:
                return  # gradients are being accumulated
            self._left_out = not self._left_out and _work_follows(trainer)
            if self._left_out:
                return
            assert self.run is not None
            self._last = trainer.global_step
            self.run.step(trainer.global_step)
            if self.run.should_stop():
                self.run.exit()

        return on_train_batch_end

    def _shadow(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        if not hasattr(owner, name):
            raise Error(f"this Lightning has no {type(owner).__name__}.{name}: libckpt.torch.lightning "
                        "does not know it", "FAILED_PRECONDITION")
        vars(owner)[name] = make(getattr(owner, name))
        self._shadows.append((owner, name))

    def _unshadow(self) -> None:
        for owner, name in self._shadows:
            vars(owner).pop(name, None)
        self._shadows = []


def _check(trainer: pl.Trainer) -> None:
    strategy = type(trainer.strategy).__name__
    if strategy not in _STRATEGIES:
        raise Error(f"{strategy}: libckpt.torch.lightning knows {' and '.join(_STRATEGIES)}; for others write the loop with "
                    "ckpt.open", "UNIMPLEMENTED")


def _work_follows(trainer: pl.Trainer) -> bool:
    """Whether Lightning validates or ends the epoch after this batch: it would not do it again after a resume."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    done = progress.current.ready
    return bool(progress.is_last_batch) or done >= trainer.num_training_batches or bool(
        trainer.enable_validation and trainer.val_check_batch and done % trainer.val_check_batch == 0)


class _TrainerState:
    """Of each rank: loops, callbacks and datamodule, as Lightning's own checkpoints hold them."""

    def __init__(self, trainer: pl.Trainer, mine: pl.Callback) -> None:
        self._trainer = trainer
        self._others = [callback for callback in trainer.callbacks if callback is not mine]  # type: ignore[attr-defined]

    def state_dict(self) -> Dict[str, Any]:
        data = self._trainer.datamodule  # type: ignore[attr-defined]
        callbacks = {callback.state_key: callback.state_dict() for callback in self._others}
        return {"loops": self._trainer.fit_loop.state_dict(), "callbacks": {k: v for k, v in callbacks.items() if v},
                "data": None if data is None else data.state_dict()}

    def load_state_dict(self, kept: Dict[str, Any]) -> None:
        self._trainer.fit_loop.load_state_dict(kept["loops"])
        for callback in self._others:
            if callback.state_key in kept["callbacks"]:
                callback.load_state_dict(kept["callbacks"][callback.state_key])
        if kept["data"] is not None:
            self._trainer.datamodule.load_state_dict(kept["data"])  # type: ignore[attr-defined]


class _Loaders(Part):
    """The training loader, which Lightning makes after everything else has been restored."""

    prefix = "loader"

    def __init__(self) -> None:
        self._world: Optional[World] = None
        self._part: Optional[LoaderPart] = None
        self._kept: Optional[Dict[str, Any]] = None

    def made_in(self, world: World) -> Part:
        self._world = world
        return self

    def values(self) -> Iterator[Value]:
        if self._part is None:
            yield "loader", True, self._kept, "loader"  # one that says itself where it is, or none yet
        else:
            yield from self._part.values()

    def restore(self, source: Source) -> None:
        self._kept = source.blob("loader")

    def follow(self, trainer: pl.Trainer, then: Callable[[], None]) -> Callable[[], None]:
        """In the place of what loads the loaders' states, just before they are iterated."""

        def loaders_are_made() -> None:
            then()
            combined = trainer.fit_loop._combined_loader
            plain = [loader for loader in combined.flattened  # type: ignore[union-attr]
                     if isinstance(loader, torch.utils.data.DataLoader) and not hasattr(loader, "state_dict")]
            if len(plain) > 1:
                raise NotExpressible("the training loaders", "a position in several DataLoaders",
                                     "give one, or torchdata's StatefulDataLoader")
            assert self._world is not None
            self._part = LoaderPart(plain[0], self._world) if plain else None
            if self._part is not None and self._kept is not None:
                self._part.take(self._kept)
            self._kept = None

        return loaders_are_made
