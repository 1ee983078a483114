"""The driver's own buffer of utilization samples, folded into one value a row.

No binding is used here: numbers in, numbers out. Invariant: a sample is counted once, in the row in
whose time it was taken, and one that cannot be is counted as invalid and enters no mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from math import isnan
from operator import mul, sub

import msgspec

PERIOD_US = 1_000_000
"""The most time that one sample stands for. Source: NVML API reference, "nvmlUtilization_t": the
sample period is between 1/6 s and 1 s, by product."""
_EPOCH_US = 10**15
"""Time stamps from here on count from 1970; smaller ones would be before 2001. Source: NVML API
reference, "nvmlSample_t": a CPU time stamp in microseconds."""


_UNEVEN_FRACTION = 0.02
"""Of a row's time: how far a sample may be from its place in an even row. A driver has one period
for a product, so that what strays further is a gap or another rate."""


class Folded(msgspec.Struct, frozen=True):
    """One row's utilization: mean and greatest in percent, the samples in it, and those thrown out.

    ``mean_pct`` is None when there was no valid sample.
    """

    mean_pct: float | None
    max_pct: float | None
    count: int
    invalid: int


class Fold:
    """Collects the samples of one GPU from row to row.

    The driver is asked for what is newer than `since_us`. After its clock was set back its buffer
    has older samples with later stamps, and only the order in it tells them from new ones: then, as
    at first, it is asked for all that it has.

    Args:
        interval_s: Between two rows. What the buffer holds of an earlier time, before the first row
            or before the driver's clock was set back, belongs to no row.
    """

    def __init__(self, interval_s: float) -> None:
        self._last_us = 0
        self._is_mixed = False
        self._interval_us = int(interval_s * 1e6)
        self._clear()

    def _clear(self) -> None:
        self._weight = 0.0
        self._weighted = 0.0
        self._max: float | None = None
        self._count = 0
        self._invalid = 0

    @property
    def since_us(self) -> int:
        """The stamp that the driver is asked with; 0 asks for the whole buffer."""
        return 0 if self._is_mixed else self._last_us

    def add(self, times_us: Sequence[int], values_pct: Sequence[float], now_s: float) -> None:
        """Adds the driver's answer for `since_us`, oldest first.

        Args:
            times_us: The driver's time stamps.
            values_pct: The samples, as they came.
            now_s: This host's time, in seconds since 1970.
        """
        if not times_us:
            return
        before_us: int | None = self.since_us
        if not before_us:
            times_us, values_pct, before_us = self._behind_last(times_us, values_pct, now_s)
        elif times_us[0] <= before_us:
            times_us, values_pct = _since(before_us, times_us, values_pct)
        if times_us:
            self._add(times_us, values_pct, before_us)
            self._last_us = times_us[-1]

    def is_overdue(self, now_s: float) -> bool:
        """Whether a new sample should be there by now, or the last one is from the future."""
        last_us = self._last_us
        return bool(last_us) and abs(int(now_s * 1e6) - last_us) > 2 * PERIOD_US

    def add_whole(self, times_us: Sequence[int], values_pct: Sequence[float], now_s: float) -> None:
        """Adds what is new in the whole buffer, where the driver says that nothing is newer."""
        if times_us and times_us[-1] < self._last_us:
            self._is_mixed = True
            self.add(times_us, values_pct, now_s)

    def _behind_last(
        self, times_us: Sequence[int], values_pct: Sequence[float], now_s: float
    ) -> tuple[Sequence[int], Sequence[float], int | None]:
        """What stands behind the last sample that was seen, in the whole buffer.

        Where that is not there, what stands behind the last step back and is of this row's time.
        """
        descents = [place for place, (a, b) in enumerate(pairwise(times_us), 1) if b < a]
        self._is_mixed = bool(descents)
        if self._last_us in times_us:
            start = len(times_us) - times_us[::-1].index(self._last_us)
            before_us = None if start in descents else self._last_us
            return times_us[start:], values_pct[start:], before_us
        start = descents[-1] if descents else 0
        times_us, values_pct = times_us[start:], values_pct[start:]
        cut_us = self._cut_us(times_us[-1], now_s)
        kept = _since(cut_us, times_us, values_pct)
        if not kept[0]:
            self._last_us = times_us[-1]  # so that these are not new ones another time
        return *kept, None

    def take(self) -> Folded:
        """What was collected since the last call; begins anew."""
        mean = self._weighted / self._weight if self._weight else None
        if mean is not None and self._max is not None and mean > self._max:
            mean = self._max  # a rounding error above it would be odd to read
        folded = Folded(mean, self._max, self._count, self._invalid)
        self._clear()
        return folded

    def _cut_us(self, newest_us: int, now_s: float) -> int:
        # By this host's time where that can be: a sleeping GPU's newest sample may be hours old.
        end_us = int(now_s * 1e6) if newest_us >= _EPOCH_US else newest_us
        return end_us - self._interval_us

    def _add(
        self, times_us: Sequence[int], values_pct: Sequence[float], before_us: int | None
    ) -> None:
        if not times_us:
            return
        total = sum(values_pct)
        peak = max(values_pct)
        # A NaN is neither above nor below anything, and spoils the sum.
        if peak > 100 or min(values_pct) < 0 or isnan(total):
            weights = _weights(times_us, before_us)
            valid = [place for place, value in enumerate(values_pct) if 0 <= value <= 100]
            self._invalid += len(values_pct) - len(valid)
            if not valid:
                return
            values_pct = [values_pct[place] for place in valid]
            peak = max(values_pct)
            self._weigh([weights[place] for place in valid], values_pct)
        elif period_us := _period_us(times_us, before_us):
            self._weight += period_us * len(values_pct)
            self._weighted += period_us * total
        else:
            self._weigh(_weights(times_us, before_us), values_pct)
        self._count += len(values_pct)
        self._max = float(peak) if self._max is None or peak > self._max else self._max

    def _weigh(self, weights: Sequence[int], values_pct: Sequence[float]) -> None:
        self._weight += sum(weights)
        self._weighted += sum(map(mul, values_pct, weights))


def _since(
    cut_us: int, times_us: Sequence[int], values_pct: Sequence[float]
) -> tuple[Sequence[int], Sequence[float]]:
    kept = [place for place, time_us in enumerate(times_us) if time_us > cut_us]
    return [times_us[place] for place in kept], [values_pct[place] for place in kept]


def _period_us(times_us: Sequence[int], before_us: int | None) -> float:
    """The time from sample to sample where that is always about the same; 0 where it is not.

    Looked at in five places: that costs the same for any number of samples, and where the parts of
    a row are equally dense, the plain mean is the mean over time.
    """
    last = len(times_us) - 1
    if last < 2:
        return 0.0
    first_us = times_us[0]
    period_us = (times_us[last] - first_us) / last
    if not 0 < period_us <= PERIOD_US:
        return 0.0
    slack_us = _UNEVEN_FRACTION * period_us * last
    strays_us = [
        times_us[place] - first_us - place * period_us
        for place in (last // 4, last // 2, 3 * last // 4)
    ]
    if before_us is not None and first_us - before_us <= PERIOD_US:
        strays_us.append(first_us - before_us - period_us)
    return period_us if max(strays_us) <= slack_us and min(strays_us) >= -slack_us else 0.0


def _weights(times_us: Sequence[int], before_us: int | None) -> list[int]:
    """How long each sample stands for: the time since the one before it.

    A step of more than `PERIOD_US` is a time of which the driver keeps no sample, as when its
    buffer is shorter than a row; the sample behind it stands for as long as most others. Stamps
    that stand still or go back tell no time either.
    """
    first_us = times_us[0] if before_us is None else before_us
    steps = list(map(sub, times_us, chain((first_us,), times_us)))
    if not 0 < steps[0] <= PERIOD_US and len(steps) > 1:
        steps[0] = steps[1]
    if min(steps) > 0 and max(steps) <= PERIOD_US:
        return steps
    told = sorted(step for step in steps if 0 < step <= PERIOD_US)
    usual = told[len(told) // 2] if told else PERIOD_US
    return [step if 0 < step <= PERIOD_US else usual for step in steps]
