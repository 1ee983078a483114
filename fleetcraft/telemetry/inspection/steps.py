"""What the steps between samples tell: double logging, gaps, clocks set back, energy.

Two accumulators, one over samples in the order of a file, one over samples in the order of time;
both take a file in pieces and keep nothing of it. Invariant: energy is never bridged over a gap
in the power readings, and where the driver's counter covers a span, power does not count there.
"""

from __future__ import annotations

import numpy as np

from fleetcraft.gpu.states import ACTIVE_PCT
from fleetcraft.telemetry.energy import MOST_W, undoes
from fleetcraft.telemetry.reading.cells import Bools, Floats, Ints
from fleetcraft.telemetry.reading.times import SECOND_US


class FileOrder:
    """Neighbours of one series in the order of its file.

    Args:
        gap_us: A step from this on is a gap.
        same_us: Samples nearer than this are one that was logged twice.

    Attributes:
        rows: Samples.
        first_us, last_us: Earliest and latest; None without samples.
        double_logged: Samples nearer than that after the one before, earlier ones among them.
        back_steps: Samples earlier than the one before.
        gaps, biggest_gap_us: How many, and the biggest, 0 without one.
    """

    def __init__(self, gap_us: int, same_us: int = SECOND_US) -> None:
        self._gap_us = gap_us
        self._same_us = same_us
        self._before_us: int | None = None
        self.rows = 0
        self.first_us: int | None = None
        self.last_us: int | None = None
        self.double_logged = 0
        self.back_steps = 0
        self.gaps = 0
        self.biggest_gap_us = 0

    def take(self, t_us: Ints) -> None:
        """Takes the next samples, at least one."""
        steps_us = (
            np.diff(t_us) if self._before_us is None else np.diff(t_us, prepend=self._before_us)
        )
        first_us, last_us = int(t_us.min()), int(t_us.max())
        self.first_us = first_us if self.first_us is None else min(self.first_us, first_us)
        self.last_us = last_us if self.last_us is None else max(self.last_us, last_us)
        self._before_us = int(t_us[-1])
        self.rows += len(t_us)
        self.double_logged += int((steps_us < self._same_us).sum())
        self.back_steps += int((steps_us < 0).sum())
        gaps_us = steps_us[steps_us >= self._gap_us]
        self.gaps += len(gaps_us)
        self.biggest_gap_us = max(self.biggest_gap_us, int(gaps_us.max(initial=0)))


class TimeOrder:
    """Samples of one GPU in the order of time.

    Args:
        gap_us: A step of power readings from this on is left out of the energy.
        same_us: Samples nearer than this are one that was logged twice.

    Attributes:
        kept: Samples without those nearer than that after the last that was kept.
        kept_util_sum, kept_with_util, kept_active: Of those with a utilization: its sum in
            percent, how many, and how many are at 5 percent and above.
        across_files: Samples nearer than that after one of another file.
        counter_j, counter_us, counter_resets: Energy by the driver's counter, the time that it
            covers, and how often it fell.
        trapezoid_j, trapezoid_us: Energy by power readings where no counter covers the time.
        power_j, power_us: The same over the whole time, to compare.
    """

    def __init__(self, gap_us: int, same_us: int = SECOND_US) -> None:
        self._gap_us = gap_us
        self._same_us = same_us
        self._last: tuple[int, int] | None = None  # time, file
        self._kept_us: int | None = None
        self._power: tuple[int, float] | None = None
        self._counter: tuple[int, float] | None = None
        self._rise_j = 0.0  # of the newest step of the counter
        self._open_j = 0.0  # by power since the newest reading of the counter
        self._open_us = 0
        self.kept = 0
        self.kept_util_sum = 0.0
        self.kept_with_util = 0
        self.kept_active = 0
        self.across_files = 0
        self.counter_j = 0.0
        self.counter_us = 0
        self.counter_resets = 0
        self.trapezoid_j = 0.0
        self.trapezoid_us = 0
        self.power_j = 0.0
        self.power_us = 0

    def take(
        self, t_us: Ints, util: Floats, power: Floats, energy_j: Floats, file: Ints | None = None
    ) -> None:
        """Takes the next samples, none earlier than those before.

        Args:
            t_us: Microseconds [N], N at least 1.
            util: Percent, NaN where there is none [N].
            power: Watts [N].
            energy_j: The driver's counter [N].
            file: Which file each is from [N]; None for one file.
        """
        util = util[self._keep(t_us)]
        self.kept += len(util)
        util = util[~np.isnan(util)]
        self.kept_util_sum += float(util.sum())
        self.kept_with_util += len(util)
        self.kept_active += int((util >= ACTIVE_PCT).sum())
        if file is not None:
            self._count_across(t_us, file)
        self._last = int(t_us[-1]), int(file[-1]) if file is not None else 0
        self._integrate(t_us, power, energy_j)

    def close(self) -> None:
        """Says that there are no more."""
        self._settle(covered=False)

    # ------------------------------------------------------------------------ double logging

    def _keep(self, t_us: Ints) -> Bools:
        """Which samples are not too near after the last that was kept [N]."""
        far: Bools = np.ones(len(t_us), dtype=bool)
        before_us = t_us[0] - self._same_us if self._last is None else self._last[0]
        far[:] = np.diff(t_us, prepend=before_us) >= self._same_us
        keep = far.copy()
        kept_us = self._kept_us
        for row in np.flatnonzero(~far).tolist():
            if row and keep[row - 1]:
                kept_us = int(t_us[row - 1])
            if kept_us is None or int(t_us[row]) - kept_us >= self._same_us:
                keep[row] = True
        if keep.any():
            self._kept_us = int(t_us[np.flatnonzero(keep)[-1]])
        return keep

    def _count_across(self, t_us: Ints, file: Ints) -> None:
        if self._last is None:
            near, other = np.diff(t_us) < self._same_us, np.diff(file) != 0
        else:
            near = np.diff(t_us, prepend=self._last[0]) < self._same_us
            other = np.diff(file, prepend=self._last[1]) != 0
        self.across_files += int((near & other).sum())

    # -------------------------------------------------------------------------------- energy

    def _integrate(self, t_us: Ints, power: Floats, energy_j: Floats) -> None:
        """Adds the energy of the spans that end in these samples.

        Readings of the counter cut the time into spans. Of a span that the counter covers, its
        rise counts; of any other, the trapezoid of the power readings in it.
        """
        read = ~np.isnan(energy_j)
        covered = self._count_up(t_us[read], energy_j[read])
        has_power = ~np.isnan(power)
        joules, steps_us = self._trapezoid(t_us[has_power], power[has_power])
        # The readings before a sample say in which span the step ends that leads to it.
        span = (np.cumsum(read) - read)[has_power][-len(joules) :] if len(joules) else joules
        span = span.astype(np.int64)
        by_span_j = np.bincount(span, weights=joules, minlength=len(covered) + 1)
        by_span_us = np.bincount(span, weights=steps_us, minlength=len(covered) + 1)
        had_counter = self._counter is not None
        for place, is_covered in enumerate(covered[:1]):
            self._open_j += float(by_span_j[place])
            self._open_us += int(by_span_us[place])
            self._settle(covered=bool(is_covered))
        bare = ~covered[1:]
        self.trapezoid_j += float(by_span_j[1:-1][bare].sum())
        self.trapezoid_us += int(by_span_us[1:-1][bare].sum())
        self._open_j += float(by_span_j[-1])
        self._open_us += int(by_span_us[-1])
        if len(covered):
            self._counter = int(t_us[read][-1]), float(energy_j[read][-1])
        elif not had_counter:
            self._settle(covered=False)

    def _settle(self, *, covered: bool) -> None:
        """Closes the span that is open: by power, unless the counter covers it."""
        if not covered:
            self.trapezoid_j += self._open_j
            self.trapezoid_us += self._open_us
        self._open_j, self._open_us = 0.0, 0

    def _count_up(self, t_us: Ints, energy_j: Floats) -> Bools:
        """Adds what the counter rose; whether it covers the span that each reading ends [M]."""
        covered: Bools = np.zeros(len(t_us), dtype=bool)
        if not len(t_us):
            return covered
        first_us, first_j = self._counter or (int(t_us[0]), float(energy_j[0]))
        rise_j = np.diff(energy_j, prepend=first_j)
        steps_us = np.diff(t_us, prepend=first_us)
        covered[:] = (rise_j >= 0) & (rise_j <= steps_us * (MOST_W / SECOND_US))
        covered &= ~undoes(rise_j, np.concatenate(([self._rise_j], rise_j))[:-1])
        covered[0] &= self._counter is not None
        self._rise_j = float(rise_j[-1])
        self.counter_j += float(rise_j[covered].sum())
        self.counter_us += int(steps_us[covered].sum())
        # Two loggers may read it in another order than their rows have.
        self.counter_resets += int(((rise_j < 0) & (steps_us >= SECOND_US)).sum())
        return covered

    def _trapezoid(self, t_us: Ints, power: Floats) -> tuple[Floats, Ints]:
        """Energy and length of each step that ends in one of these readings, 0 for a gap."""
        if not len(t_us):
            return power, t_us
        if self._power is not None:
            t_us = np.append(self._power[0], t_us)
            power = np.append(self._power[1], power)
        self._power = int(t_us[-1]), float(power[-1])
        steps_us = np.diff(t_us)
        steps_us = np.where(steps_us < self._gap_us, steps_us, 0)
        joules: Floats = (power[1:] + power[:-1]) / 2 * (steps_us / SECOND_US)
        self.power_j += float(joules.sum())
        self.power_us += int(steps_us.sum())
        return joules, steps_us
