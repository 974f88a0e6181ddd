"""PyTorch: three lines in a training script, and it can be suspended at any step.

    import libckpt.torch as ckpt
    run = ckpt.open("runs/gpt", model=model, optim=opt, scheduler=sched, loader=loader, extra=state)
    for batch in loader:
        loss = train_step(batch)
        run.step(loss=loss)
"""

from __future__ import annotations

import os
from typing import Any, Iterable, Optional, Union

from .. import EXIT_SUSPENDED, _core
from .._errors import Error, NotExpressible
from ._makers import Modules, Optimizers, make_modules, makers_of, optimizers_of
from ._parts import Source, World
from ._run import DEFAULT_SIGNALS, Run, Save, check_format, per_rank
from ._tensors import UNSHARDED
from ._tracked import Tracked

__all__ = ["EXIT_SUSPENDED", "Error", "NotExpressible", "Run", "Save", "load", "open", "per_rank"]


def open(  # noqa: A001: it reads like torch.load and builtins.open
    path: Union[str, "os.PathLike[str]", None] = None,
    *,
    model: Optional[Modules] = None,
    optim: Optional[Optimizers] = None,
    scheduler: Any = None,
    loader: Any = None,
    extra: Any = None,
    scaler: Any = None,
    ema: Any = None,
    save_every: int = 0,
    overlap: bool = False,
    rng: bool = True,
    signals: Iterable[int] = DEFAULT_SIGNALS,
    exit_on_stop: bool = True,
    resume: Optional[str] = "",
    writer: Any = None,
) -> Run:
    """Opens a run and restores it, in place, if there is something to restore.

    path: directory of the run's checkpoints. Under ckpt-run its store is used instead.
    model: a module, or several by name; DDP, FSDP2 (fully_shard) and torch.compile are seen through.
    optim: an optimizer, or several by name; its parameters must be in model=.
    scheduler, scaler, ema: anything with state_dict() and load_state_dict(), or several by name; ema may be a module.
    loader: a DataLoader, or anything with state_dict() and load_state_dict().
    extra: a dict or list of plain values and tensors, kept in place; or an object with state_dict(). per_rank(…) if each
        rank has its own.
    save_every: steps between saves; 0 none but those at a suspend and by save().
    overlap: step() returns before parameters and optimizer state are copied for such a save; optim= waits for the copy
        before it changes them. Nothing else may change them before run.fence(): else that save is given up, and run.fence()
        or the next step raises and says so. False: copied before step() returns.
    rng: python's, numpy's and torch's random state, of each rank.
    signals: those that ask for a suspend.
    exit_on_stop: False: step() returns, and should_stop() says so.
    resume: "" the newest state, "latest" the newest durable one, "step:N", a checkpoint's name; None: nothing.
    writer: a torch.utils.tensorboard.SummaryWriter, or anything with its add_scalar: rank 0 adds ckpt/stall_seconds,
        ckpt/bytes, ckpt/durable_seconds and ckpt/restore_seconds.
    """
    makers = makers_of(model, optim, scheduler, loader, extra, scaler, ema)
    return Run(path, makers, save_every=save_every, signals=signals, exit_on_stop=exit_on_stop, resume=resume, rng=rng,
               fenced=optimizers_of(optim) if overlap else None, writer=writer)


def load(path: Union[str, "os.PathLike[str]"], *, model: Modules, selector: str = "") -> int:
    """Loads only the model, in place, for inference: of a finished run or one that goes on, which is not disturbed. Returns
    the step it was saved at. Several ranks: each calls it, plain or with DTensors; buffers are rank 0's.

    path: a run's directory, of which the newest checkpoint is read, or one checkpoint's.
    selector: "step:N" or a name, for another one than the newest.
    """
    world = World(0, 1, UNSHARDED)
    parts = [make(world) for make in make_modules("model", model)]
    reader = _core.open_path(os.fspath(path), selector)
    try:
        source = Source(reader)
        world.stored = int(check_format(source)["world"])
        tracked = Tracked(parts, world)
        reader.load_part(tracked.state)
        tracked.spread_mirrors()
        for part in parts:
            part.restore(source)
        return reader.step()
    finally:
        reader.close()
