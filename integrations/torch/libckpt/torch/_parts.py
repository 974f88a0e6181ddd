"""What a run tracks, part by part: modules, optimizers, objects with a state_dict, random numbers.

A part says which tensors it has now (`leaves`), which values (`values`), makes what does not exist yet before a load
(`prepare`) and takes the loaded values (`restore`). Tensors are loaded in place between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Tuple

import torch

from .. import values
from .._errors import Error, NotExpressible
from . import _trees
from ._tensors import (
    DTYPE_OF,
    PER_RANK,
    UNSHARDED,
    Leaf,
    is_dtensor,
    like,
)

VALUE_MEDIA_TYPE = "application/vnd.ckpt.value+json"


@dataclass
class World:
    """The ranks of this job, and of the checkpoint that is being read."""

    rank: int
    size: int
    shared: int  # placement of what is equal on all ranks: REPLICATED if that was compared, else UNSHARDED
    stored: int = 0  # world size of the checkpoint, 0 outside a load

    @property
    def same(self) -> bool:
        return self.stored in (0, self.size)


class Source:
    """The values of an opened checkpoint."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def value(self, name: str) -> Any:
        text = self._reader.value(name)
        return None if text is None else values.loads(text)

    def blob(self, name: str) -> Any:
        data = self._reader.blob(name)
        return None if data is None else values.loads(data.decode("utf-8"))

    def need(self, name: str, what: str) -> Any:
        found = self.value(name)
        if found is None:
            raise Error(f"the checkpoint has no {what} ({name!r})", "NOT_FOUND")
        return found


#: (name, per rank, value tree, where: for messages)
Value = Tuple[str, bool, Any, str]


class Part:
    prefix = ""  # what the user calls it

    def leaves(self) -> Iterator[Leaf]:
        return iter(())

    def values(self) -> Iterator[Value]:
        return iter(())

    def layout_values(self) -> Iterator[Value]:
        """Those that change only if tensors come or go: taken once."""
        return iter(())

    def version(self) -> int:
        """Changes whenever tensors may have come or gone; cheap."""
        return 0

    def prepare(self, source: Source) -> None:
        pass

    def restore(self, source: Source) -> None:
        pass


# ---- modules --------------------------------------------------------------------------------------------------------

_WRAPPER_NAMES = ("_orig_mod.", "_checkpoint_wrapped_module.")


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """The module as its author wrote it, under DDP and torch.compile."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, torch.nn.parallel.DistributedDataParallel):
            inner = module.module
        if inner is None:
            return module
        module = inner


def settle(module: torch.nn.Module) -> None:
    """Brings the parameters of FSDP2 into their sharded form (a forward without backward leaves the root unsharded)."""
    for child in module.modules():
        reshard = getattr(child, "reshard", None)
        if reshard is not None and hasattr(child, "unshard"):
            reshard()


def clean(name: str) -> str:
    for wrapper in _WRAPPER_NAMES:
        name = name.replace(wrapper, "")
    return name


class ModulePart(Part):
    """Parameters and persistent buffers by name. Parameters are equal on all ranks unless they are DTensors; buffers may
    differ (running statistics), so each rank has its own, and another number of ranks gets rank 0's."""

    def __init__(self, prefix: str, module: torch.nn.Module, world: World, stepped: FrozenSet[int] = frozenset()) -> None:
        self.prefix = prefix
        self.module = unwrap(module)
        self.world = world
        self._stepped = stepped  # ids of the parameters of tracked optimizers
        for name, child in self.module.named_modules():
            if type(child).__name__ == "FullyShardedDataParallel":
                raise NotExpressible(
                    f"{prefix}: module {name or '(top)'!r}", child, "use fully_shard (FSDP2) instead; FSDP1 is not supported"
                )

    def parameters(self) -> Iterator[Tuple[str, torch.nn.Parameter]]:
        settle(self.module)
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            yield clean(name), parameter

    def buffers(self) -> Iterator[Tuple[str, torch.Tensor]]:
        for path, module in self.module.named_modules(remove_duplicate=False):
            for key, buffer in module._buffers.items():
                if buffer is not None and key not in module._non_persistent_buffers_set:
                    yield clean(f"{path}.{key}" if path else key), buffer

    def leaves(self) -> Iterator[Leaf]:
        for name, parameter in self.parameters():
            yield Leaf(f"{self.prefix}/{name}", parameter, self.world.shared, f"{self.prefix}: parameter {name!r}",
                       id(parameter) in self._stepped)
        for name, buffer in self.buffers():
            where = f"{self.prefix}: buffer {name!r}"
            own = self.world.rank > 0 and self.world.same and not is_dtensor(buffer)
            if own:
                yield Leaf(f"{self.prefix}/{name}@rank", buffer, PER_RANK, where)
            else:
                yield Leaf(f"{self.prefix}/{name}", buffer, UNSHARDED, where)

    def _extras(self) -> Iterator[Tuple[str, torch.nn.Module]]:
        plain = torch.nn.Module.get_extra_state
        for path, module in self.module.named_modules():
            if type(module).get_extra_state is not plain:
                yield clean(path), module

    def values(self) -> Iterator[Value]:
        for path, module in self._extras():
            yield f"{self.prefix}/{path}#extra", False, module.get_extra_state(), f"{self.prefix}: extra state of {path!r}"

    def restore(self, source: Source) -> None:
        for path, module in self._extras():
            module.set_extra_state(source.need(f"{self.prefix}/{path}#extra", f"extra state of module {path!r}"))


# ---- optimizers -----------------------------------------------------------------------------------------------------


class OptimizerPart(Part):
    """State by the name of its parameter, so that it goes where the parameter goes; hyper-parameters by group.

    What does not exist yet at a load is made: as the parameter (momenta, also sharded), or by shape (Adam's step)."""

    def __init__(self, prefix: str, optimizer: torch.optim.Optimizer, names: Dict[int, str], world: World) -> None:
        self.prefix = prefix
        self.optimizer = optimizer
        self.world = world
        self._params: List[Tuple[str, torch.Tensor]] = []
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                name = names.get(id(parameter))
                if name is None:
                    raise Error(
                        f"{prefix}.param_groups[{g}]['params'][{i}], of shape {tuple(parameter.shape)}, is in none of the "
                        "modules given as model=; give that module too, since optimizer state goes by parameter name",
                        "INVALID_ARGUMENT",
                    )
                self._params.append((name, parameter))
        self._nested = False

    def version(self) -> int:
        state = self.optimizer.state
        if not self._nested:
            return len(state)
        return hash(tuple(len(_flat(s)) for s in state.values()))

    def _split(self, name: str, parameter: torch.Tensor) -> Tuple[Any, List[Tuple[_trees.Path, Any]]]:
        leaves: List[Tuple[_trees.Path, Any]] = []
        tree = _trees.split(dict(self.optimizer.state[parameter]), self._where(name), True, leaves)
        self._nested = self._nested or any(len(path) > 1 for path, _ in leaves)
        return tree, leaves

    def _where(self, name: str) -> str:
        return f"{self.prefix}: state of parameter {name!r}"

    def _leaf(self, name: str, path: _trees.Path, tensor: Any) -> Leaf:
        key = "/".join(str(key) for key in path)
        where = _trees.spell(self._where(name), path)
        return Leaf(f"{self.prefix}/{name}/{key}", _trees.as_tensor(tensor), self.world.shared, where, True)

    def leaves(self) -> Iterator[Leaf]:
        for name, parameter in self._params:
            if parameter in self.optimizer.state:
                for path, tensor in self._split(name, parameter)[1]:
                    yield self._leaf(name, path, tensor)
        for g, group in enumerate(self.optimizer.param_groups):
            for key, item in group.items():
                if isinstance(item, torch.Tensor):
                    where = f"{self.prefix}.param_groups[{g}][{key!r}]"
                    yield Leaf(f"{self.prefix}/group{g}/{key}", item, self.world.shared, where)

    def values(self) -> Iterator[Value]:
        groups = self.optimizer.param_groups
        yield f"{self.prefix}/groups", False, {"class": type(self.optimizer).__name__, "count": len(groups)}, self.prefix
        for g, group in enumerate(groups):
            kept = {k: v for k, v in group.items() if k not in ("params", "param_names") and not isinstance(v, torch.Tensor)}
            yield f"{self.prefix}/group{g}", False, kept, f"{self.prefix}.param_groups[{g}]"
        for name, parameter in self._params:
            state = self.optimizer.state.get(parameter)
            if state is not None and not _only_tensors(state):
                yield self._entry(name, parameter)

    def layout_values(self) -> Iterator[Value]:
        for name, parameter in self._params:
            state = self.optimizer.state.get(parameter)
            if state is not None and _only_tensors(state):
                yield self._entry(name, parameter)

    def _entry(self, name: str, parameter: torch.Tensor) -> Value:
        tree, leaves = self._split(name, parameter)
        notes = [self._note(name, parameter, path, leaf) for path, leaf in leaves]
        content = {"tree": values.Encoded(tree, self._where(name)), "leaves": notes}
        return f"{self.prefix}/{name}", False, content, self._where(name)

    def _note(self, name: str, parameter: torch.Tensor, path: _trees.Path, leaf: Any) -> Dict[str, Any]:
        note = _trees.describe(path, leaf, self._where(name), False)
        note["like"] = (
            isinstance(leaf, torch.Tensor)
            and leaf.shape == parameter.shape
            and is_dtensor(leaf) == is_dtensor(parameter)
            and leaf.dim() > 0
        )
        note["host"] = isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"
        if note["kind"] == "dtensor" and not note["like"]:
            raise NotExpressible(
                _trees.spell(self._where(name), path), "a DTensor of another shape than its parameter",
                "use an optimizer whose sharded state has the shape of the parameter",
            )
        if note["like"]:
            note["kind"] = "tensor"
        return note

    def prepare(self, source: Source) -> None:
        stored = source.need(f"{self.prefix}/groups", f"optimizer {self.prefix!r}")
        mine = {"class": type(self.optimizer).__name__, "count": len(self.optimizer.param_groups)}
        if stored != mine:
            raise Error(
                f"{self.prefix}: the checkpoint has {stored['class']} with {stored['count']} parameter groups, this run "
                f"{mine['class']} with {mine['count']}; start with the optimizer that was saved, or without optim=",
                "INVALID_ARGUMENT",
            )
        state = self.optimizer.state
        for name, parameter in self._params:
            entry = source.value(f"{self.prefix}/{name}")
            if entry is None:
                state.pop(parameter, None)
                continue
            live = state.get(parameter, {})
            tree = entry["tree"]
            for note in entry["leaves"]:
                path = tuple(note["path"])
                tree = _trees.put(tree, path, self._target(name, parameter, note, _trees.at(live, path)))
            state[parameter] = _trees.retype(tree, live)

    def _target(self, name: str, parameter: torch.Tensor, note: Dict[str, Any], live: Any) -> Any:
        if note["like"]:
            dtype = DTYPE_OF[note["dtype"]]
            good = isinstance(live, torch.Tensor) and live.shape == parameter.shape and live.dtype == dtype
            return live if good and is_dtensor(live) == is_dtensor(parameter) else like(parameter, dtype)
        if _trees.fits(live, note):
            return live
        made = _trees.make(note, _trees.spell(self._where(name), tuple(note["path"])))
        return made if note["host"] or not isinstance(made, torch.Tensor) else made.to(parameter.device)

    def restore(self, source: Source) -> None:
        for g, group in enumerate(self.optimizer.param_groups):
            group.update(source.need(f"{self.prefix}/group{g}", f"parameter group {g} of {self.prefix!r}"))


def _only_tensors(state: Dict[str, Any]) -> bool:
    return all(isinstance(value, torch.Tensor) for value in state.values())


def _flat(state: Any) -> List[Any]:
    leaves: List[Tuple[_trees.Path, Any]] = []
    _trees.split(dict(state), "", True, leaves)
    return leaves


# ---- objects --------------------------------------------------------------------------------------------------------


class ObjectPart(Part):
    """A dict or list of plain values and tensors, or whatever has state_dict() and load_state_dict()."""

    def __init__(self, prefix: str, target: Any, per_rank: bool, world: World, inline: bool = False) -> None:
        self.prefix = prefix
        self.target = target
        self.per_rank = per_rank
        self.world = world
        self._inline = inline
        self._container = type(target) in (dict, list)
        self._loaded: Any = None
        if not self._container and not (hasattr(target, "state_dict") and hasattr(target, "load_state_dict")):
            raise NotExpressible(
                prefix, target, "give a dict or a list (kept in place), or an object with state_dict() and load_state_dict()"
            )

    def _state(self) -> Any:
        return self.target if self._container else self.target.state_dict()

    def _split(self) -> Tuple[Any, List[Tuple[_trees.Path, Any]]]:
        leaves: List[Tuple[_trees.Path, Any]] = []
        return _trees.split(self._state(), self.prefix, not self._container, leaves), leaves

    def _small(self, leaf: Any) -> bool:
        return self._inline or _trees.is_inline(leaf)

    def _leaf(self, path: _trees.Path, tensor: Any) -> Leaf:
        placement = PER_RANK if self.per_rank and self.world.size > 1 else self.world.shared
        name = "/".join([self.prefix, *(str(key) for key in path)])
        return Leaf(name, _trees.as_tensor(tensor), placement, _trees.spell(self.prefix, path))

    def leaves(self) -> Iterator[Leaf]:
        if self._loaded is not None:
            for path, leaf in self._loaded[1]:
                yield self._leaf(path, leaf)
            return
        for path, leaf in self._split()[1]:
            if not self._small(leaf):
                yield self._leaf(path, leaf)

    def version(self) -> int:
        if not self._container:
            return 0  # a state_dict() may be dear: it is compared when it is staged
        return hash(tuple(leaf.name for leaf in self.leaves()))

    def values(self) -> Iterator[Value]:
        tree, leaves = self._split()
        notes = [_trees.describe(path, leaf, self.prefix, self._small(leaf)) for path, leaf in leaves]
        content = {"tree": values.Encoded(tree, self.prefix), "leaves": notes, "world": self.world.size}
        yield self.prefix, self.per_rank, content, self.prefix

    def prepare(self, source: Source) -> None:
        entry = source.blob(self.prefix) if self.per_rank else source.value(self.prefix)
        if entry is None:
            raise Error(f"the checkpoint has no {self.prefix!r}", "NOT_FOUND")
        if self.per_rank and entry["world"] != self.world.size:
            raise Error(
                f"{self.prefix} is one for each rank of {entry['world']}, this job has {self.world.size}; start with as many "
                f"ranks as before, or without {self.prefix}=",
                "FAILED_PRECONDITION",
            )
        live = self._state()
        tree, big = entry["tree"], []
        for note in entry["leaves"]:
            path = tuple(note["path"])
            old = _trees.at(live, path)
            if "bytes" in note:
                new = _trees.from_bytes(note)
                leaf = _trees.copy_into(old, new) if _trees.fits(old, note) else new
            else:
                leaf = old if _trees.fits(old, note) else _trees.make(note, _trees.spell(self.prefix, path))
                big.append((path, leaf))
            tree = _trees.put(tree, path, leaf)
        self._loaded = (tree, big, live)

    def restore(self, source: Source) -> None:
        tree, _, live = self._loaded
        self._loaded = None
        if not self._container:
            self.target.load_state_dict(_trees.retype(tree, live))
        elif isinstance(self.target, dict):
            self.target.clear()
            self.target.update(tree)
        else:
            self.target[:] = tree


class NumberPart(Part):
    """One number of the run itself."""

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._name, self._get, self._put = name, get, put

    def values(self) -> Iterator[Value]:
        yield self._name, False, self._get(), self._name

    def restore(self, source: Source) -> None:
        self._put(source.need(self._name, self._name))
