"""Weights in and out: `.pt` files, Hugging Face directories of safetensors, directories of torch.distributed.checkpoint.

Only tensors travel. A .pt file is unpickled by torch.load(weights_only=True), DCP's .metadata as far as it describes tensors.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from .. import _core
from .._errors import Error
from ._parts import Part
from ._run import Run
from ._tensors import DTYPE_OF, NUMBER_OF, UNSHARDED, Leaf

FORMATS = ("pt", "hf", "dcp")
SHARD_BYTES = 5_000_000_000
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_TIED = "tied."  # in the metadata of a safetensors file: a second name of a tensor

Tensors = Dict[str, torch.Tensor]


def export(path: str, out: str, form: str = "", *, part: str = "model", selector: str = "",
           shard_bytes: int = SHARD_BYTES) -> int:
    """Writes what a run tracked as model= to `out`, which must not exist; how many tensors. `form`: "" a .pt file if it
    is named so, else "hf"."""
    form = form or ("pt" if out.endswith(".pt") else "hf")
    if os.path.lexists(out):
        raise Error(f"{out} exists; give another place, or remove it", "ALREADY_EXISTS")
    weights = _Weights(path, part, selector)
    partial = out.rstrip("/") + ".partial"
    try:
        if form == "pt":
            torch.save(weights.read(list(weights.about)), partial)
        elif form == "dcp":
            _export_dcp(weights, partial)
        else:
            _export_hf(weights, partial, shard_bytes)
        os.replace(partial, out)
    finally:
        weights.close()
        if os.path.isdir(partial):
            shutil.rmtree(partial)
        elif os.path.exists(partial):
            os.remove(partial)
    return len(weights.about)


def load_weights(given: str) -> Tensors:
    """Of a .pt file, a Hugging Face directory or one of torch.distributed.checkpoint."""
    if not os.path.exists(given):
        raise Error(f"{given} does not exist", "NOT_FOUND")
    if not os.path.isdir(given):
        try:
            return _checked(torch.load(given, map_location="cpu", weights_only=True), given)
        except pickle.UnpicklingError as error:
            raise Error(f"{given} holds more than weights, and that is not unpickled: {error}", "INVALID_ARGUMENT") from error
    if os.path.exists(os.path.join(given, ".metadata")):
        from . import _dcp_files

        return _dcp_files.read(given)
    return _import_hf(given)


def import_(given: str, path: str, *, step: int = 0, prefix: str = "", ties: Sequence[str] = ()) -> int:
    """Makes a run's directory of it, from which ckpt.load and ckpt.open(model=…, rng=False) read; how many tensors. Of those
    whose names begin with `prefix`, which is left out. `ties`: "NAME=FIRST", what the module holds under two names and
    `given` (DCP) has twice."""
    if os.path.isdir(path) and os.listdir(path):
        raise Error(f"{path} is not empty; give another place", "ALREADY_EXISTS")
    tensors = {name[len(prefix) :]: tensor for name, tensor in load_weights(given).items() if name.startswith(prefix)}
    if not tensors:
        raise Error(f"{given} holds no tensor whose name begins with {prefix!r}", "NOT_FOUND")
    for tie in ties:
        name, _, first = tie.partition("=")
        if not (name in tensors and first in tensors and torch.equal(tensors[name], tensors[first])):
            raise Error(f"{name!r} and {first!r} are not the same tensor twice in {given}", "INVALID_ARGUMENT")
        tensors[name] = tensors[first]
    run = Run(path, [lambda world: _Given(tensors)], save_every=0, signals=(), exit_on_stop=False, resume=None, rng=False)
    with run:
        run.step(step)
        run.save(wait=True)
    return len(tensors)


class _Given(Part):
    """Tensors by the names that a module would give them."""

    prefix = "model"

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def leaves(self) -> Iterator[Leaf]:
        for name, tensor in self._tensors.items():
            yield Leaf(f"{self.prefix}/{name}", tensor, UNSHARDED, f"tensor {name!r}")


class _Weights:
    """The tensors of one part of a checkpoint, whole, whatever number of ranks wrote them."""

    def __init__(self, path: str, part: str, selector: str) -> None:
        self._reader = _core.open_path(path, selector)
        self._prefix = part + "/"
        self.about: Dict[str, Tuple[torch.dtype, List[int]]] = {}
        self.tied: Dict[str, str] = {}
        for tensor in json.loads(self._reader.contents())["tensors"]:
            name = tensor["name"]
            if not name.startswith(self._prefix) or "rank" in tensor:
                continue  # the own buffers of other ranks than 0
            short = name[len(self._prefix) :]
            self.about[short] = (DTYPE_OF[tensor["dtype"]], tensor["shape"])
            first = tensor.get("tied_to", "")
            if first.startswith(self._prefix):
                self.tied[short] = first[len(self._prefix) :]
        if not self.about:
            self.close()
            raise Error(f"{path} has no tensors of {part!r}", "NOT_FOUND")

    def bytes(self, name: str) -> int:
        dtype, shape = self.about[name]
        return torch.Size(shape).numel() * dtype.itemsize

    def read(self, names: List[str]) -> Tensors:
        """Tied ones share memory."""
        state = _core.State()
        found: Tensors = {}
        for name in dict.fromkeys(self.tied.get(name, name) for name in names):
            dtype, shape = self.about[name]
            found[name] = tensor = torch.empty(shape, dtype=dtype)
            state.add_tensor(self._prefix + name, NUMBER_OF[dtype], UNSHARDED, shape, None, None, None, tensor.data_ptr())
        self._reader.load_part(state)
        return {name: found[self.tied.get(name, name)] for name in names}

    def close(self) -> None:
        self._reader.close()


def _export_dcp(weights: _Weights, out: str) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    state: Dict[str, Any] = dict(weights.read(list(weights.about)))
    save(state, checkpoint_id=out, no_dist=True)


def _export_hf(weights: _Weights, out: str, shard_bytes: int) -> None:
    from safetensors.torch import save_file

    shards: List[List[str]] = [[]]
    size = total = 0
    for name in weights.about:
        if name in weights.tied:
            continue  # the format holds no memory twice
        more = weights.bytes(name)
        if shards[-1] and size + more > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += more
        total += more
    os.makedirs(out)
    about = {"format": "pt", **{_TIED + name: first for name, first in weights.tied.items()}}
    files: Dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = _SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(weights.read(names), os.path.join(out, file), metadata=about)
        files.update((name, file) for name in names)
    if len(shards) > 1:
        with open(os.path.join(out, _INDEX), "w", encoding="utf-8") as index:
            json.dump({"metadata": {"total_size": total}, "weight_map": files}, index, indent=2, sort_keys=True)


def _import_hf(folder: str) -> Tensors:
    import safetensors

    safe_open: Any = safetensors.safe_open  # with types or without, by release
    tensors: Tensors = {}
    tied: Dict[str, str] = {}
    expected, files = _files_of(folder)
    for file in files:
        with safe_open(os.path.join(folder, file), framework="pt") as opened:
            tensors.update((name, opened.get_tensor(name)) for name in opened.keys())
            for key, first in (opened.metadata() or {}).items():
                if key.startswith(_TIED):
                    tied[key[len(_TIED) :]] = first
    missing = sorted(set(expected or ()) - set(tensors))
    if missing:
        raise Error(f"{folder}: the index names {missing[0]!r}, which no file holds", "DATA_LOSS")
    tensors.update((name, tensors[first]) for name, first in tied.items())
    return tensors


def _files_of(folder: str) -> Tuple[Optional[List[str]], List[str]]:
    """(names that there must be, files)"""
    index = os.path.join(folder, _INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            where: Dict[str, str] = json.load(file)["weight_map"]
        return list(where), sorted({os.path.basename(name) for name in where.values()})
    if os.path.exists(os.path.join(folder, _SINGLE)):
        return None, [_SINGLE]
    raise Error(f"{folder} has neither {_SINGLE} nor {_INDEX}", "NOT_FOUND")


def _checked(loaded: Any, given: str) -> Tensors:
    if not isinstance(loaded, dict):
        raise Error(f"{given} holds a {type(loaded).__name__}, no dict of tensors by name", "INVALID_ARGUMENT")
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise Error(f"{given}: {name!r} is a {type(tensor).__name__}; give a file that holds only tensors by name (a "
                        "module's state_dict())", "INVALID_ARGUMENT")
    return dict(loaded)
