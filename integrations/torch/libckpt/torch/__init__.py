"""PyTorch: three lines in a training script, and it can be suspended at any step.

    import libckpt.torch as ckpt
    run = ckpt.open("runs/gpt", model=model, optim=opt, scheduler=sched, loader=loader, extra=state)
    for batch in loader:
        loss = train_step(batch)
        run.step(loss=loss)
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Union

import torch

from .. import EXIT_SUSPENDED
from .._errors import Error, NotExpressible
from ._loader import LoaderPart
from ._parts import ModulePart, ObjectPart, OptimizerPart, Part, World, clean, settle, unwrap
from ._run import DEFAULT_SIGNALS, PerRank, Run, Save, per_rank

__all__ = ["EXIT_SUSPENDED", "Error", "NotExpressible", "Run", "Save", "open", "per_rank"]

_Modules = Union[torch.nn.Module, Mapping[str, torch.nn.Module]]
_Optimizers = Union[torch.optim.Optimizer, Mapping[str, torch.optim.Optimizer]]


def open(  # noqa: A001: it reads like torch.load and builtins.open
    path: Union[str, "os.PathLike[str]", None] = None,
    *,
    model: Optional[_Modules] = None,
    optim: Optional[_Optimizers] = None,
    scheduler: Any = None,
    loader: Any = None,
    extra: Any = None,
    scaler: Any = None,
    ema: Any = None,
    save_every: int = 0,
    rng: bool = True,
    signals: Iterable[int] = DEFAULT_SIGNALS,
    exit_on_stop: bool = True,
    resume: Optional[str] = "",
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
    rng: python's, numpy's and torch's random state, of each rank.
    signals: those that ask for a suspend.
    exit_on_stop: False: step() returns, and should_stop() says so.
    resume: "" the newest state, "latest" the newest durable one, "step:N", a checkpoint's name; None: nothing.
    """
    makers: List[Callable[[World], Part]] = []
    names: Dict[int, str] = {}
    for prefix, module in _several("model", model, torch.nn.Module):
        makers.append(partial(ModulePart, prefix, module))
        inside = prefix[len("model.") :] + "." if prefix != "model" else ""
        settle(module)
        for name, parameter in unwrap(module).named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), inside + clean(name))
    for prefix, optimizer in _several("optim", optim, torch.optim.Optimizer):
        makers.append(partial(OptimizerPart, prefix, optimizer, names))
    for prefix, module in _several("ema", ema, object):
        if isinstance(module, torch.nn.Module):
            makers.append(partial(ModulePart, prefix, module))
        else:
            makers.append(_object(prefix, module))
    for prefix, target in [*_several("scheduler", scheduler, object), *_several("scaler", scaler, object)]:
        makers.append(_object(prefix, target))
    if extra is not None:
        makers.append(_object("extra", extra))
    if isinstance(loader, torch.utils.data.DataLoader) and not hasattr(loader, "state_dict"):
        makers.append(partial(LoaderPart, loader))
    elif loader is not None:
        makers.append(_object("loader", PerRank(loader), inline=True))
    return Run(
        path, makers, save_every=save_every, signals=signals, exit_on_stop=exit_on_stop, resume=resume, rng=rng
    )


def _object(prefix: str, target: Any, inline: bool = False) -> Callable[[World], Part]:
    own = isinstance(target, PerRank)
    return lambda world: ObjectPart(prefix, target.target if own else target, own, world, inline)


def _several(prefix: str, given: Any, kind: type) -> List[Any]:
    """One object, or a mapping of several by name."""
    if given is None:
        return []
    if isinstance(given, Mapping) and not hasattr(given, "state_dict"):
        pairs = [(f"{prefix}.{name}", item) for name, item in given.items()]
    else:
        pairs = [(prefix, given)]
    for name, item in pairs:
        if not isinstance(item, kind):
            raise NotExpressible(name, item, f"give a {kind.__module__}.{kind.__qualname__}, or a dict of them by name")
    return pairs
