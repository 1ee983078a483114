"""Sharded state through torch.distributed.checkpoint, inside a save of ours.

That library writes the shards and a ``.metadata`` that is a pickle; its commit has neither sizes
nor hashes, so ours comes after it and has both. Invariant: the pickle is read only through a list
of the classes that it is made of, and every other value with ``weights_only=True``.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fleetcraft.errors import UsageError
from fleetcraft.layout.checkpoints import SHARED
from fleetcraft.training.checkpoint.records import CheckpointError, Level, Manifest, Part
from fleetcraft.training.checkpoint.saving import Saving
from fleetcraft.training.checkpoint.store import CheckpointStore

_METADATA = ".metadata"
_TOP = ("torch.distributed.checkpoint.metadata", "Metadata")
_SAFE = frozenset(
    {
        ("torch", "Size"),
        ("torch", "device"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib._local", "PosixPath"),
        ("pathlib._local", "PurePosixPath"),
        ("collections", "OrderedDict"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex",
                "StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
            )
        ),
    }
)  # fmt: skip
"""What a ``.metadata`` is made of, besides torch's data types; none runs anything when built.

Source: torch 2.13, distributed/checkpoint/metadata.py and filesystem.py.
"""


def save_distributed(
    saving: Saving,
    state: dict[str, Any],
    *,
    parts: tuple[Part, ...] = (Part.WEIGHTS, Part.OPTIMIZER),
    name: str = "dcp",
) -> None:
    """Saves a sharded state dict; every rank calls this, as with ``dcp.save``.

    It returns on rank 0 when all ranks have written; each rank then declares its own files, and
    rank 0 the metadata. Random numbers, sampler and the like are saved beside it by
    `torch_state.save_state`.

    Args:
        saving: From `CheckpointStore.save`.
        state: What ``torch.distributed.checkpoint.save`` takes.
        parts: What is in it.
        name: Of the folder; two states of one save differ in it.

    Raises:
        OSError: A file cannot be written.
        CheckpointException: As ``dcp.save`` raises it.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    folder = saving.shared(name)
    with _one_process_is_meant(saving.world_size):
        save(state, checkpoint_id=folder)
    mine = [
        file
        for file in sorted(saving.store.fs.listdir(folder))
        if file.startswith(f"__{saving.rank}_") or (saving.rank == 0 and file == _METADATA)
    ]
    for part in parts:
        if mine:
            saving.part(part, *(f"{name}/{file}" for file in mine), shared=True)


def load_distributed(
    store: CheckpointStore,
    manifest: Manifest,
    state: dict[str, Any],
    *,
    name: str = "dcp",
    level: Level = Level.HASHES,
) -> None:
    """Verifies the shards that this module saved and loads them into a state dict, in place.

    The number of ranks may differ from that of the save: the library reshards.

    Args:
        store: The folder of checkpoints.
        manifest: The checkpoint.
        state: Tensors to be filled, as ``torch.distributed.checkpoint.load`` takes it.
        name: As it was saved.
        level: MARKER, SIZES or HASHES; verified by every rank that calls, which for large models
            is dear: verify on one rank, and give SIZES to the others.

    Raises:
        CheckpointError: It does not hold, its metadata names what is on no list, or a value of it
            is no plain data.
        OSError: A file cannot be read.
    """
    verdict = store.verify(manifest, level)
    if not verdict.answer:
        raise CheckpointError(
            f"step {manifest.step} does not hold up to {level.value}: "
            f"{'; '.join(verdict.reasons)}; nothing was loaded",
            hint="take an older checkpoint",
            step=manifest.step,
            folder=manifest.folder,
        )
    folder = f"{manifest.folder}/{SHARED}/{name}"
    if not any(file.path == f"{SHARED}/{name}/{_METADATA}" for file in manifest.files):
        raise UsageError(f"step {manifest.step} has no sharded state called {name!r}")
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        _load(folder, state)
    except CheckpointException as error:  # no Exception in torch, so nobody's handler would see it
        causes = sorted({str(cause[0]).partition("\n")[0] for cause in error.failures.values()})
        raise CheckpointError(
            f"step {manifest.step} cannot be loaded: {'; '.join(causes)}; "
            "the state that was given is partly filled",
            step=manifest.step,
            folder=manifest.folder,
        ) from error


def read_metadata(path: str) -> Any:
    """Reads a ``.metadata`` by its list of classes.

    Raises:
        CheckpointError: It is none, or names what is not on the list.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        try:
            found = _Metadata(file).load()
            if (type(found).__module__, type(found).__name__) != _TOP:
                raise ValueError(f"it is a {type(found).__name__}")
        except OSError:
            raise
        except Exception as error:  # of other bytes, a reader of pickles raises anything
            why = str(error) or type(error).__name__
            raise CheckpointError(
                f"{path} is no metadata of torch.distributed.checkpoint: {why}; nothing was loaded",
                path=path,
            ) from error
    return found


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if (module, name) in _SAFE:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not on the list")


def _load(folder: str, state: dict[str, Any]) -> None:
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import StorageMeta
    from torch.distributed.checkpoint.state_dict_loader import load

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            metadata = read_metadata(os.path.join(folder, _METADATA))
            if getattr(metadata, "storage_meta", None) is None:
                metadata.storage_meta = StorageMeta()
            metadata.storage_meta.load_id = self.load_id
            return metadata

    class Planner(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            # The library's own planner reads this with weights_only=False.
            thing = torch.load(value, weights_only=True)
            _put(self, read_item.dest_index.fqn, thing)

    with _one_process_is_meant(_world_size()):
        load(state, storage_reader=Reader(folder), planner=Planner())


def _put(planner: Any, name: str, thing: Any) -> None:
    from torch.distributed.checkpoint._traverse import set_element

    if planner.flatten_state_dict:
        set_element(planner.original_state_dict, planner.mappings[name], thing)
    else:
        planner.state_dict[name] = thing


def _world_size() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


@contextmanager
def _one_process_is_meant(world_size: int) -> Iterator[None]:
    with warnings.catch_warnings():
        if world_size == 1:
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
