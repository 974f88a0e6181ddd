"""Random number generators: python, numpy (the global one), torch, and every device that has been used. Per rank."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any, Dict, Iterator, List

import torch

from . import _trees
from ._parts import Part, Source, Value, World


def capture() -> Dict[str, Any]:
    version, words, gauss = random.getstate()
    state: Dict[str, Any] = {
        "python": [version, b"".join(w.to_bytes(4, "little") for w in words), gauss],
        "torch": _trees.tensor_bytes(torch.get_rng_state()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        if kind == "MT19937":
            state["numpy"] = [keys.tobytes(), int(position), int(has_gauss), float(cached)]
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        state["cuda"] = [_trees.tensor_bytes(s) for s in cuda.get_rng_state_all()]
    return state


def apply(state: Dict[str, Any]) -> None:
    version, packed, gauss = state["python"]
    words = tuple(int.from_bytes(packed[i : i + 4], "little") for i in range(0, len(packed), 4))
    random.setstate((version, words, gauss))
    torch.set_rng_state(_from_bytes(state["torch"]))
    if "numpy" in state:
        import numpy

        keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state(("MT19937", numpy.frombuffer(keys, dtype=numpy.uint32), position, has_gauss, cached))
    devices: List[bytes] = state.get("cuda", [])
    if devices and torch.cuda.is_available():
        for device, kept in zip(range(torch.cuda.device_count()), devices):
            torch.cuda.set_rng_state(_from_bytes(kept), device)


def seed_new_rank(state: Dict[str, Any], rank: int, world: int) -> None:
    """A rank that the checkpoint does not know gets its own streams, the same in every such start."""
    digest = hashlib.sha256(state["torch"] + f"/{rank}/{world}".encode()).digest()
    seed = int.from_bytes(digest[:8], "little")
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _from_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class RngPart(Part):
    prefix = "rng"

    def __init__(self, world: World) -> None:
        self.world = world

    def values(self) -> Iterator[Value]:
        yield "rng", True, {"rank": self.world.rank, "state": capture()}, "rng"

    def restore(self, source: Source) -> None:
        kept = source.blob("rng")
        if kept is None:
            return
        if kept["rank"] == self.world.rank:
            apply(kept["state"])
        else:
            seed_new_rank(kept["state"], self.world.rank, self.world.size)
