"""Samples in bins: means, counts and states of one trace, and quantiles over many.

Which bins there are is `time_axis`'s. Invariant: a bin without a sample is NaN, unless it lies
between two samples of one series that are nearer than a gap; then the first of them holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fleetcraft.gpu.states import ACTIVE_PCT, SILENT_INTERVALS, GpuState
from fleetcraft.telemetry.figures.time_axis import Floats, Ints, TimeAxis
from fleetcraft.telemetry.figures.traces import STATES, Trace

QUANTILES = (0.10, 0.25, 0.50, 0.75, 0.90)
_SILENT = STATES.index(GpuState.SILENT)
_UNKNOWN = STATES.index(GpuState.UNKNOWN)


def bin_means(axis: TimeAxis, t_s: Floats, values: Floats, gap_s: Floats) -> tuple[Floats, Ints]:
    """Means of the samples in each bin, and how many they are, [bins] each.

    Args:
        axis: The bins.
        t_s: Moments in order, [N].
        values: [N]; NaN is no sample.
        gap_s: A step this long after a sample is a gap, [N].
    """
    there = np.isfinite(values)
    place, source = _held(axis, t_s[there], gap_s[there])
    counts = np.bincount(place, minlength=axis.bins)
    sums = np.bincount(place, weights=values[there][source], minlength=axis.bins)
    with np.errstate(invalid="ignore"):
        return sums / np.where(counts, counts, np.nan), counts


def quantiles(values: Floats, shares: Sequence[float] = QUANTILES) -> Floats:
    """Quantiles over the rows that have a value, column by column, [shares, columns].

    Linear between neighbours, as numpy's default; NaN where a column has no value at all.
    """
    answer = np.full((len(shares), values.shape[1]), np.nan)
    counts = np.isfinite(values).sum(axis=0)
    columns = np.flatnonzero(counts)
    if not len(columns):
        return answer
    ordered = np.sort(values[:, columns], axis=0)  # NaN goes last
    for number, share in enumerate(shares):
        place = share * (counts[columns] - 1)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, counts[columns] - 1)
        below, above = (ordered[at, np.arange(len(columns))] for at in (low, high))
        answer[number, columns] = below + (above - below) * (place - low)
    return answer


def _held(axis: TimeAxis, t_s: Floats, gap_s: Floats) -> tuple[Ints, Ints]:
    """Bins, and the sample that stands in each: all samples, and those held over empty bins."""
    place = axis.bin_of(t_s)
    numbers = np.arange(len(t_s))
    if len(t_s) > 1:
        missed = np.where(np.diff(t_s) < gap_s[:-1], np.diff(place) - 1, 0)
        missed[(place[:-1] < 0) | (place[1:] < 0)] = 0
        before = np.flatnonzero(missed > 0)
        held = np.repeat(before, missed[before])
        within = np.arange(len(held)) - np.repeat(
            np.cumsum(missed[before]) - missed[before], missed[before]
        )
        place = np.concatenate((place, place[held] + 1 + within))
        numbers = np.concatenate((numbers, held))
    shown = place >= 0
    return place[shown], numbers[shown]


class Binned:
    """One trace in bins."""

    def __init__(self, trace: Trace, axis: TimeAxis) -> None:
        self.trace = trace
        self.axis = axis
        # Times, bins and held samples are the same for all quantities that are never missing.
        self._place, self._source = _held(axis, trace.t_s, trace.gap_s.astype(np.float64))
        self._cache: dict[str, tuple[Floats, Ints]] = {}

    def means(self, quantity: str) -> tuple[Floats, Ints]:
        """Means and counts of one quantity, [bins] each."""
        if quantity not in self._cache:
            values = getattr(self.trace, quantity)
            if np.isfinite(values).all():
                self._cache[quantity] = self._of_whole(values.astype(np.float64))
            else:
                self._cache[quantity] = bin_means(
                    self.axis, self.trace.t_s, values.astype(np.float64),
                    self.trace.gap_s.astype(np.float64),
                )  # fmt: skip
        return self._cache[quantity]

    def _of_whole(self, values: Floats) -> tuple[Floats, Ints]:
        counts = np.bincount(self._place, minlength=self.axis.bins)
        sums = np.bincount(self._place, weights=values[self._source], minlength=self.axis.bins)
        with np.errstate(invalid="ignore"):
            return sums / np.where(counts, counts, np.nan), counts

    def active(self) -> tuple[Ints, Ints]:
        """Samples at work and samples with a reading in each bin."""
        values = self.trace.util_pct[self._source]
        there = np.isfinite(values)
        working = self._place[there & (values >= ACTIVE_PCT)]
        return (
            np.bincount(working, minlength=self.axis.bins),
            np.bincount(self._place[there], minlength=self.axis.bins),
        )

    def states(self, interval_s: float) -> Floats:
        """Share of each bin's samples in each state, [states, bins]; 0 in bins without samples."""
        size = self.axis.bins
        flat = self.trace.state[self._source].astype(np.int64) * size + self._place
        counts = np.bincount(flat, minlength=len(STATES) * size).reshape(len(STATES), size)
        seen = counts.sum(axis=0)
        shares: Floats = counts / np.maximum(seen, 1)
        for start_s, end_s in self.trace.unseen:
            long = end_s - start_s > SILENT_INTERVALS * interval_s
            shares[_SILENT if long else _UNKNOWN] += self.axis.overlap(start_s, end_s) * (seen == 0)
        return shares
