"""One tensor as the library wants it: dtype, memory, and which box of the whole this rank holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import torch

from .._errors import NotExpressible

UNSHARDED, REPLICATED, SHARDED, PER_RANK = 0, 1, 2, 3

#: torch dtype -> (number in ckpt.h, name in docs/format/v1.md)
_DTYPES = {
    "bool": (1, "BOOL"),
    "uint8": (2, "U8"),
    "int8": (3, "I8"),
    "uint16": (4, "U16"),
    "int16": (5, "I16"),
    "uint32": (6, "U32"),
    "int32": (7, "I32"),
    "uint64": (8, "U64"),
    "int64": (9, "I64"),
    "float16": (10, "F16"),
    "bfloat16": (11, "BF16"),
    "float32": (12, "F32"),
    "float64": (13, "F64"),
    "float8_e4m3fn": (14, "F8_E4M3"),
    "float8_e5m2": (15, "F8_E5M2"),
    "complex64": (16, "C64"),
    "complex128": (17, "C128"),
}
NUMBER_OF = {getattr(torch, k): v[0] for k, v in _DTYPES.items() if hasattr(torch, k)}
NAME_OF = {getattr(torch, k): v[1] for k, v in _DTYPES.items() if hasattr(torch, k)}
DTYPE_OF = {name: dtype for dtype, name in NAME_OF.items()}

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # torch 2.4 keeps it in a private place
    try:
        from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]
    except ImportError:
        DTensor = None  # type: ignore[assignment,misc]


_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass
class Leaf:
    """A tensor under the name that it has in the checkpoint."""

    name: str
    tensor: torch.Tensor
    placement: int
    where: str  # as the user knows it, for messages
    stepped: bool = False  # only the step of a tracked optimizer changes it


@dataclass(frozen=True)
class Layout:
    """What must not change between two saves."""

    dtype: int
    placement: int
    shape: Tuple[int, ...]
    local_shape: Optional[Tuple[int, ...]]
    offset: Optional[Tuple[int, ...]]
    strides: Tuple[int, ...]
    tied_to: Optional[str]


def is_dtensor(tensor: Any) -> bool:
    return DTensor is not None and isinstance(tensor, DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part, sharing its memory."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def placed_like(tensor: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A DTensor with this local part."""
    made: torch.Tensor = DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[attr-defined,no-untyped-call]
    return made


def needs_mirror(local: torch.Tensor) -> bool:
    """The library copies host memory; what lies elsewhere is copied to a (pinned) host mirror first."""
    return local.device.type != "cpu"


def box_of(tensor: torch.Tensor, where: str) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """(local shape, offset) of a DTensor on this rank."""
    placements = tensor.placements  # type: ignore[attr-defined]
    for placement in placements:
        if placement.is_partial():
            raise NotExpressible(where, "a DTensor with partial placement", "redistribute it before it is saved")
    _check_strided(tensor, where)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, placements  # type: ignore[attr-defined]
    )
    local = tuple(local_of(tensor).shape)
    if tuple(shape) != local:
        raise NotExpressible(
            where,
            f"a DTensor whose local part is {local} where its placements say {tuple(shape)}",
            "use the placements that torch's own parallel styles make (Shard, Replicate)",
        )
    if len(offset) != len(local):  # this rank is not in the mesh
        offset = (0,) * len(local)
    return local, tuple(min(int(o), int(g)) for o, g in zip(offset, tensor.shape))


def _check_strided(tensor: torch.Tensor, where: str) -> None:
    """FSDP over tensor parallelism shards one dimension twice; the parts are boxes only if it divides evenly."""
    placements = tensor.placements  # type: ignore[attr-defined]
    if not any(type(p).__name__ == "_StridedShard" for p in placements):
        return
    mesh = tensor.device_mesh.shape  # type: ignore[attr-defined]
    parts: Dict[int, int] = {}
    for size, placement in zip(mesh, placements):
        if placement.is_shard() or type(placement).__name__ == "_StridedShard":
            parts[placement.dim] = parts.get(placement.dim, 1) * size
    for dim, count in parts.items():
        if tensor.shape[dim] % count:
            raise NotExpressible(
                where,
                f"a DTensor of shape {tuple(tensor.shape)} sharded over {count} ranks in dimension {dim}, twice",
                f"make that dimension divisible by {count}",
            )


def check(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """The memory that is tracked for it; refused by name if there is none that the library could read."""
    local = local_of(tensor)
    if local.layout is not torch.strided or local.is_quantized:
        raise NotExpressible(where, f"a tensor of layout {local.layout}", "keep a dense tensor in the state")
    if local.device.type == "meta":
        raise NotExpressible(where, "a tensor on the meta device", "give it memory before ckpt.open")
    if local.dtype not in NUMBER_OF:
        raise NotExpressible(where, f"a tensor of dtype {local.dtype}", "view it as an integer dtype")
    if local.is_conj() or local.is_neg():
        raise NotExpressible(where, "a lazily conjugated or negated view", "resolve_conj() or resolve_neg() it")
    if type(local) not in _PLAIN and "__torch_dispatch__" in vars(type(local)):
        raise NotExpressible(where, local, "track its plain parts (a wrapper has no memory of its own)")
    return local


def layout_of(leaf: Leaf, memory: torch.Tensor, tied_to: Optional[str]) -> Layout:
    number = NUMBER_OF[memory.dtype]
    strides = tuple(memory.stride())
    if is_dtensor(leaf.tensor):
        local_shape, offset = box_of(leaf.tensor, leaf.where)
        return Layout(number, SHARDED, tuple(leaf.tensor.shape), local_shape, offset, strides, tied_to)
    return Layout(number, leaf.placement, tuple(memory.shape), None, None, strides, tied_to)


class Ties:
    """Which of the tensors is another one's memory: the first one is stored, the others say so."""

    def __init__(self) -> None:
        self._first: Dict[Any, str] = {}

    def find(self, name: str, memory: torch.Tensor, layout_key: Tuple[Any, ...]) -> Optional[str]:
        if memory.numel() == 0:
            return None
        key = (memory.data_ptr(), tuple(memory.shape), tuple(memory.stride()), memory.dtype, layout_key)
        first: str = self._first.setdefault(key, name)
        return None if first == name else first


def like(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Zeros with the shape, placement and memory format of `parameter`."""
    return torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False)
