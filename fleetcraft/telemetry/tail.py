"""The newest row of each GPU in the telemetry files of running jobs, and no more than that.

Reads the end of a few files, bounded; windows and sums are not for here. Invariant: nothing but a
private regular file of this user is read, and each row that was passed over is counted.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

import msgspec

from fleetcraft.gpu.states import Sighting, Sightings, number
from fleetcraft.layout import parse_telemetry_file

_HEAD_BYTES = 4096
_TAIL_BYTES = 1 << 16
_FILES_PER_PLACE = 3  # a logger that has just begun anew has a header and no row yet
_DEFAULT_INTERVAL_S = 30.0  # of the logger
_STEPS_THAT_TELL = 3  # one or two may be gaps
_ZONELESS = "%Y/%m/%d %H:%M:%S.%f"
_DEVICE = ("mig_uuid", "gpu_uuid", "gpu_index", "pci_bus_id")

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


class _Row(msgspec.Struct, frozen=True):
    at: datetime
    has_zone: bool
    cells: Mapping[str, str]


def read_tails(folder: str, wanted: Iterable[Place]) -> Tail:
    """The newest row of each GPU of some jobs on some nodes.

    Costs a listing of the folder, and for each place the ends of one file, at most three, and of
    its sidecar. A row's age is the larger of two: its file's, by the clock of the file system, and
    its own, by the clock of this host; a wrong clock can make a GPU silent but never fresh.

    Args:
        folder: Where the files are.
        wanted: Jobs and nodes.
    """
    tail = Tail(places={place: Sightings(reason="no telemetry file") for place in wanted})
    if not tail.places:
        return tail
    try:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return tail
    except OSError as error:
        return _without(tail, f"{folder}: {error.strerror}")
    try:
        if problem := _problem(os.fstat(folder_fd)):
            return _without(tail, f"{folder}: {problem}")
        now_s = _now_on_mount_s(folder)
        for place, names in _newest_first(os.listdir(folder_fd), tail.places).items():
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


def _newest_first(names: Iterable[str], places: Mapping[Place, object]) -> dict[Place, list[str]]:
    found: dict[Place, list[tuple[str, str]]] = {}
    for name in names:
        parsed = parse_telemetry_file(name)
        if parsed and (place := (parsed.job, parsed.node)) in places:
            found.setdefault(place, []).append((parsed.started, name))
    return {place: [n for _, n in sorted(two, reverse=True)] for place, two in found.items()}


def _look(tail: Tail, folder_fd: int, names: list[str], now_s: float) -> Sightings:
    reason = ""
    for name in names[:_FILES_PER_PLACE]:
        try:
            head, end, facts = _read(folder_fd, name)
        except OSError as error:
            reason = f"{name}: {error.strerror}"
            tail.refused.append(reason)
            continue
        tail.files += 1
        rows = _rows(tail, head, end)
        if rows:
            interval_s = _interval_s(folder_fd, name, rows)
            return _sightings(rows, interval_s, now_s, file_age_s=now_s - facts.st_mtime)
        reason = reason or f"{name} has no row yet"
    return Sightings(reason=reason)


# ------------------------------------------------------------------------------------ reading


def _read(folder_fd: int, name: str) -> tuple[bytes, bytes, os.stat_result]:
    """The beginning and the end of one file.

    Raises:
        OSError: Not there, a symbolic link, or somebody else's.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(name, flags, dir_fd=folder_fd)
    try:
        facts = os.fstat(fd)
        problem = "not a regular file" if not stat.S_ISREG(facts.st_mode) else _problem(facts)
        if problem:
            raise OSError(0, problem)
        head = os.pread(fd, _HEAD_BYTES, 0)
        return head, os.pread(fd, _TAIL_BYTES, max(0, facts.st_size - _TAIL_BYTES)), facts
    finally:
        os.close(fd)


def _problem(facts: os.stat_result) -> str:
    if facts.st_uid != os.geteuid():
        return f"belongs to user {facts.st_uid}"
    return "others can write it" if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _now_on_mount_s(folder: str) -> float:
    """The time by the clock that dates the files there.

    Raises:
        OSError: Nothing can be made there. This host's own clock may be behind, and would make old
            rows fresh.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\n")
        file.flush()
        return os.fstat(file.fileno()).st_mtime


def _interval_s(folder_fd: int, name: str, rows: list[_Row]) -> float:
    """Seconds between rows: what the sidecar says, else what the rows show."""
    try:
        _, text, _ = _read(folder_fd, name.removesuffix(".csv") + ".json")
        said = msgspec.json.decode(text, type=dict[str, object]).get("interval_s")
    except (OSError, msgspec.DecodeError):
        said = None
    if isinstance(said, int | float) and math.isfinite(said) and said > 0:
        return float(said)
    times = sorted({row.at for row in rows})
    # GPUs of one sample may be milliseconds apart.
    steps = [step for a, b in pairwise(times) if (step := (b - a).total_seconds()) >= 1]
    return median(steps) if len(steps) >= _STEPS_THAT_TELL else _DEFAULT_INTERVAL_S


# ------------------------------------------------------------------------------------- parsing


def _rows(tail: Tail, head: bytes, end: bytes) -> list[_Row]:
    """The rows of a file's end; what is torn, damaged or no row is counted and left out."""
    header = _cells(head.partition(b"\n")[0])
    if b"\n" not in head or header[0] != "timestamp":
        tail.rows_rejected += bool(head)
        return []
    lines = end.split(b"\n")
    tail.rows_rejected += bool(lines.pop())  # without its newline a row may be half a row
    rows = []
    for line in lines[1:]:  # the first is the header, or begins before what was read
        cells = _cells(line)
        at, has_zone = _time(cells[0])
        if at is None or len(cells) != len(header):
            tail.rows_rejected += 1
        else:
            rows.append(_Row(at, has_zone, dict(zip(header, cells, strict=True))))
    return rows


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", "replace").rstrip("\r")]), None) or [""]
    except csv.Error:
        return [""]


def _time(text: str) -> tuple[datetime | None, bool]:
    """A row's time, and whether it names its zone; the archives' own form does not."""
    at = None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            at = datetime.strptime(text, _ZONELESS)
    if at is None or at.tzinfo is not None:
        return at, True
    return at.replace(tzinfo=UTC), False


def _sightings(rows: list[_Row], interval_s: float, now_s: float, file_age_s: float) -> Sightings:
    newest_at = max(row.at for row in rows)
    newest: dict[str, _Row] = {}
    host_status = ""
    for row in sorted(rows, key=lambda row: row.at):
        device = _device(row.cells)
        if device:
            newest[device] = row
        else:
            host_status = row.cells.get("status", "")
    gpus = []
    for row in _one_each(newest):
        age_s = file_age_s + (newest_at - row.at).total_seconds()
        if row.has_zone:
            age_s = max(age_s, time.time() - row.at.timestamp())
        gpus.append(_sighting(row.cells, max(0.0, age_s), interval_s))
    reason = "" if gpus else f"its logger saw no GPU: status {host_status or 'unknown'}"
    return Sightings(gpus=tuple(gpus), reason=reason)


def _one_each(newest: Mapping[str, _Row]) -> list[_Row]:
    """Leaves out a GPU whose slices are there, and older rows that only name it otherwise."""
    sliced = {row.cells.get("gpu_uuid") for row in newest.values() if row.cells.get("mig_uuid")}
    found: dict[str, _Row] = {}
    for device, row in newest.items():
        if row.cells.get("mig_uuid"):
            found[device] = row
        elif row.cells.get("gpu_uuid", "") not in sliced:
            # A driver that has lost a GPU may not tell its UUID any more.
            index = f"index {row.cells.get('gpu_index') or device}"
            if index not in found or found[index].at < row.at:
                found[index] = row
    return list(found.values())


def _device(cells: Mapping[str, str]) -> str:
    """What tells one GPU's rows from another's; empty for a row about the host."""
    if not any(name in cells for name in _DEVICE):
        return "the only one"  # the archives have one GPU a file and do not name it
    return next((cells[name] for name in _DEVICE if cells.get(name)), "")


def _sighting(cells: Mapping[str, str], age_s: float, interval_s: float) -> Sighting:
    index = cells.get("gpu_index", "")
    total_mib = number(cells.get("mem_total_mib"))
    return Sighting(
        source="telemetry",
        age_s=age_s,
        interval_s=interval_s,
        index=int(index) if index.isdecimal() else None,
        uuid=cells.get("mig_uuid") or cells.get("gpu_uuid", ""),
        util_pct=number(cells.get("util_pct"), most=100.0),
        mem_used_mib=number(cells.get("mem_used_mib")) if total_mib != 0 else None,
        mem_total_mib=total_mib or None,
        status=cells.get("status", ""),
    )
