"""Follows a fleet's telemetry: one row for each window of time, once it is over.

Windows lie one behind the other on the clock, so the same time is always the same row. Invariant:
a window is summed up when its rows are there, and one without a row gives none, never zeros.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.streaming.rows import Row, Taken, key_of
from fleetcraft.telemetry.reading.sources import Source, find_sources
from fleetcraft.telemetry.windows.levels import Summary
from fleetcraft.telemetry.windows.span import Window
from fleetcraft.telemetry.windows.summary import Read, summarize

SETTLE_S = 60.0
"""A window is summed up so long after its end: two intervals of 30 s, in which its rows arrive."""
_HOLD_S = 600.0
"""So long after its end a window waits for a file that cannot be read, as on a mount that is away;
then it is summed up without it, and that is counted."""
_BATCH = 12
_SILENT_INTERVALS = 3.0
_NAME_FORM = "%Y%m%dT%H%M%SZ"


class WindowPlace(msgspec.Struct, kw_only=True):
    """The end of the last window that was looked at, in seconds since 1970; 0 before the first."""

    end_s: float = 0.0


class WindowFollower:
    """The windows of one folder of telemetry.

    Args:
        folder: Where loggers write.
        spools: ``outer`` and ``inner`` to the spools' folders; None when they are not known.
        window_s: Seconds of one window.
        clock: The wall clock.
    """

    def __init__(
        self,
        folder: str,
        *,
        spools: Mapping[str, str] | None,
        window_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._spools = spools
        self._window_s = window_s
        self._clock = clock
        self._place = WindowPlace()
        self._last: Summary | None = None
        self._empty = self._short = 0
        self._known_refused: set[str] = set()
        self._refused: dict[str, int] = {}

    def restore(self, place: Mapping[str, Any]) -> None:
        """Goes on from a place.

        Raises:
            DataError: It is none.
        """
        try:
            self._place = msgspec.convert(dict(place), WindowPlace, strict=False)
        except msgspec.ValidationError as error:
            raise DataError(
                f"the place up to which the fleet was sent is damaged: {error}; nothing was sent",
                hint="move the stream's folder away to send all of it to a new one",
            ) from error

    def take(self) -> Taken:
        """The rows of windows that are over by now, a few at a time."""
        last_s = self._floor(self._clock() - SETTLE_S)
        spans = self._spans()
        rows: list[Row] = []
        for looked, end_s in enumerate(self._ends(spans, last_s)):
            if looked == _BATCH:
                return self._taken(rows, more=True)
            read = self._summed_up(end_s)
            if any(path not in self._known_refused for path, _ in read.refused):
                if self._clock() < end_s + _HOLD_S:
                    return self._taken(rows, more=False)
                self._short += 1
            if row := self._row(end_s, read.summary):
                rows.append(row)
            self._place.end_s = end_s
        if spans:
            self._place.end_s = max(self._place.end_s, last_s)
        return self._taken(rows, more=False)

    def config(self) -> dict[str, Any]:
        """The length of a window."""
        return {"window_s": self._window_s}

    def standing(self) -> dict[str, float | str]:
        """GPUs and hosts at the end of the last window."""
        if self._last is None:
            return {}
        return {"fleet/hosts": self._last.fleet.hosts, "fleet/gpus": self._last.fleet.gpus}

    def is_over(self) -> bool:
        """Never: a fleet may come back."""
        return False

    def counts(self) -> dict[str, int]:
        """Windows without a row, and files that could not be read."""
        empty = {"windows without a row": self._empty} if self._empty else {}
        short = {"windows short of a file": self._short} if self._short else {}
        return {**self._refused, **empty, **short}

    # -- which windows

    def _taken(self, rows: list[Row], *, more: bool) -> Taken:
        return Taken(rows=rows, place=msgspec.to_builtins(self._place), more=more)

    def _floor(self, t_s: float) -> float:
        return math.floor(t_s / self._window_s) * self._window_s

    def _spans(self) -> list[tuple[float, float]]:
        """From when to when our files say that they have rows; those of archives say nothing."""
        try:
            found = find_sources(self._folder)
        except DataError:
            if os.path.exists(self._folder):
                raise
            return []
        self._known_refused = {path for path, _ in found.refused}
        nameless = sum(not source.started for source in found.sources)
        told = {"files refused": len(found.refused), "files whose names tell no start": nameless}
        self._refused = {kind: count for kind, count in told.items() if count}
        return [span for source in found.sources if (span := _span(source))]

    def _ends(self, spans: list[tuple[float, float]], last_s: float) -> Iterator[float]:
        """Ends of windows after the place that may hold rows."""
        if not spans:
            return
        end_s = self._place.end_s + self._window_s
        if not self._place.end_s:
            end_s = self._floor(min(spans)[0]) + self._window_s
        while end_s <= last_s:
            start_s = end_s - self._window_s
            if any(first < end_s and start_s <= last for first, last in spans):
                yield end_s
                end_s += self._window_s
                continue
            later = [first for first, _ in spans if first >= end_s]
            if not later:
                return
            end_s = max(end_s, self._floor(min(later))) + self._window_s

    # -- one window

    def _summed_up(self, end_s: float) -> Read:
        window = Window(seconds=self._window_s, end_s=end_s, end_local_s=end_s, end_zone="given")
        return summarize(self._folder, window, spools=self._spools)

    def _row(self, end_s: float, summary: Summary) -> Row | None:
        if not summary.fleet.figures.samples and not summary.queue.is_told:
            self._empty += 1
            return None
        self._last = summary
        return {"_timestamp": end_s, **dict(_values(summary))}


def _span(source: Source) -> tuple[float, float] | None:
    if not source.started:
        return None
    try:
        first = datetime.strptime(source.started, _NAME_FORM).replace(tzinfo=UTC).timestamp()
        # By the clock of the file system; a little more than that costs one look.
        last = os.stat(source.path).st_mtime
    except (OSError, ValueError):
        return None
    interval_s = (source.sidecar and source.sidecar.interval_s) or 0.0
    return first, max(first, last + max(SETTLE_S, _SILENT_INTERVALS * interval_s))


def _values(summary: Summary) -> Iterator[tuple[str, float]]:
    fleet = summary.fleet
    figures = fleet.figures
    told = {
        "active_fraction": figures.active_fraction,
        "utilization_pct": figures.mean_util_pct,
        "memory_fraction": figures.mean_memory_fraction,
        "power_w_per_gpu": figures.mean_power_w,
        "coverage_fraction": figures.coverage_fraction,
        "energy_kwh": figures.energy_kwh,
        "energy_covered_gpu_hours": figures.covered_hours if figures.energy_kwh else None,
        "gpus_reporting": fleet.gpus_reporting,
        "gpus_allocated": fleet.gpus_allocated,
    }
    yield from ((f"fleet/{name}", value) for name, value in told.items() if value is not None)
    yield from ((key_of("gpus", state), count) for state, count in fleet.states.items())
    for spool, depths in summary.queue.spools.items():
        yield from ((f"queue/{spool}/{state}", count) for state, count in depths.last.items())
    if summary.queue.known:
        yield "tasks/started", summary.queue.started
        yield from ((key_of("tasks", word), count) for word, count in summary.queue.ended.items())
