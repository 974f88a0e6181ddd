"""Nested state (dicts, lists, tuples) with tensors and numpy arrays in it: taken apart into a value and leaves, and put
together again.

Small leaves travel inside the value, so that a state whose small tensors come and go keeps one layout.
"""

from __future__ import annotations

import ctypes
import sys
from collections import Counter, OrderedDict, defaultdict
from typing import Any, Dict, List, Optional, Tuple

import torch

from .. import values
from .._errors import Error, NotExpressible
from ._tensors import DTYPE_OF, NAME_OF, check, is_dtensor

Path = Tuple[Any, ...]

INLINE_BYTES_MAX = 4096

_LOOSE_DICTS = (OrderedDict, Counter, defaultdict)


def _numpy() -> Any:
    return sys.modules.get("numpy")


def is_leaf(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    numpy = _numpy()
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def spell(where: str, path: Path) -> str:
    return where + "".join(f"[{key!r}]" for key in path)


def split(value: Any, where: str, loose: bool, leaves: List[Tuple[Path, Any]], path: Path = ()) -> Any:
    """`value` with None in the place of each leaf. `loose`: dicts of the standard library count as dicts (what a
    state_dict() returns may hold them; they come back as what the live object has in that place)."""
    if is_leaf(value):
        leaves.append((path, value))
        return None
    if len(path) > values.DEPTH_MAX:
        raise NotExpressible(spell(where, path), value, "containers nest too deep (does it contain itself?)")
    kind = type(value)
    if kind is dict or (loose and kind in _LOOSE_DICTS):
        return {key: split(item, where, loose, leaves, path + (key,)) for key, item in value.items()}
    if kind is list or kind is tuple or (loose and kind is torch.Size):
        items = [split(item, where, loose, leaves, path + (i,)) for i, item in enumerate(value)]
        return items if kind is list else tuple(items)
    return value


def at(value: Any, path: Path) -> Any:
    """What lies at `path`, or None."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def put(tree: Any, path: Path, leaf: Any) -> Any:
    """`tree` with `leaf` at `path`; tuples on the way are made anew."""
    if not path:
        return leaf
    key, rest = path[0], path[1:]
    if isinstance(tree, tuple):
        items = list(tree)
        items[key] = put(items[key], rest, leaf)
        return tuple(items)
    tree[key] = put(tree[key], rest, leaf)
    return tree


def retype(tree: Any, live: Any) -> Any:
    """Dicts as the live object has them in the same places (Counter, OrderedDict, defaultdict)."""
    if isinstance(tree, dict) and isinstance(live, dict):
        entries = {key: retype(item, live.get(key)) for key, item in tree.items()}
        if type(live) is defaultdict:
            return defaultdict(live.default_factory, entries)
        return type(live)(entries) if type(live) in (OrderedDict, Counter) else entries
    if isinstance(tree, (list, tuple)) and isinstance(live, (list, tuple)):
        items = [retype(item, live[i] if i < len(live) else None) for i, item in enumerate(tree)]
        if isinstance(tree, list):
            return items
        return torch.Size(items) if type(live) is torch.Size else tuple(items)
    return tree


# ---- leaves ---------------------------------------------------------------------------------------------------------


def leaf_bytes(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() * leaf.element_size()
    return int(leaf.nbytes)


def is_inline(leaf: Any) -> bool:
    if is_dtensor(leaf):
        return False
    if isinstance(leaf, torch.Tensor):
        return leaf_bytes(leaf) <= INLINE_BYTES_MAX
    return leaf_bytes(leaf) <= INLINE_BYTES_MAX or not leaf.flags.writeable


def describe(path: Path, leaf: Any, where: str, inline: bool) -> Dict[str, Any]:
    """What is needed to make it again."""
    note: Dict[str, Any] = {"path": list(path)}
    if isinstance(leaf, torch.Tensor):
        check(leaf, spell(where, path))
        note.update(kind="dtensor" if is_dtensor(leaf) else "tensor", dtype=NAME_OF[leaf.dtype], shape=list(leaf.shape))
        if inline:
            note["bytes"] = tensor_bytes(leaf)
        return note
    numpy = _numpy()
    if leaf.dtype.hasobject or leaf.dtype.fields is not None or leaf.dtype.kind not in "biufc":
        raise NotExpressible(
            spell(where, path), f"a numpy array of dtype {leaf.dtype}", "keep arrays of numbers, or store bytes"
        )
    if not inline and (not leaf.dtype.isnative or leaf.dtype.itemsize > 8 + 8 * (leaf.dtype.kind == "c")):
        raise NotExpressible(spell(where, path), f"a numpy array of dtype {leaf.dtype}", "convert it to a native dtype")
    scalar = isinstance(leaf, numpy.generic)
    note.update(kind="numpy_scalar" if scalar else "numpy", dtype=leaf.dtype.str, shape=list(leaf.shape))
    if inline:
        note["bytes"] = leaf.tobytes()
    return note


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def from_bytes(note: Dict[str, Any]) -> Any:
    data, shape = note["bytes"], note["shape"]
    if note["kind"] == "tensor":
        dtype = DTYPE_OF[note["dtype"]]
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
    import numpy

    array = numpy.frombuffer(bytearray(data), dtype=numpy.dtype(note["dtype"])).reshape(shape)
    return array[()] if note["kind"] == "numpy_scalar" else array


def fits(live: Any, note: Dict[str, Any]) -> bool:
    """Whether `live` can take the stored leaf in place."""
    if note["kind"] in ("tensor", "dtensor"):
        return (
            isinstance(live, torch.Tensor)
            and is_dtensor(live) == (note["kind"] == "dtensor")
            and NAME_OF.get(live.dtype) == note["dtype"]
            and list(live.shape) == note["shape"]
        )
    numpy = _numpy()
    return (
        note["kind"] == "numpy"
        and numpy is not None
        and isinstance(live, numpy.ndarray)
        and live.dtype.str == note["dtype"]
        and list(live.shape) == note["shape"]
        and bool(live.flags.writeable)
    )


def make(note: Dict[str, Any], where: str) -> Any:
    """A new leaf to load into."""
    if note["kind"] == "dtensor":
        raise Error(
            f"{where} is a DTensor in the checkpoint: it must exist, with its shape and placements, before ckpt.open",
            "FAILED_PRECONDITION",
        )
    if note["kind"] == "tensor":
        return torch.empty(note["shape"], dtype=DTYPE_OF[note["dtype"]])
    import numpy

    return numpy.empty(note["shape"], dtype=numpy.dtype(note["dtype"]))


def as_tensor(leaf: Any) -> torch.Tensor:
    """The leaf's memory as a tensor."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    return torch.from_numpy(leaf)


def copy_into(live: Any, new: Any) -> Optional[Any]:
    """Copies a small leaf in place; None if there is nothing to take it."""
    if isinstance(new, torch.Tensor) and isinstance(live, torch.Tensor):
        with torch.no_grad():
            live.copy_(new)
        return live
    if not isinstance(new, torch.Tensor) and hasattr(live, "flags"):
        live[...] = new
        return live
    return None
