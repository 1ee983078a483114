"""Energy between neighbouring samples of one GPU: by the driver's counter, else by power readings.

Arithmetic on arrays. Invariant: nothing is integrated over a gap, and a step counts once, by the
counter or by power.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetcraft.telemetry.intervals import SAME_SAMPLE_S

Floats = NDArray[np.float64]

JOULES_PER_KWH = 3.6e6
MOST_W = 1e5
"""A counter that rises faster than any power was not read right: some drivers answer a single 0,
and what follows it would count as all the energy since the driver was loaded."""
UNDONE_FACTOR = 2.0
"""A rise from half to twice the fall right before it undoes that fall, and is no energy: the driver
answered 0 once, or the clock was set back, so that rows of two times stand between each other."""


class Integrated(NamedTuple):
    """Joules and the seconds that they are of, by method, and how often the counter fell."""

    counter_j: float
    counter_s: float
    trapezoid_j: float
    trapezoid_s: float
    resets: int


def undoes(grown_j: Floats, before_j: Floats) -> NDArray[np.bool_]:
    """Which steps of the counter only undo a fall.

    Args:
        grown_j: What it rose by, in order of time [N].
        before_j: What it rose by in the step right before each [N].
    """
    fell_j = -before_j
    small = (fell_j > 0) & (grown_j >= fell_j / UNDONE_FACTOR)
    undone: NDArray[np.bool_] = small & (grown_j <= fell_j * UNDONE_FACTOR)
    return undone


def integrate(t_s: Floats, power_w: Floats, energy_j: Floats, gap_s: Floats | float) -> Integrated:
    """The energy of one GPU, gaps left out.

    Args:
        t_s: Moments in order [N].
        power_w: NaN where there is none [N].
        energy_j: The driver's counter, NaN where there is none [N].
        gap_s: A step this long is a gap; one for all, or one a step [N-1].
    """
    steps_s = np.diff(t_s)
    usable = (steps_s > 0) & (steps_s < gap_s)
    grown_j = np.diff(energy_j)
    counted = usable & (grown_j >= 0) & (grown_j <= MOST_W * steps_s)
    counted &= ~undoes(grown_j, np.concatenate(([np.nan], grown_j))[:-1])
    watts = (power_w[1:] + power_w[:-1]) / 2
    drawn = usable & ~counted & ~np.isnan(watts)
    # Two loggers may read the counter in another order than their rows have.
    fell = (grown_j < 0) & (steps_s >= SAME_SAMPLE_S)
    return Integrated(
        counter_j=float(grown_j[counted].sum()),
        counter_s=float(steps_s[counted].sum()),
        trapezoid_j=float((watts[drawn] * steps_s[drawn]).sum()),
        trapezoid_s=float(steps_s[drawn].sum()),
        resets=int(np.count_nonzero(fell)),
    )
