"""What a caller gives, as the parts that a run is made of."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Union

import torch

from .._errors import NotExpressible
from ._loader import LoaderPart, Stateful, prepared
from ._parts import ModulePart, ObjectPart, OptimizerPart, Part, World, clean, settle, unwrap
from ._run import PerRank

Modules = Union[torch.nn.Module, Mapping[str, torch.nn.Module]]
Optimizers = Union[torch.optim.Optimizer, Mapping[str, torch.optim.Optimizer]]
Maker = Callable[[World], Part]


def make_modules(prefix: str, given: Optional[Modules], stepped: FrozenSet[int] = frozenset()) -> List[Maker]:
    modules = _several(prefix, given, torch.nn.Module)
    return [partial(ModulePart, name, module, stepped=stepped) for name, module in modules]


def optimizers_of(optim: Optional[Optimizers]) -> List[torch.optim.Optimizer]:
    """As their authors made them."""
    return [_bare(optimizer) for _, optimizer in _several("optim", optim, torch.optim.Optimizer)]


def makers_of(
    model: Optional[Modules], optim: Optional[Optimizers], scheduler: Any = None, loader: Any = None, extra: Any = None,
    scaler: Any = None, ema: Any = None,
) -> List[Maker]:
    """See ckpt.open."""
    groups = [group for optimizer in optimizers_of(optim) for group in optimizer.param_groups]
    makers = make_modules("model", model, frozenset(id(p) for group in groups for p in group["params"]))
    names: Dict[int, str] = {}
    for prefix, module in _several("model", model, torch.nn.Module):
        inside = prefix[len("model.") :] + "." if prefix != "model" else ""
        settle(module)
        for name, parameter in unwrap(module).named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), inside + clean(name))
    for prefix, optimizer in _several("optim", optim, torch.optim.Optimizer):
        makers.append(partial(OptimizerPart, prefix, _bare(optimizer), names))
    for prefix, module in _several("ema", ema, object):
        if isinstance(module, torch.nn.Module):
            makers.append(partial(ModulePart, prefix, module))
        else:
            makers.append(make_object(prefix, module))
    for prefix, target in [*_several("scheduler", scheduler, object), *_several("scaler", scaler, object)]:
        makers.append(make_object(prefix, target))
    if extra is not None:
        makers.append(make_object("extra", extra))
    if isinstance(loader, torch.utils.data.DataLoader) and (prepared(loader) or not hasattr(loader, "state_dict")):
        makers.append(partial(LoaderPart, loader))
    elif loader is not None:
        makers.append(make_object("loader", PerRank(Stateful(loader)), inline=True))
    return makers


def _bare(optimizer: Any) -> Any:
    """As its author made it, under accelerate."""
    return optimizer.optimizer if type(optimizer).__module__.startswith("accelerate.") else optimizer


def make_object(prefix: str, target: Any, inline: bool = False) -> Callable[[World], Part]:
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
