"""The figures of a window: those of one GPU, one host and the fleet, in the same words.

Invariant: a mean of nothing is None, never 0, and each share says what it is a share of.
"""

from __future__ import annotations

import math

import msgspec

from fleetcraft.gpu.states import GpuState
from fleetcraft.telemetry.energy import JOULES_PER_KWH
from fleetcraft.telemetry.windows.span import NO_SAMPLE, Sums


class Deduplicated(msgspec.Struct, frozen=True, kw_only=True):
    """The same after near-simultaneous rows were taken for one sample, the first of them."""

    samples: int
    mean_util_pct: float | None
    active_fraction: float | None
    mean_memory_fraction: float | None


class TimeWeighted(msgspec.Struct, frozen=True, kw_only=True):
    """The same, each sample weighted by the time for which it stands.

    Attributes:
        covered_s: GPU seconds for which a sample stands: until the next one, at most one and a half
            intervals. Near-simultaneous rows are averaged first.
        uncovered_s: The rest of the window's GPU seconds; it is in no mean.
    """

    mean_util_pct: float | None
    active_fraction: float | None
    mean_memory_fraction: float | None
    covered_s: float
    uncovered_s: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What samples of a window amount to.

    Attributes:
        samples: Rows of GPUs and slices, as they stand in the files.
        expected_samples: Window over interval, for every series and for every allocated GPU that
            has none.
        coverage_fraction: Samples, each once, over expected; no series counts for more than it
            should.
        util_samples: Rows with a utilization; the mean and the active fraction are over these.
        active_fraction: Share of them at 5 percent or more.
        mean_memory_fraction: Over rows that have memory used and total.
        double_logged_rows: Rows less than 1 s after the one before them.
        energy_kwh: None when nothing could be integrated.
        covered_hours: GPU hours that the energy is of.
        energy_method: ``counter``, ``trapezoid``, ``counter and trapezoid``, or empty.
        counter_resets: Steps over which the counter fell; their energy is from the power.
        statuses: Rows by status.
        state_gpu_s: GPU seconds by state. Time for which no sample stands is silent where it lasts
            longer than three intervals, else ``no_sample``.
    """

    samples: int
    expected_samples: float
    coverage_fraction: float | None
    util_samples: int
    active_fraction: float | None
    mean_util_pct: float | None
    max_util_pct: float | None
    mean_memory_fraction: float | None
    mean_power_w: float | None
    double_logged_rows: int
    dedup: Deduplicated
    time_weighted: TimeWeighted
    energy_kwh: float | None
    covered_hours: float
    energy_method: str
    counter_resets: int
    statuses: dict[str, int]
    state_gpu_s: dict[str, float]


def figures_of(sums: Sums) -> Figures:
    """The figures of some sums."""
    integrated_s = sums.counter_s + sums.trapezoid_s
    energy_j = sums.counter_j + sums.trapezoid_j
    methods = [
        word
        for word, seconds in (("counter", sums.counter_s), ("trapezoid", sums.trapezoid_s))
        if seconds > 0
    ]
    return Figures(
        samples=sums.rows,
        expected_samples=sums.expected,
        coverage_fraction=_over(sums.seen, sums.expected),
        util_samples=sums.util_rows,
        active_fraction=_over(sums.active_rows, sums.util_rows),
        mean_util_pct=_over(sums.util_sum, sums.util_rows),
        max_util_pct=sums.util_max if math.isfinite(sums.util_max) else None,
        mean_memory_fraction=_over(sums.mem_sum, sums.mem_rows),
        mean_power_w=_over(sums.power_sum, sums.power_rows),
        double_logged_rows=sums.rows - sums.kept,
        dedup=Deduplicated(
            samples=sums.kept,
            mean_util_pct=_over(sums.kept_util_sum, sums.kept_util_rows),
            active_fraction=_over(sums.kept_active_rows, sums.kept_util_rows),
            mean_memory_fraction=_over(sums.kept_mem_sum, sums.kept_mem_rows),
        ),
        time_weighted=TimeWeighted(
            mean_util_pct=_over(sums.held_util_sum, sums.held_util_s),
            active_fraction=_over(sums.held_active_s, sums.held_util_s),
            mean_memory_fraction=_over(sums.held_mem_sum, sums.held_mem_s),
            covered_s=round(sums.held_s, 3),
            uncovered_s=round(max(0.0, sums.span_s - sums.held_s), 3),
        ),
        energy_kwh=energy_j / JOULES_PER_KWH if integrated_s > 0 else None,
        covered_hours=integrated_s / 3600,
        energy_method=" and ".join(methods),
        counter_resets=sums.resets,
        statuses=dict(sorted(sums.statuses.items())),
        state_gpu_s={
            state: round(sums.state_s[state], 3)
            for state in (*GpuState, NO_SAMPLE)
            if state in sums.state_s
        },
    )


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
