"""The forward calls that tasks have reported, read back from their files.

What they mean over time and GPUs is worked out elsewhere. Invariant: a line that cannot be used is
counted by its reason and never guessed at.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from typing import Any

import msgspec

from fleetcraft.clock import parse_timestamp
from fleetcraft.errors import FleetError
from fleetcraft.gpu.flops import Model, flop_per_forward
from fleetcraft.identity import Owner

_SUFFIX = ".jsonl"
_LONGEST_LINE_BYTES = 1 << 16


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Forward calls that one claim reported together.

    Attributes:
        owner: The claim's owner, as in the file's name.
        at_s: When they had ended, seconds since 1970.
        forwards: How many.
        flop: Model FLOPs of all of them.
        training: Whether a backward belonged to each; None where FLOPs were given outright.
        family: Workload that the line itself names; empty for that of the task.
        gpus: UUIDs that the line itself names.
    """

    owner: Owner
    at_s: float
    forwards: int
    flop: float
    training: bool | None = None
    family: str = ""
    gpus: tuple[str, ...] = ()


class Forwards(msgspec.Struct, kw_only=True):
    """What was read.

    Attributes:
        calls: In the order of the files' names, and of lines in each.
        files: Files that were read.
        rejected: Lines that could not be used, by reason.
        refused: Files that were not read, and why.
    """

    calls: list[Call] = msgspec.field(default_factory=list)
    files: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    refused: list[tuple[str, str]] = msgspec.field(default_factory=list)


class _Line(msgspec.Struct, kw_only=True):
    at: str
    forwards: int = 1
    flop: float | None = None
    active_params: float | None = None
    tokens: float | None = None
    layers: float = 0
    seq: float = 0
    hidden: float = 0
    training: bool = False
    family: str = ""
    gpus: tuple[str, ...] = ()


_decode = msgspec.json.Decoder(_Line).decode


def read_forwards(folder: str) -> Forwards:
    """Every reported call in a folder of forward files.

    A folder that is not there holds none. Costs one read of each file.

    Args:
        folder: See `fleetcraft.layout.forwards_folder`.
    """
    found = Forwards()
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIX))
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        found.refused.append((folder, error.strerror or str(error)))
        return found
    rejected: Counter[str] = Counter()
    for name in names:
        owner = Owner.parse(name.removesuffix(_SUFFIX))
        if owner is None:
            found.refused.append((name, "its name is no owner"))
            continue
        try:
            data = _read(os.path.join(folder, name))
        except OSError as error:
            found.refused.append((name, error.strerror or str(error)))
            continue
        found.files += 1
        _take(found, rejected, owner, data)
    found.rejected = dict(rejected)
    return found


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "not a regular file")
        return file.read()


def _take(found: Forwards, rejected: Counter[str], owner: Owner, data: bytes) -> None:
    *lines, tail = data.split(b"\n")
    if tail:
        rejected["torn_tail"] += 1  # without its newline a line may be half a line
    for line in lines:
        if not line.strip():
            continue
        call = parse_call(owner, line)
        if isinstance(call, str):
            rejected[call] += 1
        else:
            found.calls.append(call)


def parse_call(owner: Owner, line: bytes) -> Call | str:
    """One line as a call, or the reason why it is none."""
    if len(line) > _LONGEST_LINE_BYTES:
        return "too_long"
    try:
        said = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "no_such_object"
    at = parse_timestamp(said.at)
    if at is None or at.tzinfo is None:
        return "bad_time"
    if said.forwards < 1:
        return "bad_forwards"
    flop = _flop(said)
    if flop is None:
        return "no_flop"
    return Call(
        owner=owner,
        at_s=at.timestamp(),
        forwards=said.forwards,
        flop=flop,
        training=None if said.flop is not None else said.training,
        family=said.family,
        gpus=said.gpus,
    )


def _flop(said: _Line) -> float | None:
    if said.flop is not None:
        flop: Any = said.flop
    elif said.active_params is None or said.tokens is None:
        return None
    else:
        try:
            flop = said.forwards * flop_per_forward(
                Model(
                    active_params=said.active_params,
                    tokens=said.tokens,
                    layers=said.layers,
                    seq=said.seq,
                    hidden=said.hidden,
                    training=said.training,
                )
            )
        except (FleetError, OverflowError):
            return None
    return flop if math.isfinite(flop) and flop > 0 else None
