"""The journals of workers as they grow: which attempts began, and how many tasks ended of late.

Each look reads what was appended since the one before. Invariant: a rate covers the time that was
really read; a line that waits for its newline is not read, and one that is no event is counted.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from fleetcraft.telemetry.journals import NO_EVENT, seconds
from fleetcraft.units import format_seconds

RATE_WINDOW_S = 300.0
_ETA_LEAST_ENDED = 5
_FIRST_BYTES = 1 << 13  # the start of an older attempt is told by its claim
_BACKLOG_BYTES = 1 << 20
_LONGEST_LINE_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class _Event(msgspec.Struct):
    event: str = ""
    at: str | None = ""
    claim: str | None = ""
    to: str | None = ""


_decode = msgspec.json.Decoder(_Event).decode


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a minute ended of late.

    Attributes:
        window_s: Over how long, up to now.
        ended: Tasks that ended in it, as far as it was read.
        done_per_min: Those that were done.
        failed_per_min: Those that failed for good.
        put_back_per_min: Attempts after which the task is to run again.
    """

    window_s: float
    ended: int
    done_per_min: float
    failed_per_min: float
    put_back_per_min: float


class Journal:
    """One journal, and how far it was read.

    Args:
        path: The file, in a folder of this user's spool.

    Attributes:
        started: When the attempts of claims began that have not ended, as it says, by token.
        damaged: Lines that are no event.
        is_cut: Whether its beginning was not read.
        known_since_s: From when on its ends are known, by this host's monotonic clock.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = (0, 0)
        self._offset = 0
        self._part = b""
        self._skipping = False
        self._ends: deque[tuple[float, str]] = deque()
        self.started: dict[str, str] = {}
        self.damaged = 0
        self.is_cut = False
        self.known_since_s = 0.0

    def look(self) -> int:
        """Reads what was appended; returns how many bytes that were.

        Raises:
            OSError: It cannot be read.
        """
        fd = os.open(self._path, _FLAGS)
        try:
            facts = os.fstat(fd)
            identity = (facts.st_dev, facts.st_ino)
            grown = facts.st_size - self._offset
            first = identity != self._identity or not 0 <= grown <= _BACKLOG_BYTES
            if first:
                self._identity = identity
                self._offset = max(0, facts.st_size - _FIRST_BYTES)
                self._part, self._skipping = b"", self._offset > 0
                self.is_cut = self._skipping
                grown = facts.st_size - self._offset
            data = os.pread(fd, grown, self._offset) if grown else b""
        finally:
            os.close(fd)
        self._offset += len(data)
        self._take(data, first=first)
        return len(data)

    def _take(self, data: bytes, *, first: bool) -> None:
        now_s, here_s = time.time(), time.monotonic()
        *lines, self._part = (self._part + data).split(b"\n")
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        if first:
            self.known_since_s = here_s - _age_s(_first_time(lines), now_s)
        for line in lines:
            if b'"end"' in line or b'"start"' in line:
                self._note(line, now_s if first else None, here_s)
            elif line and not line.startswith(b"{"):
                self.damaged += 1
        if len(self._part) > _LONGEST_LINE_BYTES:
            self.damaged += 1
            self._part, self._skipping = b"", True

    def _note(self, line: bytes, now_s: float | None, here_s: float) -> None:
        try:
            event = _decode(line)
        except NO_EVENT:
            self.damaged += 1
            return
        if event.event == "start":
            self.started[event.claim or ""] = event.at or ""
        elif event.event == "end":
            self.started.pop(event.claim or "", None)
            # What is seen to come is dated by this host, so that no two clocks are compared.
            age_s = 0.0 if now_s is None else _age_s(event.at, now_s)
            self._ends.append((here_s - age_s, event.to or ""))

    def ends_since(self, start_s: float) -> list[str]:
        """Where the tasks went that ended since then, by this host's monotonic clock."""
        while self._ends and self._ends[0][0] < start_s:
            self._ends.popleft()
        return [to for at_s, to in self._ends if at_s >= start_s]


def _first_time(lines: Iterable[bytes]) -> str | None:
    for line in lines:
        try:
            return _decode(line).at
        except NO_EVENT:
            continue
    return None


def _age_s(text: str | None, now_s: float) -> float:
    at_s = seconds(text) if text else None
    return 0.0 if at_s is None else max(0.0, now_s - at_s)


def rates(journals: Iterable[Journal]) -> Rates | None:
    """How many tasks a minute ended over the last minutes; None when nobody works.

    A journal of which only the last part of the window was read counts as if the part before had
    been like it.
    """
    here_s = time.monotonic()
    some = list(journals)
    if not some:
        return None
    oldest_s = min(journal.known_since_s for journal in some)
    window_s = min(RATE_WINDOW_S, max(1.0, here_s - oldest_s))
    counts = {"done": 0.0, "failed": 0.0, "pending": 0.0}
    ended = 0
    for journal in some:
        covered_s = min(window_s, max(1.0, here_s - journal.known_since_s))
        scale = window_s / covered_s if journal.is_cut else 1.0
        for to in journal.ends_since(here_s - covered_s):
            ended += to in ("done", "failed")
            if to in counts:
                counts[to] += scale
    per_min = {to: count * 60.0 / window_s for to, count in counts.items()}
    return Rates(
        window_s=window_s,
        ended=ended,
        done_per_min=per_min["done"],
        failed_per_min=per_min["failed"],
        put_back_per_min=per_min["pending"],
    )


def eta(counts: Mapping[str, int], found: Rates | None) -> tuple[float | None, str]:
    """Seconds until a spool is drained if it goes on as in the last minutes, and why not known.

    An estimate: what is left over what ended a minute. Tasks need not be alike, and those that fail
    and run again are not counted twice.

    Args:
        counts: Tasks by state.
        found: How many ended of late.
    """
    left = sum(counts.get(state, 0) for state in ("waiting", "pending", "running"))
    if not left:
        return None, "nothing is left"
    if found is None:
        return None, "nobody works"
    per_min = found.done_per_min + found.failed_per_min
    if found.ended < _ETA_LEAST_ENDED or not per_min:
        window = format_seconds(found.window_s)
        return None, f"only {found.ended} tasks ended in {window}, too few to tell"
    return left / per_min * 60.0, ""
