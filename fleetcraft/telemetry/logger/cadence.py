"""When the next sample is due: at whole multiples of the interval by the wall clock.

Arithmetic alone; nothing here sleeps or reads a clock. Invariant: however the wall clock is set,
the next sample is at most one interval and a second away.
"""

from __future__ import annotations

import math

from fleetcraft.telemetry.intervals import SAME_SAMPLE_S

LEAST_DISTANCE_S = SAME_SAMPLE_S
"""Rows of one GPU that are nearer than this look like two loggers."""


def next_tick_s(began_s: float, interval_s: float, ended_s: float = 0.0) -> float:
    """The moment of the next sample.

    Moments that passed while a sample took long are left out, never made up for.

    Args:
        began_s: When the last sample began, in seconds since 1970 by the wall clock.
        interval_s: Between samples, above 0.
        ended_s: When it ended.

    Returns:
        The first multiple of the interval that is not before its end, and at least a second after
        its begin, or half an interval where that is less.
    """
    soonest_s = max(ended_s, began_s + min(LEAST_DISTANCE_S, interval_s / 2))
    return math.ceil(soonest_s / interval_s) * interval_s


def realigned_s(tick_s: float, now_s: float, interval_s: float) -> float:
    """The same tick, or, where the clock was set back and it is far away, the next one from now.

    Args:
        tick_s: What `next_tick_s` gave, by the clock as it was.
        now_s: The clock as it is.
        interval_s: Between samples.
    """
    farthest_s = next_tick_s(now_s, interval_s)
    return farthest_s if tick_s > farthest_s + interval_s / 2 else tick_s
