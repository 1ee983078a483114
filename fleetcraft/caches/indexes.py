"""Indexes of sharded weights: which files ``*.index.json`` names, and which of them are not there.

Source: transformers and diffusers write ``{"metadata": ..., "weight_map": {tensor: file}}`` with
files beside the index. Invariant: a name that leads out of the snapshot is never looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from fleetcraft.caches.hub import is_safe

_SUFFIX = ".index.json"
_MOST_BYTES = 64 << 20
# Whole weights, with or without a variant such as fp16; training_args.bin are none.
_WHOLE = re.compile(
    r"((diffusion_)?(pytorch|flax)_model|tf_model|model|adapter_model)(\.[A-Za-z0-9_]+)?"
    r"\.(safetensors|bin|h5|msgpack)"
)


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What one index asks for.

    Attributes:
        path: The index, relative to the snapshot.
        shards: Files that it names, relative to the snapshot.
        missing: Those that are not there; empty if the index is unused.
        unused: None of its shards is there, and other weights lie beside it: a download has left
            this format out.
        fault: Why it cannot be used; empty if it can.
    """

    path: str
    shards: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unused: bool = False
    fault: str = ""


class _Document(msgspec.Struct, frozen=True):
    weight_map: dict[str, str] | None = None


def read_indexes(real: Mapping[str, str], names: AbstractSet[str]) -> tuple[Index, ...]:
    """Reads every index of a snapshot.

    Args:
        real: Paths in the snapshot, and where their bytes are read; those that are there.
        names: Every path of the snapshot, dangling links among them: such a shard is told as a
            dangling link, and not once more as missing.
    """
    found = [
        index
        for path in sorted(real)
        if path.endswith(_SUFFIX) and (index := _read_index(path, real[path], names)) is not None
    ]
    return tuple(_judged(index, found, names) for index in found)


def _read_index(path: str, real: str, names: AbstractSet[str]) -> Index | None:
    """One index; None for a file of that name which is about something else."""
    try:
        with open(real, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            return Index(path=path, fault=f"more than {_MOST_BYTES} bytes, so it was not read")
        weight_map = msgspec.json.decode(data, type=_Document).weight_map
    except OSError as error:
        return Index(path=path, fault=f"it cannot be read: {error.strerror}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Index(path=path, fault=f"it is no index of weights: {error}")
    if weight_map is None:
        return None
    files = sorted(set(weight_map.values()))
    unsafe = [name for name in files if not is_safe(name)]
    if unsafe:
        return Index(path=path, fault=f"it names {unsafe[0]!r}, which leads out of the snapshot")
    folder = os.path.dirname(path)
    shards = tuple(f"{folder}/{name}" if folder else name for name in files)
    return Index(path=path, shards=shards, missing=tuple(s for s in shards if s not in names))


def _judged(index: Index, every: list[Index], names: AbstractSet[str]) -> Index:
    """Drops what is missing of an index whose format a download has left out."""
    if not index.missing or len(index.missing) < len(index.shards):
        return index
    folder = os.path.dirname(index.path)
    other_index = any(
        other.shards and not other.missing and os.path.dirname(other.path) == folder
        for other in every
    )
    whole_file = any(
        os.path.dirname(name) == folder and _WHOLE.fullmatch(os.path.basename(name))
        for name in names
    )
    if other_index or whole_file:
        return msgspec.structs.replace(index, missing=(), unused=True)
    return index
