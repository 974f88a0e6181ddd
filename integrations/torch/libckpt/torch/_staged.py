"""A copy of a state dict in host memory that is kept for the next one."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from .. import _core
from .._errors import NotExpressible
from ._tensors import is_dtensor, local_of, placed_like

_Key = Tuple[int, Tuple[int, ...], Tuple[int, ...], torch.dtype]


class Stager:
    """Memory is taken by place in the tree, shape and dtype; tensors that share memory are copied once."""

    def __init__(self) -> None:
        self._kept: Dict[str, torch.Tensor] = {}
        self._used: Dict[str, torch.Tensor] = {}
        self._seen: Dict[_Key, torch.Tensor] = {}
        self._copies: List[Tuple[int, int, int]] = []
        self._devices: Dict[torch.device, None] = {}

    def stage(self, state_dict: Dict[str, Any]) -> Dict[str, Any]:
        self._used, self._seen, self._copies, self._devices = {}, {}, [], {}
        staged = self._stage("", state_dict)
        _core.copy_memory(self._copies)
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        self._kept, self._used, self._seen, self._copies = self._used, {}, {}, []
        assert isinstance(staged, dict)
        return staged

    def close(self) -> None:
        """Gives the memory back."""
        self._kept = {}

    def _stage(self, where: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(where, value)
        if type(value).__name__ == "ShardedTensor":
            raise NotExpressible(where, "a ShardedTensor", "use FSDP2 (fully_shard), whose state are DTensors")
        if isinstance(value, dict):
            return {key: self._stage(f"{where}[{key!r}]", item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._stage(f"{where}[{i}]", item) for i, item in enumerate(value))
        return _copied(value)

    def _tensor(self, where: str, tensor: torch.Tensor) -> torch.Tensor:
        local = local_of(tensor).detach()
        copy = self._copy(where, local)
        if not is_dtensor(tensor):
            return copy
        return placed_like(tensor, copy)

    def _copy(self, where: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "meta":
            raise NotExpressible(where, "a tensor on the meta device", "give it memory first")
        key = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        if tensor.numel() and key in self._seen:
            return self._seen[key]
        copy = self._memory(where, tensor)
        if tensor.device.type == "cpu" and copy.stride() == tensor.stride():
            if tensor.numel():
                self._copies.append((copy.data_ptr(), tensor.data_ptr(), tensor.numel() * tensor.element_size()))
        else:
            copy.copy_(tensor, non_blocking=True)
            self._devices[tensor.device] = None
        if tensor.numel():
            self._seen[key] = copy
        return copy

    def _memory(self, where: str, tensor: torch.Tensor) -> torch.Tensor:
        kept = self._kept.get(where)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty_like(tensor, device="cpu", memory_format=torch.preserve_format, requires_grad=False,
                                    pin_memory=tensor.device.type == "cuda")
        self._used[where] = kept
        return kept


def _copied(value: Any) -> Any:
    """What is no tensor may change, too."""
    if isinstance(value, (int, float, str, bytes, bool, complex, type(None))):
        return value
    import copy

    return copy.deepcopy(value)
