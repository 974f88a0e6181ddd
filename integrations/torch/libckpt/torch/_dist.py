"""The ranks among themselves: a gloo group of our own, so that nothing of ours meets the training's collectives."""

from __future__ import annotations

import datetime
import os
import signal
from typing import Any, List, Optional, Tuple

import torch

_TIMEOUT = datetime.timedelta(minutes=10)


def initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def rank_and_world() -> Tuple[int, int]:
    """From torch.distributed if it is up, else from the launcher's environment."""
    if initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Group:
    """All ranks. Its collectives run on the loop's thread, at the same points on every rank."""

    def __init__(self, group: Any = None) -> None:
        """`group`: one that can gather host memory; None makes one of all ranks."""
        self._group = torch.distributed.new_group(backend="gloo", timeout=_TIMEOUT) if group is None else group
        self.size = torch.distributed.get_world_size(self._group)
        self.rank = torch.distributed.get_rank(self._group)

    def allgather(self, data: bytes, deadline_ns: int = 0) -> bytes:
        if not data:
            return b""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everyone = torch.empty(self.size * len(data), dtype=torch.uint8)
        parts: List[torch.Tensor] = list(everyone.chunk(self.size))
        torch.distributed.all_gather(parts, mine, group=self._group)
        return host_bytes(everyone)

    def any(self, mine: bool) -> bool:
        return any(self.allgather(b"\1" if mine else b"\0"))

    def gather_lines(self, line: bytes) -> List[bytes]:
        """Bytes of any length from every rank."""
        sizes = self.allgather(len(line).to_bytes(8, "little"))
        lengths = [int.from_bytes(sizes[i : i + 8], "little") for i in range(0, len(sizes), 8)]
        room = max(lengths)
        if room == 0:
            return [b""] * self.size
        packed = self.allgather(line.ljust(room, b"\0"))
        return [packed[i * room : i * room + lengths[i]] for i in range(self.size)]


def host_bytes(tensor: torch.Tensor) -> bytes:
    import ctypes

    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def make_group(world: int) -> Optional[Group]:
    return Group() if world > 1 and initialized() else None


def leave() -> None:
    """Takes the process groups down; the process ends after this."""
    if initialized():
        torch.distributed.destroy_process_group()


def end_torchrun() -> None:
    """A torchrun that may restart would start the suspended ranks at once: its first rank here tells it to end."""
    restarts, begun = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ.get("LOCAL_RANK") != "0" or begun == restarts:
        return
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/cmdline", "rb") as file:
            command = file.read()
        if b"torchrun" in command or b"torch.distributed" in command:
            os.kill(parent, signal.SIGTERM)
    except OSError:
        pass  # it has ended, or is somebody else's
