"""How quickly tasks end, and when the rest may have ended: arithmetic over times of ends.

Reads nothing. Invariant: an estimate is an interval that says what it rests on, and where too
little is known there is none, with the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from fleetcraft.report.task_records import Pace
from fleetcraft.units import format_seconds

MAX_BINS = 96
_WIDTHS_S = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
    43200, 86400,
)  # fmt: skip
_LEAST_BINS = 12
_LEAST_ENDS = 10
_LATELY_FRACTION = 0.25
_LATELY_ENDS = 40
_BLOCKS = 8
_Z = 1.645
"""Of a normal distribution: 5 percent lie above, so an interval of both sides holds 90 percent."""
_STALLED_GAPS = 20


def bins_of(
    completed_s: Sequence[float], other_s: Sequence[float]
) -> tuple[float | None, float, tuple[int, ...], tuple[int, ...]]:
    """Ends in bins of a round width, at most `MAX_BINS` and one for rounding.

    Returns:
        Where the first bin begins (None without an end), seconds a bin, and both counts.
    """
    ends = [*completed_s, *other_s]
    if not ends:
        return None, 0.0, (), ()
    first_s, last_s = min(ends), max(ends)
    wanted = min(MAX_BINS, max(_LEAST_BINS, math.ceil(2.5 * math.sqrt(len(ends)))))
    least_s = (last_s - first_s) / wanted
    width_s = next(
        (float(w) for w in _WIDTHS_S if w >= least_s), math.ceil(least_s / 86400) * 86400.0
    )
    start_s = math.floor(first_s / width_s) * width_s
    count = int((last_s - start_s) // width_s) + 1
    return (
        start_s,
        width_s,
        _counts(completed_s, start_s, width_s, count),
        _counts(other_s, start_s, width_s, count),
    )


def _counts(ends_s: Sequence[float], start_s: float, width_s: float, count: int) -> tuple[int, ...]:
    found = [0] * count
    for end_s in ends_s:
        found[min(count - 1, int((end_s - start_s) // width_s))] += 1
    return tuple(found)


def pace_of(
    completed_s: Sequence[float],
    other_s: Sequence[float],
    final_s: Sequence[float],
    *,
    left: int,
    now_s: float | None,
    hindrance: str = "",
    untimed: int = 0,
) -> Pace:
    """The pace of one spool.

    Args:
        completed_s: When attempts completed, seconds since 1970.
        other_s: When attempts ended otherwise.
        final_s: When tasks left the queue for good, done or failed.
        left: Tasks that wait, are pending or run.
        now_s: The time of the report; None when its span lies in the past.
        hindrance: Why nothing more will end; empty when nothing is known of the kind.
        untimed: Ended attempts without a time.
    """
    start_s, bin_s, completed, other = bins_of(completed_s, other_s)
    ends = sorted(final_s)
    lately_s, counted = _lately(ends)
    if counted < _LEAST_ENDS:
        lately_s = None
    per_h = None if lately_s is None else counted / lately_s * 3600
    eta_s, why = _eta(ends, left, now_s, hindrance)
    return Pace(
        start_s=start_s,
        bin_s=bin_s,
        completed=completed,
        other=other,
        per_h=per_h,
        lately_s=lately_s,
        counted=counted,
        left=left,
        eta_s=eta_s,
        eta_why=why,
        untimed=untimed,
    )


def _lately(ends: Sequence[float]) -> tuple[float | None, int]:
    """The newest quarter of the time, or as much as holds 40 ends; and how many are in it.

    The span begins with an end that is not counted in it, as gaps between ends are what is
    measured.
    """
    if len(ends) < 2 or ends[-1] <= ends[0]:
        return None, 0
    last_s = ends[-1]
    by_time = last_s - (last_s - ends[0]) * _LATELY_FRACTION
    by_count = ends[max(0, len(ends) - 1 - _LATELY_ENDS)]
    start = min(by_time, by_count)
    begun_s = max((end for end in ends if end <= start), default=ends[0])
    counted = sum(end > begun_s for end in ends)
    return (last_s - begun_s, counted) if counted and last_s > begun_s else (None, 0)


def _eta(
    ends: Sequence[float], left: int, now_s: float | None, hindrance: str
) -> tuple[tuple[float, float] | None, str]:
    if not left:
        return (0.0, 0.0), "nothing is left"
    if now_s is None:
        return None, "the report is about a span in the past"
    if hindrance:
        return None, hindrance
    lately_s, counted = _lately(ends)
    if lately_s is None or counted < _LEAST_ENDS:
        return None, f"fewer than {_LEAST_ENDS + 1} tasks have ended at different times"
    silent_s = max(0.0, now_s - ends[-1])
    gap_s = lately_s / counted
    if silent_s > max(_STALLED_GAPS * gap_s, _longest_gap(ends, lately_s) * 3):
        return None, (
            f"no task has ended for {format_seconds(silent_s)}, while one ended every "
            f"{format_seconds(gap_s)} before"
        )
    spread = _Z * math.sqrt(_dispersion(ends, lately_s) * counted)
    slow, fast = max(counted - spread, counted / 4), counted + spread
    low_s, high_s = left / fast * lately_s, left / slow * lately_s
    return (low_s, high_s), (
        f"{counted} tasks ended in {format_seconds(lately_s)} up to the newest end; the interval "
        "holds 90 % if the rest goes at that rate, with the same spread, and takes as long a task"
    )


def _longest_gap(ends: Sequence[float], lately_s: float) -> float:
    recent = [end for end in ends if end >= ends[-1] - lately_s]
    return max((after - end for end, after in pairwise(recent)), default=0.0)


def _dispersion(ends: Sequence[float], lately_s: float) -> float:
    """How much more the counts of eight equal blocks differ than those of independent ends would.

    Variance over mean, at least 1. Tasks that end in waves make it large. Source: the index of
    dispersion of a counting process (Cox and Lewis, 1966).
    """
    begun_s = ends[-1] - lately_s
    counts = [0] * _BLOCKS
    for end_s in ends:
        if end_s > begun_s:
            counts[min(_BLOCKS - 1, int((end_s - begun_s) / lately_s * _BLOCKS))] += 1
    mean = statistics.fmean(counts)
    return max(1.0, statistics.variance(counts) / mean) if mean else 1.0
