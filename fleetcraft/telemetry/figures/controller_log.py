"""The log of a fleet controller: a line a reading, and rolling summaries between them.

Reads only; figures are drawn elsewhere. Invariant: every line is a point, a summary, or counted by
the reason why it is neither; what contradicts itself is counted and kept.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections import Counter
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError

_LONGEST_LINE_BYTES = 4096
_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(Z?)\] *(.*)", re.ASCII)
_POINT = re.compile(
    r"util=(?:(\d{1,6})%|([^ ]+)) \((\d{1,9})/(\d{1,9}) GPUs\)"
    r"(?: free_idle=(\d{1,9}))?(?: pending=(\d{1,9}))?",
    re.ASCII,
)
_SUMMARY = re.compile(r"rolling SUMMARY ((?:[a-z_]+=[^ ]+ ?)+)", re.ASCII)
_WINDOW = re.compile(r"(\d{1,9})s?", re.ASCII)


class LineKind(StrEnum):
    """Why a line is neither a point nor a summary."""

    TORN_TAIL = "torn_tail"
    """The last line, without its newline: its last number may be half a number."""
    BAD_TIME = "bad_time"
    UNKNOWN_LINE = "unknown_line"
    BAD_SUMMARY = "bad_summary"
    TOO_LONG = "too_long"
    NUL_BYTES = "nul_bytes"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the controller.

    Attributes:
        t_s: Seconds since 1970; local time is taken as if it were UTC.
        printed_pct: The percentage as printed; None where there is no number.
        working: GPUs at work.
        total: GPUs in all.
        free_idle: GPUs that nobody uses; None where the line does not say.
        pending: Tasks that wait; None where the line does not say.
    """

    t_s: float
    printed_pct: int | None
    working: int
    total: int
    free_idle: int | None
    pending: int | None

    @property
    def utilization_pct(self) -> float | None:
        """Working over total; None of no GPUs."""
        return 100.0 * self.working / self.total if self.total else None

    @property
    def is_consistent(self) -> bool:
        """Whether the printed percentage is the floor of working over total."""
        if not self.total or self.working > self.total:
            return False
        return self.printed_pct == 100 * self.working // self.total


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One rolling summary: means over the window that ends at its time; None where not said."""

    t_s: float
    window_s: float
    hosts: int | None = None
    samples: int | None = None
    active_fraction: float | None = None
    mean_util_pct: float | None = None
    mean_memory_fraction: float | None = None


class ControllerLog(msgspec.Struct, kw_only=True):
    """What was read, in order of time.

    Attributes:
        points: Readings.
        summaries: Rolling summaries.
        lines: Lines that are not blank.
        steps_back: Lines whose time is before that of the line before them.
        inconsistent: Points whose printed percentage is not the floor of working over total.
        outside: Points and summaries that were left out, since they lie outside the span.
        rejected: Lines that are neither, by `LineKind`.
        zoned: Whether every time names its zone.
    """

    points: list[Point] = msgspec.field(default_factory=list)
    summaries: list[Summary] = msgspec.field(default_factory=list)
    lines: int = 0
    steps_back: int = 0
    inconsistent: int = 0
    outside: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    zoned: bool = False


def read_controller_logs(
    paths: list[str], *, since_s: float | None = None, until_s: float | None = None
) -> ControllerLog:
    """Reads one or several logs as one.

    Args:
        paths: The files.
        since_s: Only what is from this on, as the logs' own clock counts.
        until_s: Only what is before this.

    Raises:
        DataError: One of them is not there, no regular file, or cannot be read.
    """
    log = ControllerLog()
    rejected: Counter[str] = Counter()
    zones: Counter[bool] = Counter()
    for path in paths:
        _read(path, log, rejected, zones)
    low = -math.inf if since_s is None else since_s
    high = math.inf if until_s is None else until_s
    read = len(log.points) + len(log.summaries)
    log.points = sorted((p for p in log.points if low <= p.t_s < high), key=lambda p: p.t_s)
    log.summaries = sorted((s for s in log.summaries if low <= s.t_s < high), key=lambda s: s.t_s)
    log.outside = read - len(log.points) - len(log.summaries)
    log.inconsistent = sum(not point.is_consistent for point in log.points)
    log.rejected = dict(sorted(rejected.items()))
    log.zoned = zones[True] > 0 and not zones[False]
    return log


def _read(path: str, log: ControllerLog, rejected: Counter[str], zones: Counter[bool]) -> None:
    before_s = -math.inf
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(0, "not a regular file")
            while line := file.readline(_LONGEST_LINE_BYTES):
                if line.isspace():
                    continue
                log.lines += 1
                if not line.endswith(b"\n"):
                    whole = len(line) < _LONGEST_LINE_BYTES
                    rejected[LineKind.TORN_TAIL if whole else LineKind.TOO_LONG] += 1
                    _skip_rest(file, whole)
                    continue
                found = parse_line(line)
                if isinstance(found, LineKind):
                    rejected[found] += 1
                    continue
                entry, zoned = found
                zones[zoned] += 1
                log.steps_back += entry.t_s < before_s
                before_s = entry.t_s
                if isinstance(entry, Point):
                    log.points.append(entry)
                else:
                    log.summaries.append(entry)
    except OSError as error:
        raise DataError(
            f"cannot read the controller log {path}: {error.strerror}; nothing was drawn",
            path=path,
        ) from error


def _skip_rest(file: object, whole: bool) -> None:
    while not whole:
        rest = file.readline(_LONGEST_LINE_BYTES)  # type: ignore[attr-defined]
        whole = len(rest) < _LONGEST_LINE_BYTES or rest.endswith(b"\n")


def parse_line(line: bytes) -> tuple[Point | Summary, bool] | LineKind:
    """One line and whether its time names its zone, or the reason why it is nothing."""
    if b"\0" in line:
        return LineKind.NUL_BYTES
    stamped = _STAMP.fullmatch(line.decode("utf-8", "replace").strip())
    if stamped is None:
        return LineKind.UNKNOWN_LINE
    try:
        at = datetime.fromisoformat(stamped[1]).replace(tzinfo=UTC)
    except ValueError:
        return LineKind.BAD_TIME
    t_s, zoned = at.timestamp(), bool(stamped[2])
    if point := _POINT.fullmatch(stamped[3]):
        printed, _, working, total, free_idle, pending = point.groups()
        return (
            Point(
                t_s=t_s,
                printed_pct=_whole(printed),
                working=int(working),
                total=int(total),
                free_idle=_whole(free_idle),
                pending=_whole(pending),
            ),
            zoned,
        )
    if summary := _SUMMARY.fullmatch(stamped[3] + " " if stamped[3] else ""):
        made = _summary(t_s, dict(part.split("=", 1) for part in summary[1].split()))
        return LineKind.BAD_SUMMARY if made is None else (made, zoned)
    return LineKind.BAD_SUMMARY if "SUMMARY" in stamped[3] else LineKind.UNKNOWN_LINE


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)


def _summary(t_s: float, said: dict[str, str]) -> Summary | None:
    """A summary of ``key=value`` words; None where a value cannot be one."""
    window = _WINDOW.fullmatch(said.get("window", ""))
    if window is None:
        return None
    try:
        return Summary(
            t_s=t_s,
            window_s=float(window[1]),
            hosts=_count(said.get("hosts")),
            samples=_count(said.get("samples")),
            active_fraction=_number(said.get("active_fraction"), 1.0),
            mean_util_pct=_number(said.get("mean_util"), 100.0),
            mean_memory_fraction=_number(said.get("mean_mem_fraction"), 1.0),
        )
    except ValueError:
        return None


def _count(text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise ValueError(text)
    return _whole(text)


def _number(text: str | None, most: float) -> float | None:
    """A number from 0 to ``most``; words for "not measured" are None."""
    if text is None or text.lower() in ("nan", "none", "n/a", "-"):
        return None
    value = float(text)
    if not 0.0 <= value <= most:
        raise ValueError(text)
    return value
