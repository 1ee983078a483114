"""The time axis of a figure: which spans of time are shown, in how many bins of which width.

Knows nothing of what is binned. Invariant: every shown span has the same seconds a bin, and time
that is not shown lies between two spans, so that a figure can mark it and say how long it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_BINS = 1200
"""No more than a figure has pixels across, or columns of its heat map would be lost."""
_BIN_WIDTHS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
)  # fmt: skip
_CUT_FROM_FRACTION = 1 / 3
"""Gaps are cut out when more than this share of the time has no data; below that they are drawn."""
_CUT_LEAST_FRACTION = 1 / 25
"""A gap shorter than this share of the time with data stays: the mark would be hardly narrower."""
_MAX_CUTS = 24
_LEAST_GAP_BINS = 4


@dataclass(frozen=True, kw_only=True)
class Span:
    """One unbroken piece of the axis.

    Attributes:
        start_s: Its first bin begins here, seconds since 1970.
        first_bin: Number of that bin.
        bins: How many.
    """

    start_s: float
    first_bin: int
    bins: int


@dataclass(frozen=True, kw_only=True)
class TimeAxis:
    """What is shown.

    Attributes:
        spans: In order of time; whatever lies between them is cut out.
        bin_s: Seconds a bin.
        start_s: The first moment with data.
        end_s: The last moment with data.
    """

    spans: tuple[Span, ...]
    bin_s: float
    start_s: float
    end_s: float

    @property
    def bins(self) -> int:
        """How many bins there are in all spans."""
        return self.spans[-1].first_bin + self.spans[-1].bins

    @property
    def cuts_s(self) -> tuple[float, ...]:
        """Lengths in seconds of what is cut out, one less than there are spans."""
        ends = (self.end_of(span) for span in self.spans)
        return tuple(after.start_s - end for end, after in zip(ends, self.spans[1:], strict=False))

    @property
    def last_s(self) -> float:
        """Where the last bin ends, seconds since 1970."""
        return self.end_of(self.spans[-1])

    def end_of(self, span: Span) -> float:
        """Where a span ends, seconds since 1970."""
        return span.start_s + span.bins * self.bin_s

    def starts_s(self) -> Floats:
        """Where each bin begins, [bins]."""
        return np.concatenate(
            [span.start_s + self.bin_s * np.arange(span.bins) for span in self.spans]
        )

    def bin_of(self, t_s: Floats) -> Ints:
        """The bin of each moment, [N]; -1 where it is not shown."""
        firsts = np.array([span.start_s for span in self.spans])
        place = np.searchsorted(firsts, t_s, side="right") - 1
        inside = np.maximum(place, 0)
        offset = np.floor((t_s - firsts[inside]) / self.bin_s).astype(np.int64)
        sizes = np.array([span.bins for span in self.spans])[inside]
        bins = np.array([span.first_bin for span in self.spans])[inside] + offset
        return np.where((place >= 0) & (offset >= 0) & (offset < sizes), bins, -1)

    def overlap(self, start_s: float, end_s: float) -> Floats:
        """Share of each bin that lies within two moments, [bins], 0 to 1."""
        starts = self.starts_s()
        inside_s = np.minimum(starts + self.bin_s, end_s) - np.maximum(starts, start_s)
        share: Floats = np.clip(inside_s / self.bin_s, 0.0, 1.0)
        return share

    def concurrency(self, spans: Sequence[tuple[float, float]]) -> Floats:
        """How many of some spans lie over each bin, on average over the bin, [bins].

        Costs a sorting of the spans, not their number times the bins.
        """
        starts = self.starts_s()
        begun, ended = np.sort(np.array(spans, dtype=np.float64).reshape(-1, 2), axis=0).T
        until_s = _time_after(begun, starts + self.bin_s) - _time_after(ended, starts + self.bin_s)
        before_s = _time_after(begun, starts) - _time_after(ended, starts)
        count: Floats = np.maximum(0.0, (until_s - before_s) / self.bin_s)
        return count


def _time_after(ordered: Floats, at_s: Floats) -> Floats:
    """Seconds from each moment to each later one of ``at_s``, summed up for each of these."""
    origin = ordered[0] if len(ordered) else 0.0
    sums = np.concatenate(([0.0], np.cumsum(ordered - origin)))
    earlier = np.searchsorted(ordered, at_s)
    passed: Floats = (earlier * (at_s - origin) - sums[earlier]).astype(np.float64)
    return passed


def choose_axis(
    covered: Iterable[tuple[float, float]],
    *,
    interval_s: float,
    since_s: float | None = None,
    until_s: float | None = None,
    max_bins: int = MAX_BINS,
) -> TimeAxis | None:
    """The axis over spans of time with data.

    Long stretches without data are cut out if they are a third of the time and more; otherwise
    the axis has one span.

    Args:
        covered: First and last moment of each stretch with data, in any order.
        interval_s: Usual seconds between samples; no bin is shorter.
        since_s: Nothing before this is shown.
        until_s: Nothing from this on is shown.
        max_bins: At most so many bins, apart from one a span for rounding.

    Returns:
        None if nothing is left to show.
    """
    runs = merge(_clip(covered, since_s, until_s))
    if not runs:
        return None
    whole_s = runs[-1][1] - runs[0][0]
    cuts = _cuts(runs, whole_s)
    pieces = _pieces(runs, cuts)
    shown_s = sum(end - start for start, end in pieces)
    bin_s = _bin_width_s(max(interval_s, shown_s / max_bins))
    spans: list[Span] = []
    first_bin = 0
    for start, end in _apart(pieces, bin_s):
        start_s = math.floor(start / bin_s) * bin_s
        bins = max(1, math.floor((end - start_s) / bin_s) + 1)
        spans.append(Span(start_s=start_s, first_bin=first_bin, bins=bins))
        first_bin += bins
    return TimeAxis(spans=tuple(spans), bin_s=bin_s, start_s=runs[0][0], end_s=runs[-1][1])


def merge(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans in order, those that touch made one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def stretches(t_s: Floats, gap_s: Floats) -> list[tuple[float, float]]:
    """First and last moment of each stretch of samples that are nearer than a gap.

    Args:
        t_s: Moments in order, [N].
        gap_s: A step this long after a sample is a gap, [N].
    """
    if not len(t_s):
        return []
    breaks = np.flatnonzero(np.diff(t_s) >= gap_s[:-1])
    firsts = t_s[np.concatenate(([0], breaks + 1))]
    lasts = t_s[np.concatenate((breaks, [len(t_s) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _clip(
    covered: Iterable[tuple[float, float]], since_s: float | None, until_s: float | None
) -> Iterable[tuple[float, float]]:
    low = -math.inf if since_s is None else since_s
    high = math.inf if until_s is None else until_s
    for start, end in covered:
        if end >= low and start < high:
            yield max(start, low), min(end, math.nextafter(high, low))


def _cuts(runs: Sequence[tuple[float, float]], whole_s: float) -> set[int]:
    """Numbers of the runs before which the time is cut."""
    gaps = [after[0] - before[1] for before, after in pairwise(runs)]
    data_s = whole_s - sum(gaps)
    if not gaps or sum(gaps) < _CUT_FROM_FRACTION * whole_s:
        return set()
    long = [place for place, gap in enumerate(gaps) if gap >= _CUT_LEAST_FRACTION * data_s]
    longest = sorted(long, key=lambda place: (-gaps[place], place))[:_MAX_CUTS]
    return {place + 1 for place in longest}


def _pieces(runs: Sequence[tuple[float, float]], cuts: set[int]) -> list[tuple[float, float]]:
    pieces = [runs[0]]
    for place, run in enumerate(runs[1:], start=1):
        if place in cuts:
            pieces.append(run)
        else:
            pieces[-1] = (pieces[-1][0], run[1])
    return pieces


def _apart(pieces: Sequence[tuple[float, float]], bin_s: float) -> list[tuple[float, float]]:
    """The pieces, without cuts that would be hardly longer than a bin."""
    kept = [pieces[0]]
    for start, end in pieces[1:]:
        if start - kept[-1][1] < _LEAST_GAP_BINS * bin_s:
            kept[-1] = (kept[-1][0], end)
        else:
            kept.append((start, end))
    return kept


def _bin_width_s(least_s: float) -> float:
    """The first round width that is not below a number of seconds."""
    for width in _BIN_WIDTHS_S:
        if width >= least_s:
            return float(width)
    return math.ceil(least_s / _BIN_WIDTHS_S[-1]) * float(_BIN_WIDTHS_S[-1])
