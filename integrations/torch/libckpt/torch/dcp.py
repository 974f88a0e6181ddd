"""A storage back end and a stager for torch.distributed.checkpoint: the same calls, this library's format, digests and
commit.

    import torch.distributed.checkpoint as dcp
    from libckpt.torch.dcp import Reader, Stager, Writer

    dcp.save(state, storage_writer=Writer("ckpts/step-100"))
    dcp.load(state, storage_reader=Reader("ckpts/step-100"))
    dcp.async_save(state, storage_writer=Writer("ckpts/step-200"), async_stager=stager)    # stager = Stager(), kept

A directory is a job's store with one or more checkpoints in it; the newest is read. Saving into one again leaves the older
checkpoint readable until, and after, the new one is committed.

What DCP's planner turns into bytes (whatever is no tensor) is pickled by it, and unpickled when it loads.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import uuid
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from .. import _core, values
from .._errors import Error, NotExpressible
from . import _dist
from ._staged import Stager as _Stager
from ._tensors import DTYPE_OF, NUMBER_OF, SHARDED, UNSHARDED, check

__all__ = ["Reader", "Stager", "Writer"]

_Path = Union[str, "os.PathLike[str]"]
_META = "libckpt.dcp"
_FORMAT = 1
_DURABLE = 3


class Writer(StorageWriter):
    """Writes one checkpoint; durable when the save returns, or its future is done.

    path: the directory; `checkpoint_id=` of dcp.save goes before it.
    step: the number it is named by.
    process_group: the ranks that save together; it must be able to gather host memory (gloo). None: a group of all
        ranks is made here, so every rank makes its Writer at the same point.
    """

    def __init__(self, path: Optional[_Path] = None, *, step: int = 0, process_group: Any = None) -> None:
        super().__init__()
        self.path = _text(path)
        self.step = step
        world = _dist.rank_and_world()[1] if _dist.initialized() else 1
        self._group = _dist.Group(process_group) if process_group is not None else _dist.make_group(world)
        self._alone = self._group is None
        self._coordinator = True

    def reset(self, checkpoint_id: Optional[_Path] = None) -> None:
        if checkpoint_id is not None:
            self.path = _text(checkpoint_id)
        self._alone = self._group is None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise Error("use_collectives=False makes one checkpoint for each rank, which this back end does not write; "
                        "leave it out", "UNIMPLEMENTED")
        self._coordinator = is_coordinator

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        self._alone = len(plans) == 1  # also with no_dist among several
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        group = None if self._alone else self._group
        described: Optional[_Described] = None
        problem = ""
        try:
            described = _Described(plan, planner)
        except Exception as error:
            if group is None:
                raise
            problem = f"{type(error).__name__}: {error}"
        notes = _agree(group, problem, {} if described is None else described.notes)
        assert described is not None
        described.state.add_value(_META, False, values.dumps(notes))
        self._save(described.state, group)
        future: "Future[List[WriteResult]]" = Future()
        future.set_result([WriteResult(index=item.index, size_in_bytes=size, storage_data=None)
                           for item, size in zip(plan.items, described.sizes)])
        return future

    def _save(self, state: _core.State, group: Optional[_dist.Group]) -> None:
        if not self.path:
            raise Error("where to? Writer(path) or checkpoint_id=", "INVALID_ARGUMENT")
        session = _core.Session(
            store=self.path,
            rank=0 if group is None else group.rank,
            world_size=1 if group is None else group.size,
            allgather=None if group is None else group.allgather,
            alone=True,
        )
        try:
            session.track(state)
            session.step(self.step)
            session.save(self.step).wait(_DURABLE)
        except BaseException:
            if group is None:
                with contextlib.suppress(Error):
                    session.close(0.0)
            session.abandon()  # several close together, and the others may not come
            raise
        session.close()

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        """Nothing is left to do: the checkpoint is committed, and says itself what it holds."""

    def storage_meta(self) -> Optional[StorageMeta]:
        return StorageMeta(checkpoint_id=self.path, save_id=str(uuid.uuid4()))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return _is_directory_name(checkpoint_id)


class _Described:
    """What this rank writes, as the library's state. Keeps alive what it points to."""

    def __init__(self, plan: SavePlan, planner: SavePlanner) -> None:
        self.state = _core.State()
        self.sizes: List[int] = []
        self._kept: List[torch.Tensor] = []
        names: Dict[str, Any] = {}
        blobs: List[str] = []
        for item in plan.items:
            name = item.index.fqn
            if name in names:
                raise NotExpressible(name, "a tensor of which this rank holds two parts",
                                     "save it as a DTensor, or under two names")
            names[name] = item
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                blobs.append(name)
                self._add_bytes(name, data)
            else:
                self._add_tensor(item, data)
        mappings = getattr(plan, "planner_data", None) or {}
        self.notes = {
            "bytes": sorted(blobs),
            "paths": {name: list(path) for name, path in mappings.items()},
        }

    def _add_bytes(self, name: str, data: Any) -> None:
        raw = data.getvalue()
        memory = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
        self._keep(memory)
        shape = [memory.numel()]
        self.state.add_tensor(name, NUMBER_OF[torch.uint8], UNSHARDED, shape, None, None, None, memory.data_ptr())

    def _add_tensor(self, item: WriteItem, data: Any) -> None:
        tensor = check(data.detach(), item.index.fqn)
        if tensor.device.type != "cpu" or 0 in tensor.stride():
            tensor = tensor.cpu().contiguous()
        self._keep(tensor)
        wanted = item.tensor_data
        assert wanted is not None
        self.state.add_tensor(
            item.index.fqn, NUMBER_OF[tensor.dtype], SHARDED, list(wanted.size), list(wanted.chunk.sizes),
            list(wanted.chunk.offsets), list(tensor.stride()), tensor.data_ptr(),
        )

    def _keep(self, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)
        self.sizes.append(tensor.numel() * tensor.element_size())


def _agree(group: Optional[_dist.Group], problem: str, notes: Dict[str, Any]) -> Dict[str, Any]:
    """The notes of all ranks as one; an Error on all of them if one of them cannot save."""
    lines = [values.dumps([problem, notes]).encode()]
    if group is not None:
        lines = group.gather_lines(lines[0])
    merged: Dict[str, Any] = {"format": _FORMAT, "bytes": [], "paths": {}}
    for rank, line in enumerate(lines):
        trouble, theirs = values.loads(line.decode())
        if trouble:
            raise Error(f"rank {rank} cannot save its part: {trouble}", "ABORTED")
        merged["bytes"] = sorted(set(merged["bytes"]) | set(theirs["bytes"]))
        merged["paths"].update(theirs["paths"])
    return merged


class Reader(StorageReader):
    """Reads what a Writer, or a run of libckpt.torch, has saved; every byte is checked. Claims nothing: a job that writes
    elsewhere is not disturbed.

    path: a job's directory, of which the newest checkpoint is read, or one checkpoint's.
    selector: "step:N" or a name, for another one than the newest.
    """

    def __init__(self, path: Optional[_Path] = None, *, selector: str = "") -> None:
        super().__init__()
        self.path = _text(path)
        self._selector = selector
        self._reader: Optional[_core.Reader] = None
        self._tensors: Dict[str, Tuple[torch.dtype, List[int]]] = {}

    def reset(self, checkpoint_id: Optional[_Path] = None) -> None:
        if checkpoint_id is not None and _text(checkpoint_id) != self.path:
            self.path = _text(checkpoint_id)
            self._reader = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if not self.path:
            raise Error("where from? Reader(path) or checkpoint_id=", "INVALID_ARGUMENT")
        self._reader = _core.open_path(self.path, self._selector)
        text = self._reader.value(_META)
        notes: Dict[str, Any] = {"format": _FORMAT, "bytes": [], "paths": {}} if text is None else values.loads(text)
        if notes["format"] > _FORMAT:
            raise Error(f"{self.path} was written by a newer release (format {notes['format']} of the DCP back end)",
                        "UNIMPLEMENTED")
        blobs = set(notes["bytes"])
        found: Dict[str, Any] = {}
        for tensor in json.loads(self._reader.contents())["tensors"]:
            if "rank" in tensor or tensor["dtype"] not in DTYPE_OF:
                continue  # one of each rank's own, or of a dtype that torch has not
            name, shape = tensor["name"], torch.Size(tensor["shape"])
            self._tensors[name] = (DTYPE_OF[tensor["dtype"]], list(shape))
            whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=shape)
            found[name] = BytesStorageMetadata() if name in blobs else TensorStorageMetadata(
                properties=TensorProperties(dtype=DTYPE_OF[tensor["dtype"]]), size=shape, chunks=[whole])
        return Metadata(state_dict_metadata=found,
                        planner_data={name: tuple(path) for name, path in notes["paths"].items()},
                        storage_meta=StorageMeta(checkpoint_id=self.path, load_id=str(uuid.uuid4())))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._reader is None:
            self.read_metadata()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        waiting = list(plan.items)
        while waiting:  # a name once in a turn
            turn: Dict[str, ReadItem] = {}
            later: List[ReadItem] = []
            for item in waiting:
                if turn.setdefault(item.storage_index.fqn, item) is not item:
                    later.append(item)
            self._read(list(turn.values()), planner)
            waiting = later
        future: "Future[None]" = Future()
        future.set_result(None)
        return future

    def _read(self, items: List[ReadItem], planner: LoadPlanner) -> None:
        assert self._reader is not None
        state = _core.State()
        targets: List[Tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        for item in items:
            if item.type == LoadItemType.BYTE_IO:
                target = memory = torch.empty(self._tensors[item.storage_index.fqn][1], dtype=torch.uint8)
                self._want(state, item.storage_index.fqn, memory, list(memory.shape), [0])
            else:
                target = planner.resolve_tensor(item).detach()
                memory = self._memory_for(item, target)
                self._want(state, item.storage_index.fqn, memory, list(item.lengths), list(item.storage_offsets))
            targets.append((item, target, memory))
        self._reader.load_part(state)
        for item, target, memory in targets:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(_dist.host_bytes(memory)))
                continue
            if memory is not target:
                target.copy_(memory)
            planner.commit_tensor(item, target)

    def _memory_for(self, item: ReadItem, target: torch.Tensor) -> torch.Tensor:
        """The target itself where the library can fill it; else host memory of the stored dtype."""
        dtype = self._tensors[item.storage_index.fqn][0]
        if tuple(target.shape) != tuple(item.lengths):
            raise Error(f"{item.storage_index.fqn}: the planner gave a tensor of shape {tuple(target.shape)} for a part of "
                        f"shape {tuple(item.lengths)}", "INVALID_ARGUMENT")
        if target.dtype == dtype and target.device.type == "cpu" and 0 not in target.stride():
            return target
        return torch.empty(target.shape, dtype=dtype)

    def _want(self, state: _core.State, name: str, memory: torch.Tensor, shape: List[int], offset: List[int]) -> None:
        dtype, whole = self._tensors[name]
        state.add_tensor(name, NUMBER_OF[dtype], SHARDED, whole, shape, offset, list(memory.stride()), memory.data_ptr())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: _Path) -> bool:
        return _is_directory_name(checkpoint_id)


class Stager(_Stager, AsyncStager):
    """Copies the state into host memory that is kept for the next time, with threads of its own: async_save returns when
    the copy is made, and training may go on. Keep one Stager and give it to every async_save; one save at a time."""

    _synchronize_after_execute = False

    def synchronize_staging(self) -> None:
        """It is complete when stage() returns."""


def _text(path: Optional[_Path]) -> str:
    return "" if path is None else os.fspath(path)


def _is_directory_name(checkpoint_id: Any) -> bool:
    return isinstance(checkpoint_id, (str, os.PathLike)) and "://" not in os.fspath(checkpoint_id)
