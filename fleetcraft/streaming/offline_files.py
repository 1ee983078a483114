"""Reads back from W&B's own offline files which rows they hold.

A file is a header of 7 bytes and blocks of 32 KiB, in which records lie in fragments, each with a
checksum, length and type; a record is a protobuf message.
Source: the log format of LevelDB (github.com/google/leveldb, doc/log_format.md), and wandb 0.31.
Invariant: a file that was cut short, as by a kill, gives the records before the cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_HEADER_BYTES = 7
_MAGIC = b":W&B"
_BLOCK_BYTES = 1 << 15
_FRAGMENT = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


def rows_held(folder: str, run_id: str, *, newest: bool = False) -> int:
    """One more than the highest number of a row that offline files hold of a run; 0 for none.

    A file counts up to its first missing number.

    Args:
        folder: What was given to W&B as its folder.
        run_id: The run.
        newest: Look at the newest file alone.

    Raises:
        OSError: A file cannot be read.
        ImportError: This wandb has no such messages.
    """
    pattern = f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"
    paths = sorted(Path(folder).glob(pattern))  # their names begin with the time
    return max((_rows_of_file(path) for path in (paths[-1:] if newest else paths)), default=0)


def _rows_of_file(path: Path) -> int:
    # Made by protobuf when it is loaded, so it has no types.
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    most = 0
    for data in records(path):
        record = messages.Record()
        try:
            record.ParseFromString(data)
        except Exception:  # protobuf has errors of its own; what cannot be read is no row
            continue
        if record.WhichOneof("record_type") == "history":
            number = int(record.history.step.num)
            if most and number > most:
                break
            most = max(most, number + 1)
    return most


def records(path: Path) -> Iterator[bytes]:
    """The records of one file as they are, up to its end or the first damage."""
    with path.open("rb") as file:
        if not file.read(_HEADER_BYTES).startswith(_MAGIC):
            return
        offset, parts = _HEADER_BYTES, b""
        while True:
            if (left := _BLOCK_BYTES - offset % _BLOCK_BYTES) < _FRAGMENT.size:
                offset += len(file.read(left))
                continue
            head = file.read(_FRAGMENT.size)
            if len(head) < _FRAGMENT.size:
                return
            _, length, kind = _FRAGMENT.unpack(head)
            data = file.read(length)
            offset += _FRAGMENT.size + len(data)
            if kind == 0 or len(data) < length:
                return
            parts = data if kind in (_FULL, _FIRST) else parts + data
            if kind in (_FULL, _LAST):
                yield parts
