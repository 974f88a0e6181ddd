"""All parts of a run as one description for the library: built before a load and before the first save, kept fresh at
every staging, built anew when tensors have come or gone."""

from __future__ import annotations

import zlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from .. import _core, values
from .._errors import Error, NotExpressible
from . import _tensors, _trees
from ._dist import Group
from ._parts import VALUE_MEDIA_TYPE, Part, Value, World
from ._tensors import REPLICATED, Layout

_SAMPLE_BYTES = 4096


class LayoutChanged(Exception):
    """Tensors came or went since the state was described."""


class _Entry:
    __slots__ = ("layout", "address", "source", "shape", "mirror")

    def __init__(self, layout: Layout, source: torch.Tensor, mirror: Optional[torch.Tensor]) -> None:
        self.layout = layout
        self.source = source
        self.shape = source.shape
        self.mirror = mirror
        self.address = (source if mirror is None else mirror).data_ptr()


class Tracked:
    """A description of `parts` as they are now, and the library's state made from it."""

    def __init__(self, parts: List[Part], world: World, old: Optional["Tracked"] = None, overlap: bool = False) -> None:
        """`overlap`: what something else than a tracked optimizer may change is copied in refresh(), since the library
        copies later."""
        self.parts = parts
        self.world = world
        self.state = _core.State()
        self.version = version_of(parts)
        self.bytes = 0
        self._entries: Dict[str, _Entry] = {}
        mirrors = {} if old is None else {n: e.mirror for n, e in old._entries.items() if e.mirror is not None}
        for name, layout, memory, stepped in self._scan():
            mirrored = _tensors.needs_mirror(memory) or (overlap and not stepped)
            mirror = _mirror(memory, mirrors.get(name)) if mirrored else None
            self._entries[name] = _Entry(layout, memory, mirror)
            self._add(name, self._entries[name])
            if layout.tied_to is None:
                self.bytes += memory.numel() * memory.element_size()
        if not world.stored:  # a load replaces them anyway
            for part in parts:
                self._put_values(part.layout_values())

    def _scan(self) -> List[Tuple[str, Layout, torch.Tensor, bool]]:
        found: List[Tuple[str, Layout, torch.Tensor, bool]] = []
        ties = _tensors.Ties()
        names = set()
        for part in self.parts:
            for leaf in part.leaves():
                memory = _tensors.check(leaf.tensor, leaf.where)
                layout = _tensors.layout_of(leaf, memory, None)
                key = (layout.dtype, layout.placement, layout.shape, layout.offset)
                tied = ties.find(leaf.name, memory, key)
                if tied is not None:
                    layout = _tensors.layout_of(leaf, memory, tied)
                if leaf.name in names:
                    raise NotExpressible(leaf.where, f"a second tensor named {leaf.name!r}", "give the two other names")
                names.add(leaf.name)
                found.append((leaf.name, layout, memory, leaf.stepped))
        return found

    def _add(self, name: str, entry: _Entry) -> None:
        layout = entry.layout
        strides = entry.mirror.stride() if entry.mirror is not None else layout.strides
        self.state.add_tensor(
            name, layout.dtype, layout.placement, layout.shape, layout.local_shape, layout.offset, strides,
            entry.address, layout.tied_to,
        )

    def refresh(self) -> None:
        """Before each staging: values as they are now, tensors where they are now."""
        if not self._unmoved():
            self._find_moved()
        self._fill_mirrors()
        for part in self.parts:
            self._put_values(part.values())

    def _unmoved(self) -> bool:
        """The common case, at a fraction of the cost: the same tensor objects with the same memory."""
        count = 0
        for part in self.parts:
            for leaf in part.leaves():
                memory = _tensors.local_of(leaf.tensor)
                entry = self._entries.get(leaf.name)
                if entry is None or entry.source is not memory or entry.shape != memory.shape:
                    return False
                if entry.mirror is None and entry.address != memory.data_ptr():
                    return False
                count += 1
        return count == len(self._entries)

    def _find_moved(self) -> None:
        found = self._scan()
        if len(found) != len(self._entries):
            raise LayoutChanged
        for name, layout, memory, _ in found:
            entry = self._entries.get(name)
            if entry is None or entry.layout != layout:
                raise LayoutChanged
            entry.source = memory
            if entry.mirror is None and memory.data_ptr() != entry.address:
                entry.address = memory.data_ptr()
                self.state.move_tensor(name, entry.address)

    def _put_values(self, given: Iterator[Value]) -> None:
        for name, per_rank, value, where in given:
            text = values.dumps(value, where)
            if per_rank:
                self.state.add_blob(name, True, VALUE_MEDIA_TYPE, text.encode("utf-8"))
            else:
                self.state.add_value(name, False, text)

    def _fill_mirrors(self) -> None:
        devices = set()
        for entry in self._entries.values():
            if entry.mirror is not None:
                entry.mirror.copy_(entry.source.detach(), non_blocking=True)
                devices.add(entry.source.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def versions(self) -> Dict[str, int]:
        """Of what the library reads where it lies: torch counts the changes in place."""
        return {name: entry.source._version for name, entry in self._entries.items()
                if entry.mirror is None and not entry.source.is_inference()}

    def spread_mirrors(self) -> None:
        """After a load: what was loaded into host mirrors goes to the devices."""
        with torch.no_grad():
            for entry in self._entries.values():
                if entry.mirror is not None:
                    entry.source.detach().copy_(entry.mirror)

    def compare(self, group: Group) -> None:
        """Tensors that are saved as equal on all ranks are compared by a sample of their bytes: one that each rank has
        for itself would be mixed together silently."""
        sums = {
            name: _sample(entry.source) for name, entry in self._entries.items() if entry.layout.placement == REPLICATED
        }
        mine = values.dumps([[name, digest] for name, digest in sums.items()]).encode()
        for rank, line in enumerate(group.gather_lines(mine)):
            for name, digest in values.loads(line.decode()):
                if name in sums and sums[name] != digest:
                    raise Error(
                        f"tensor {name!r} differs between this rank and rank {rank}, but plain tensors are saved as equal on "
                        "all ranks: wrap the model in DDP or shard it, or, if each rank has its own, track it with "
                        "extra=ckpt.per_rank({...}) or under a name of its own (model={f'stage{rank}': module})",
                        "INVALID_ARGUMENT",
                    )


def _sample(tensor: torch.Tensor) -> int:
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()[:_SAMPLE_BYTES]
    ends = flat if flat.numel() <= 2 * _SAMPLE_BYTES else torch.cat([flat[:_SAMPLE_BYTES], flat[-_SAMPLE_BYTES:]])
    return zlib.crc32(_trees.tensor_bytes(ends))


def _mirror(memory: torch.Tensor, old: Optional[torch.Tensor]) -> torch.Tensor:
    if old is not None and old.shape == memory.shape and old.dtype == memory.dtype:
        return old
    pinned = memory.device.type == "cuda"
    return torch.empty(memory.shape, dtype=memory.dtype, device="cpu", pin_memory=pinned)


def version_of(parts: List[Part]) -> Tuple[Any, ...]:
    return tuple(part.version() for part in parts)
