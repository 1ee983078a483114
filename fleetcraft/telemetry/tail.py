"""The newest row of each GPU in the telemetry files of running jobs, looked at once.

Reads the end of a few files, bounded; windows and sums are not for here, and who looks again and
again uses `live`. Invariant: nothing but a private regular file of this user is read, and each row
that was passed over is counted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping

import msgspec

from fleetcraft.gpu.states import Sightings, number
from fleetcraft.layout import parse_telemetry_file, sidecar
from fleetcraft.telemetry.live.newest import NewestRows
from fleetcraft.telemetry.live.private_files import (
    now_on_mount_s,
    open_file,
    open_folder,
    read_small,
)

HEAD_BYTES = 4096
TAIL_BYTES = 1 << 16
_SIDECAR_BYTES = 1 << 18
FILES_PER_PLACE = 3  # a logger that has just begun anew has a header and no row yet

Place = tuple[str, str]
"""Job id and node."""


class Tail(msgspec.Struct, kw_only=True):
    """What was read.

    Attributes:
        places: What was seen, by job and node; a place that was asked for is always there.
        files: Files that were read.
        rows_rejected: Torn and damaged rows that were passed over.
        refused: Files and folders that were not read, each with the reason.
    """

    places: dict[Place, Sightings]
    files: int = 0
    rows_rejected: int = 0
    refused: list[str] = msgspec.field(default_factory=list)


def read_tails(folder: str, wanted: Iterable[Place]) -> Tail:
    """The newest row of each GPU of some jobs on some nodes.

    Costs a listing of the folder, and for each place the ends of one file, at most three, and of
    its sidecar. How old a row is: see `NewestRows.readings`.

    Args:
        folder: Where the files are.
        wanted: Jobs and nodes.
    """
    tail = Tail(places={place: Sightings(reason="no telemetry file") for place in wanted})
    if not tail.places:
        return tail
    try:
        folder_fd = open_folder(folder)
    except FileNotFoundError:
        return tail
    except OSError as error:
        return _without(tail, f"{folder}: {error.strerror}")
    try:
        now_s = now_on_mount_s(folder)
        for place, names in newest_first(os.listdir(folder_fd)).items():
            if place in tail.places:
                tail.places[place] = _look(tail, folder_fd, names, now_s)
    except OSError as error:
        return _without(tail, f"{folder}: {error.strerror}")
    finally:
        os.close(folder_fd)
    return tail


def _without(tail: Tail, why: str) -> Tail:
    tail.refused.append(why)
    tail.places = {place: Sightings(reason=f"telemetry not read: {why}") for place in tail.places}
    return tail


def newest_first(names: Iterable[str]) -> dict[Place, list[str]]:
    """The telemetry files of each place among some file names, the newest first."""
    found: dict[Place, list[tuple[str, str]]] = {}
    for name in names:
        if parsed := parse_telemetry_file(name):
            found.setdefault((parsed.job, parsed.node), []).append((parsed.started, name))
    return {place: [n for _, n in sorted(two, reverse=True)] for place, two in found.items()}


def last_written_first(folder_fd: int, names: list[str]) -> list[str]:
    """The newest files of one place, the one that was last written first.

    Their names tell when their loggers began by the clocks of the time; where a clock was set back,
    the file that is being written is not the one with the last name.
    """
    some = names[:FILES_PER_PLACE]
    if len(some) < 2:
        return some
    return sorted(some, key=lambda name: -_written_s(folder_fd, name))


def _written_s(folder_fd: int, name: str) -> float:
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mtime
    except OSError:  # told where it is opened
        return math.inf


def _look(tail: Tail, folder_fd: int, names: list[str], now_s: float) -> Sightings:
    reason = ""
    for name in last_written_first(folder_fd, names):
        try:
            rows, file_age_s = _read(folder_fd, name, now_s)
        except OSError as error:
            reason = f"{name}: {error.strerror}"
            tail.refused.append(reason)
            continue
        tail.files += 1
        tail.rows_rejected += rows.rejected + rows.waiting  # this is all that will come of it
        if not rows.is_empty:
            said = sidecar_value(folder_fd, name).get("interval_s")
            found, none_why = rows.readings(
                interval_s=number(said) or rows.interval_s(),
                file_age_s=file_age_s,
                now_s=time.time(),
            )
            return Sightings(gpus=tuple(one.seen for one in found), reason=none_why)
        reason = reason or f"{name} has no row yet"
    return Sightings(reason=reason)


def _read(folder_fd: int, name: str, now_s: float) -> tuple[NewestRows, float]:
    """The rows at the end of one file, and its age.

    Raises:
        OSError: Not there, a symbolic link, or somebody else's.
    """
    fd, facts = open_file(folder_fd, name)
    try:
        return read_end(fd, facts.st_size)[0], now_s - facts.st_mtime
    finally:
        os.close(fd)


def read_end(fd: int, size_bytes: int, most_bytes: int = TAIL_BYTES) -> tuple[NewestRows, int]:
    """Reads the end of a file.

    Returns:
        What was found, and the place behind the last byte that was read.

    Raises:
        OSError: It cannot be read.
    """
    start = max(0, size_bytes - most_bytes)
    header = os.pread(fd, HEAD_BYTES, 0).partition(b"\n")[0] if start else None
    rows = NewestRows(header)
    end = os.pread(fd, size_bytes - start, start)
    rows.feed(end)
    return rows, start + len(end)


def sidecar_value(folder_fd: int, name: str) -> Mapping[str, object]:
    """What the sidecar of a file says; nothing if there is none that can be read."""
    try:
        text = read_small(folder_fd, sidecar(name), _SIDECAR_BYTES)
        return msgspec.json.decode(text, type=dict[str, object])
    except (OSError, msgspec.DecodeError, RecursionError):
        return {}
