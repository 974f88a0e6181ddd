"""The tensors of a directory that torch.distributed.checkpoint has written. Its .metadata is a pickle: of the names in it only
those are looked up that describe tensors, so that it cannot run anything; the tensors are read with weights_only=True."""

from __future__ import annotations

import pickle
from typing import Any, Dict

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from .._errors import Error

_DESCRIPTIONS = {
    "torch.distributed.checkpoint.metadata": ("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata",
                                              "ChunkStorageMetadata", "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath", "PurePosixPath"),
    "collections": ("OrderedDict",),
}


class _Descriptions(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _DESCRIPTIONS.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
            metadata = _Descriptions(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"it holds a {type(metadata).__name__}")
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        return metadata


def read(folder: str) -> Dict[str, torch.Tensor]:
    """All tensors by their names, flattened as DCP does; whatever else it holds stays where it is."""
    reader = _Reader(folder)
    try:
        described = reader.read_metadata().state_dict_metadata
    except (pickle.UnpicklingError, AttributeError, EOFError, OSError) as error:
        raise Error(f"{folder}/.metadata is no description of tensors that torch.distributed.checkpoint writes: {error}; nothing "
                    "else is unpickled", "INVALID_ARGUMENT") from error
    tensors = {name: torch.empty(about.size, dtype=about.properties.dtype) for name, about in described.items()
               if isinstance(about, TensorStorageMetadata)}
    state: Dict[str, Any] = dict(tensors)
    load(state, storage_reader=reader, no_dist=True)
    return tensors
