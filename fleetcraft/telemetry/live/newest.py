"""The newest row of each GPU of one telemetry file, from its bytes as they come.

Opens nothing and knows no clock but the one that a caller hands in. Invariant: however the bytes
are cut, the same rows are found; a row without its newline waits for it, and each line that is no
row is counted.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from fleetcraft.gpu.states import Sighting, number
from fleetcraft.gpu.status import Status
from fleetcraft.telemetry.columns import DEVICE_COLUMNS, RowKind
from fleetcraft.telemetry.intervals import DEFAULT_INTERVAL_S, SAME_SAMPLE_S, STEPS_THAT_TELL

_STEPS_KEPT = 64
_LONGEST_LINE_BYTES = 1 << 16
_ZONELESS = "%Y/%m/%d %H:%M:%S.%f"
_ONLY_DEVICE = b"the only one"  # the archives have one GPU a file and do not name it
_SAMPLES = frozenset({b"", RowKind.GPU.encode(), RowKind.MIG.encode()})
_HEARTBEAT, _EVENT = RowKind.HEARTBEAT.encode(), RowKind.EVENT.encode()
_SPENT = frozenset({"", Status.OK})
_WITHOUT_GPU = frozenset({Status.OK, Status.NO_NVML})


class _Row(NamedTuple):
    """One row: when, on which clock, and its cells as they stand.

    ``since_first_s`` is its distance from the first row that was read. It never falls, also when
    the clock of its node is set back.
    """

    at_s: float
    has_zone: bool
    since_first_s: float
    values: list[bytes]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a file last told of one GPU or slice.

    Attributes:
        seen: What decides its state.
        gpu_uuid: The whole GPU's, also for a slice.
        util_max_pct: The largest sample that went into the mean.
        util_source: ``samples`` or ``instant``; empty when not told.
    """

    seen: Sighting
    gpu_uuid: str = ""
    util_max_pct: float | None = None
    util_source: str = ""
    power_w: float | None = None
    temp_c: float | None = None
    detail: str = ""


class NewestRows:
    """Takes a file's bytes in order and keeps what is newest.

    Args:
        header: The file's first line, where the bytes begin in the middle of it: everything up to
            their first newline is then passed over.

    Attributes:
        rejected: Lines that were no rows.
    """

    def __init__(self, header: bytes | None = None) -> None:
        self.rejected = 0
        self._part = b""
        self._skipping = header is not None
        self._columns: _Columns | None = None if header is None else _Columns(header)
        self._newest: dict[bytes, _Row] = {}
        self._stuck: dict[bytes, _Row] = {}
        self._word: _Row | None = None
        self._last: _Row | None = None
        self._steps: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._time_text = b""
        self._time: tuple[float | None, bool] = (None, False)

    @property
    def waiting(self) -> bool:
        """Whether the last line has no newline yet."""
        return bool(self._part) and not self._skipping

    @property
    def is_empty(self) -> bool:
        """Whether there was no row so far, of whatever kind."""
        return self._last is None

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the file."""
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif self._columns is None:
                self._columns = _Columns(line)
                self.rejected += not self._columns.names
            else:
                self._take(line, self._columns)
        if len(self._part) > _LONGEST_LINE_BYTES:  # no row is so long
            self.rejected += not self._skipping
            self._part, self._skipping = b"", True

    def _take(self, line: bytes, columns: _Columns) -> None:
        # Bytes, split once and not decoded: a first look takes thousands of rows, and all but the
        # newest of each GPU are dropped again.
        values = line.split(b",")
        if values[0] != self._time_text:  # the GPUs of one sample share their time
            self._time_text, self._time = values[0], _time(values[0])
        at_s, has_zone = self._time
        if at_s is None or len(values) != len(columns.names) or b"\0" in line:
            self.rejected += 1
            return
        since_s = 0.0
        if self._last is not None:
            step_s = at_s - self._last[0]
            since_s = self._last[2] + (step_s if step_s > 0 else 0.0)
            if step_s >= SAME_SAMPLE_S:  # the GPUs of one sample may be milliseconds apart
                self._steps.append(step_s)
        self._last = row = _Row(at_s, has_zone, since_s, values)
        device = columns.device(values)
        kind = b"" if columns.kind is None else values[columns.kind].rstrip(b"\r")
        if device and kind in _SAMPLES:
            self._newest[device] = row
        elif kind == _HEARTBEAT and device:
            self._stuck[device] = row
        elif kind != _EVENT:
            self._word = row

    def shows(self, devices: Iterable[str]) -> bool:
        """Whether there was a row of each of these GPUs."""
        return all(device.encode() in self._newest for device in devices)

    def interval_s(self) -> float:
        """Seconds between samples as the rows show it, else the logger's default."""
        if len(self._steps) < STEPS_THAT_TELL:
            return DEFAULT_INTERVAL_S
        steps = sorted(self._steps)
        half = len(steps) // 2
        return steps[half] if len(steps) % 2 else (steps[half - 1] + steps[half]) / 2

    def readings(
        self, *, interval_s: float, file_age_s: float, now_s: float
    ) -> tuple[list[Reading], str]:
        """What is known of each GPU now, and why there is none if there is none.

        A row's age is the larger of two: its file's, by the clock of the file system, and its own,
        by the clock of this host; a wrong clock can make a GPU silent but never fresh.

        Args:
            interval_s: Between samples.
            file_age_s: Seconds since the file was written, by the clock that dates it.
            now_s: This host's clock, seconds since 1970.
        """
        if self._columns is None:
            return [], "it has no row yet"
        cells = {device: self._columns.cells(row.values) for device, row in self._newest.items()}
        found = []
        for device in _one_each(self._newest, cells):
            row = self._newest[device]
            newer = self._newer_word(device, row, interval_s)
            age_s = self._age_s(newer or row, file_age_s, now_s)
            newer_cells = self._columns.cells(newer.values) if newer else None
            found.append(_reading(cells[device], newer_cells, age_s, interval_s))
        if found:
            return found, ""
        word = self._word or next(iter(self._stuck.values()), None)
        told = self._columns.cells(word.values) if word else {}
        said = told.get("status") or "unknown"
        about = _host_words(told) if said in _WITHOUT_GPU else ""
        return [], f"its logger saw no GPU: status {said}{about}"

    def _newer_word(self, device: bytes, row: _Row, interval_s: float) -> _Row | None:
        """A heartbeat, or a sample without GPUs, that came after a GPU's last row."""
        stuck = self._stuck.get(device)
        if stuck is not None and stuck.since_first_s >= row.since_first_s:
            return stuck
        word = self._word
        # One of the same sample is about something else than a GPU that has its row in it.
        later = word is not None and word.since_first_s - row.since_first_s >= interval_s / 2
        return word if later else None

    def _age_s(self, row: _Row, file_age_s: float, now_s: float) -> float:
        assert self._last is not None
        age_s = file_age_s + self._last.since_first_s - row.since_first_s
        return max(0.0, age_s, now_s - row.at_s if row.has_zone else 0.0)


class _Columns:
    """Where is what in a row, by the header; a line that is no header has no columns."""

    def __init__(self, header: bytes) -> None:
        names = _text(header).split(",")
        self.names = names if names[0] == "timestamp" else []
        places = {name: place for place, name in enumerate(self.names)}
        self.kind = places.get("kind")
        self._device = [places[name] for name in DEVICE_COLUMNS if name in places]

    def device(self, values: list[bytes]) -> bytes:
        """What tells one GPU's rows from another's; empty for a row about the host."""
        for place in self._device:
            if value := values[place]:
                return value
        return b"" if self._device else _ONLY_DEVICE

    def cells(self, values: list[bytes]) -> dict[str, str]:
        """The cells by column."""
        return dict(zip(self.names, _text(b",".join(values)).split(","), strict=True))


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def _time(cell: bytes) -> tuple[float | None, bool]:
    """A row's time, and whether it names its zone; the archives' own form does not."""
    text = cell.decode("utf-8", "replace")
    at = None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            at = datetime.strptime(text, _ZONELESS)
    try:
        if at is None or at.tzinfo is not None:
            return None if at is None else at.timestamp(), True
        return at.replace(tzinfo=UTC).timestamp(), False
    except OverflowError:
        return None, False


def _one_each(newest: Mapping[bytes, _Row], cells: Mapping[bytes, dict[str, str]]) -> list[bytes]:
    """Leaves out a GPU whose slices are there, and older rows that only name it otherwise.

    A row that does not tell its GPU's UUID any more is given that of the older one.
    """
    sliced = {one.get("gpu_uuid") for one in cells.values() if one.get("mig_uuid")}
    found: dict[object, bytes] = {}
    for device, row in newest.items():
        one = cells[device]
        if one.get("mig_uuid"):
            found[device] = device
        elif not one.get("gpu_uuid") or one["gpu_uuid"] not in sliced:
            # A driver that has lost a GPU may not tell its UUID any more.
            index = one.get("gpu_index") or device
            other = found.setdefault(index, device)
            if other != device:
                newer = newest[other].since_first_s <= row.since_first_s
                found[index] = device if newer else other
                uuid = one.get("gpu_uuid") or cells[other].get("gpu_uuid", "")
                cells[found[index]]["gpu_uuid"] = uuid
    return list(found.values())


def _host_words(cells: Mapping[str, str]) -> str:
    """Memory and load of a host that has no GPU; empty where they are not told."""
    used_mib, total_mib = (
        number(cells.get("host_mem_used_mib")),
        number(cells.get("host_mem_total_mib")),
    )
    load = number(cells.get("host_load"))
    words = []
    if used_mib is not None and total_mib is not None:
        words.append(f"host memory {used_mib / 1024:.1f} of {total_mib / 1024:.1f} GiB")
    if load is not None:
        words.append(f"load {load:.2f}")
    return "".join(f", {word}" for word in words)


def _reading(
    cells: Mapping[str, str], newer: Mapping[str, str] | None, age_s: float, interval_s: float
) -> Reading:
    values = cells if newer is None else {}  # what was measured before the driver fell silent
    index = cells.get("gpu_index", "")
    total_mib = number(values.get("mem_total_mib"))
    status = cells.get("status", "")
    if newer is not None:
        status = newer.get("status", "")
        status = Status.UNKNOWN.value if status in _SPENT else status
    return Reading(
        seen=Sighting(
            source="telemetry",
            age_s=age_s,
            interval_s=interval_s,
            index=int(index) if index.isdecimal() else None,
            uuid=cells.get("mig_uuid") or cells.get("gpu_uuid", ""),
            util_pct=number(values.get("util_pct"), most=100.0),
            mem_used_mib=number(values.get("mem_used_mib")) if total_mib != 0 else None,
            mem_total_mib=total_mib or None,
            status=status,
        ),
        gpu_uuid=cells.get("gpu_uuid", ""),
        util_max_pct=number(values.get("util_max_pct"), most=100.0),
        util_source=values.get("util_source", ""),
        power_w=number(values.get("power_w")),
        temp_c=number(values.get("temp_c")),
        detail=(newer or cells).get("detail", ""),
    )
