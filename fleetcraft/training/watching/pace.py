"""How fast a run has been advancing: throughput, its slope and plateau, and when it will end.

Fed with the run's step counter and tokens; every time is the caller's own clock. Invariant: what
happened before the end of warm-up is in no figure that something is decided by, and memory is
bounded.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

MOST_EVENTS = 256
RECENT = 20
"""Intervals over which "now" is averaged: enough that one save among them is not the figure."""
SLOPE_WINDOW_S = 600.0
FLAT_FRACTION = 0.1
"""Newer and older half of a plateau differ by no more than this. Source: our choice; saves and
evaluations of a healthy run stay below it when they take less than a tenth of its time."""
_BLOCKS = 8
_FEWEST_BLOCKS = 4


class Event(NamedTuple):
    """A look at which the run had advanced."""

    at_s: float
    step: int | None
    tokens: float | None


class Pace:
    """The looks at which a run had advanced, thinned where they are old."""

    def __init__(self, *, counts_from_s: float) -> None:
        """Has seen nothing.

        Args:
            counts_from_s: The end of warm-up.
        """
        self._events: list[Event] = []
        self._counted: list[Event] = []
        self._counts_from_s = counts_from_s
        self._slope: float | None = None
        self._flat = False

    def begin_anew(self, counts_from_s: float) -> None:
        """Forgets all: the run was started again, or its counter went back."""
        self._events = []
        self._counted = []
        self._slope, self._flat = None, False
        self._counts_from_s = counts_from_s

    def note(self, now_s: float, step: int | None, tokens: float | None) -> None:
        """Takes one look; only an advance is kept."""
        last = self._events[-1] if self._events else None
        if last and not _advanced(last, step, tokens):
            return
        self._events = _thinned([*self._events, Event(now_s, step, tokens)])
        first = bisect.bisect_left(self._events, self._counts_from_s, key=lambda one: one.at_s)
        self._counted = self._events[first:]
        self._slope, self._flat = self._shape()

    def tokens_per_s(self) -> float | None:
        """Recent throughput while the run advanced, after warm-up; None before."""
        return _tokens_per_s(self._counted[-RECENT - 1 :])

    def tokens_per_s_now(self, now_s: float) -> float | None:
        """Recent throughput up to now: it falls while the run stands still.

        Counts steps of warm-up as long as there are no others.
        """
        events = self._recent_or_any()
        return _falling(_tokens_per_s(events), events, now_s)

    def steps_per_s_now(self, now_s: float) -> float | None:
        """The same in steps."""
        events = self._recent_or_any()
        step_s = _step_s(events)
        return _falling(1 / step_s if step_s else None, events, now_s)

    def step_s(self) -> tuple[float, int] | None:
        """What a recent step took on average, after warm-up, and of how many; None before."""
        events = self._counted[-RECENT - 1 :]
        step_s = _step_s(events)
        return None if step_s is None else (step_s, _steps(events))

    def slope_per_minute(self) -> float | None:
        """By how much the throughput changes in a minute, in tokens/s; None while it is unknown."""
        return self._slope

    def is_flat(self, least_steps: int) -> bool:
        """Whether the run has reached a plateau.

        Args:
            least_steps: Steps after warm-up that it takes at least.
        """
        return self._flat and _steps(self._counted) >= least_steps

    def eta_s(self, steps: int) -> tuple[float, float] | None:
        """Seconds for so many more steps, from the quickest and slowest stretch since warm-up.

        Stretches, not single steps: a save belongs to the steps between two saves.
        """
        times = [time for block in _blocks(self._counted) if (time := _step_s(block)) is not None]
        return (min(times) * steps, max(times) * steps) if len(times) >= 2 else None

    def _recent_or_any(self) -> list[Event]:
        return (self._counted if len(self._counted) > 2 else self._events)[-RECENT - 1 :]

    def _shape(self) -> tuple[float | None, bool]:
        """The slope per minute of tokens/s, and whether the pace is flat."""
        if not self._counted:
            return None, False
        begin_s = self._counted[-1].at_s - SLOPE_WINDOW_S
        first = bisect.bisect_left(self._counted, begin_s, key=lambda one: one.at_s)
        first = min(first, max(0, len(self._counted) - RECENT - 1))
        blocks = _blocks(self._counted[first:])
        paces = [pace for block in blocks if (pace := _pace(block)) is not None]
        flat = len(paces) >= _FEWEST_BLOCKS and _is_flat([rate for _, rate in paces])
        points = [
            ((block[0].at_s + block[-1].at_s) / 2, rate)
            for block in blocks
            if (rate := _tokens_per_s(block)) is not None
        ]
        return (60 * _slope(points) if len(points) >= _FEWEST_BLOCKS else None), flat


def _advanced(last: Event, step: int | None, tokens: float | None) -> bool:
    if step is not None:
        return last.step is None or step > last.step
    return tokens is not None and tokens > (last.tokens or 0.0)


def _thinned(events: list[Event]) -> list[Event]:
    if len(events) <= MOST_EVENTS:
        return events
    old = len(events) // 2
    return [*events[:old:2], *events[old:]]


def _falling(rate: float | None, events: Sequence[Event], now_s: float) -> float | None:
    if rate is None or len(events) < 2:
        return rate
    span_s = events[-1].at_s - events[0].at_s
    usual_s = span_s / (len(events) - 1)
    late_s = now_s - events[-1].at_s
    return rate if late_s <= 2 * usual_s else rate * span_s / (span_s + late_s)


def _steps(events: Sequence[Event]) -> int:
    if not events or events[0].step is None or events[-1].step is None:
        return 0
    return max(0, events[-1].step - events[0].step)


def _step_s(events: Sequence[Event]) -> float | None:
    steps = _steps(events)
    return (events[-1].at_s - events[0].at_s) / steps if steps else None


def _tokens_per_s(events: Sequence[Event]) -> float | None:
    if len(events) < 2 or events[0].tokens is None or events[-1].tokens is None:
        return None
    span_s = events[-1].at_s - events[0].at_s
    gained = events[-1].tokens - events[0].tokens
    return gained / span_s if span_s > 0 and gained >= 0 else None


def _pace(events: Sequence[Event]) -> tuple[float, float] | None:
    rate = _tokens_per_s(events)
    if rate is None and (step_s := _step_s(events)):
        rate = 1 / step_s
    return None if rate is None else (events[-1].at_s, rate)


def _blocks(events: Sequence[Event]) -> list[Sequence[Event]]:
    """Stretches of about equal numbers of events; one ends where the next begins."""
    intervals = len(events) - 1
    count = min(_BLOCKS, intervals)
    if count < 1:
        return []
    edges = [round(index * intervals / count) for index in range(count + 1)]
    return [events[low : high + 1] for low, high in itertools.pairwise(edges)]


def _is_flat(rates: Sequence[float]) -> bool:
    half = len(rates) // 2
    older = sum(rates[:half]) / half
    newer = sum(rates[-half:]) / half
    return abs(newer - older) <= FLAT_FRACTION * max(newer, older)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The least-squares slope."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
