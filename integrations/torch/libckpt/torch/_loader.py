"""Where a data loader is, so that the next batch after a resume is the one that would have come.

A loader with state_dict() (torchdata's StatefulDataLoader, or one's own) says it itself. A plain DataLoader is followed:
its iterator is counted, and the random state in which an epoch began is kept, so that a resume begins that epoch again,
in the same order, and skips what was consumed.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch.utils.data import DataLoader, IterableDataset

from .._errors import Error, NotExpressible
from . import _rng, _trees
from ._parts import Part, Source, Value, World


def prepared(loader: Any) -> bool:
    """Whether accelerate has put a loader of its own around it, which reads one batch ahead. Begun again it does so again."""
    if not type(loader).__module__.startswith("accelerate."):
        return False
    if getattr(loader, "use_stateful_dataloader", False) or "Dispatcher" in type(loader).__name__:
        raise NotExpressible("loader", f"accelerate's {type(loader).__name__}",
                             "use neither dispatch_batches nor use_stateful_dataloader, or leave it out of accelerator.prepare()")
    return True


def _generators(loader: Any) -> List[torch.Generator]:
    """Those that belong to the loader and its samplers, in a fixed order."""
    found: List[torch.Generator] = []
    owners = [loader, getattr(loader, "sampler", None)]
    batches = getattr(loader, "batch_sampler", None)
    while batches is not None:  # accelerate's shard holds another one
        owners += [batches, getattr(batches, "sampler", None)]
        batches = getattr(batches, "batch_sampler", None)
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found):
            found.append(generator)
    return found


class _Position:
    """How far the epoch that is being iterated is."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self.loader = loader
        self.batches = 0  # handed out in this epoch
        self.epochs = 0  # begun so far
        self.start: Optional[Dict[str, Any]] = None  # random state in which it began
        self.ended = False  # to its last batch
        self.resumed = False  # the next iteration goes on in this epoch

    def random_state(self) -> Dict[str, Any]:
        own = [_trees.tensor_bytes(g.get_state()) for g in _generators(self.loader)]
        return {"global": _rng.capture(), "own": own}

    def set_random_state(self, state: Dict[str, Any]) -> None:
        _rng.apply(state["global"])
        for generator, kept in zip(_generators(self.loader), state["own"]):
            generator.set_state(torch.frombuffer(bytearray(kept), dtype=torch.uint8))

    def iterate(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        if self.resumed:
            inner = self._again(begin)
        else:
            self.start = self.random_state()
            self.epochs += 1
            self.batches = 0
            inner = begin()
        self.ended = False
        return _Counted(inner, self)

    def _again(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The epoch of before the resume: begun as then, skipped to where it was."""
        now = self.random_state()
        assert self.start is not None
        self.set_random_state(self.start)
        inner = begin()
        _advance(inner, self.batches, self.loader)
        self.resumed = False
        self.set_random_state(now)
        return inner


class _Counted:
    """The loader's own iterator, counted."""

    def __init__(self, inner: Iterator[Any], position: _Position) -> None:
        self._inner = inner
        self._position = position

    def __iter__(self) -> "_Counted":
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._inner)
        except StopIteration:
            self._position.ended = True
            raise
        self._position.batches += 1
        return batch

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _advance(inner: Iterator[Any], batches: int, loader: "DataLoader[Any]") -> None:
    """Past what was consumed. Without workers and with a map-style dataset nobody has drawn anything but indices, so
    nothing is read; else the batches are made again, which leaves workers in the state they had."""
    cheap = loader.num_workers == 0 and not isinstance(loader.dataset, IterableDataset)
    indices = getattr(inner, "_sampler_iter", None) if cheap else None
    for _ in range(batches):
        if indices is None:
            next(inner)
        else:
            next(indices)
            inner._num_yielded += 1  # type: ignore[attr-defined]


def follow(loader: "DataLoader[Any]") -> _Position:
    """Counts what `loader` hands out from now on. The instance gets a class of its own for that; everything else about
    it stays what it was."""
    known: Optional[_Position] = getattr(loader, "_libckpt_position", None)
    if known is not None:
        return known
    position = _Position(loader)
    base = type(loader)

    def __iter__(self: Any) -> Iterator[Any]:
        at: _Position = self._libckpt_position
        return at.iterate(lambda: base.__iter__(self))

    followed = type(base.__name__, (base,), {"__iter__": __iter__, "__module__": base.__module__})
    vars(object)["__class__"].__set__(loader, followed)  # accelerate's says that it is another one
    object.__setattr__(loader, "_libckpt_position", position)
    return position


class Stateful:
    """A loader that says itself where it is. To go on within an epoch it makes its iterator anew, which draws random
    numbers that the loop it goes on with has drawn before: they are given back."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def state_dict(self) -> Any:
        return self._loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self._loader.load_state_dict(state)
        if isinstance(self._loader, DataLoader) and not (isinstance(state, dict) and state.get("_iterator_finished")):
            _give_back_once(self._loader)


def _give_back_once(loader: Any) -> None:
    base = type(loader)

    def __iter__(self: Any) -> Iterator[Any]:
        before = _rng.capture()
        self.__class__ = base
        inner: Iterator[Any] = iter(self)
        _rng.apply(before)
        return inner

    loader.__class__ = type(base.__name__, (base,), {"__iter__": __iter__, "__module__": base.__module__})


class LoaderPart(Part):
    """Of this rank. Under another number of ranks the position is kept in samples."""

    prefix = "loader"

    def __init__(self, loader: "DataLoader[Any]", world: World) -> None:
        self.loader = loader
        self.world = world
        self.position = follow(loader)

    def values(self) -> Iterator[Value]:
        at = self.position
        yield "loader", True, {
            "batches": at.batches,
            "ended": at.ended,
            "epochs": at.epochs,
            "start": at.start,
            "now": [_trees.tensor_bytes(g.get_state()) for g in _generators(self.loader)],
            "batch": self.loader.batch_size,
            "world": self.world.size,
            "sampler_epoch": getattr(self.loader.sampler, "epoch", None),
            "iteration": getattr(self.loader, "iteration", None),
        }, "loader"

    def restore(self, source: Source) -> None:
        kept = source.blob("loader")
        if kept is None:
            raise Error("the checkpoint has no loader", "NOT_FOUND")
        self.take(kept)

    def take(self, kept: Dict[str, Any]) -> None:
        """Goes on where the loader was that values() described."""
        at = self.position
        at.epochs, at.ended, at.start = kept["epochs"], kept["ended"], kept["start"]
        at.batches = self._batches(kept)
        at.resumed = at.start is not None and not at.ended
        for generator, state in zip(_generators(self.loader), kept["now"]):
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        if kept["sampler_epoch"] is not None and hasattr(self.loader.sampler, "epoch"):
            self.loader.sampler.epoch = kept["sampler_epoch"]
        if kept.get("iteration") is not None:
            setattr(self.loader, "iteration", kept["iteration"])

    def _batches(self, kept: Dict[str, Any]) -> int:
        if kept["world"] == self.world.size and kept["batch"] == self.loader.batch_size:
            return int(kept["batches"])
        if not kept["batch"] or not self.loader.batch_size:
            raise Error("loader: a position in batches of unknown size cannot be carried to another number of ranks",
                        "FAILED_PRECONDITION")
        samples = kept["batches"] * kept["batch"] * kept["world"]
        each = self.loader.batch_size * self.world.size
        if samples % each:
            raise Error(
                f"loader: {samples} samples were consumed ({kept['batches']} batches of {kept['batch']} on {kept['world']} "
                f"ranks), which is no whole number of batches of {self.loader.batch_size} on {self.world.size} ranks; "
                "choose a batch size so that it is",
                "FAILED_PRECONDITION",
            )
        return int(samples // each)

