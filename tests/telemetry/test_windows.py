"""Windows of time, and what the samples of one series amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import UsageError
from fleetcraft.gpu.states import GpuState
from fleetcraft.telemetry.windows.figures import Figures, figures_of
from fleetcraft.telemetry.windows.span import (
    NO_SAMPLE,
    Series,
    Sums,
    holds_s,
    interval_of,
    iso,
    kept_rows,
    measure,
    window_at,
)

NAN = math.nan
NOON = 1_800_000_000.0


def series(
    t_s: Sequence[float],
    util: Sequence[float] | float = 50.0,
    *,
    used: Sequence[float] | float = 1000.0,
    total: Sequence[float] | float = 2000.0,
    power: Sequence[float] | float = 100.0,
    energy: Sequence[float] | float = NAN,
    status: Sequence[str] | str = "ok",
    interval_s: float = 30.0,
    from_s: float = -math.inf,
    until_s: float = math.inf,
) -> Series:
    count = len(t_s)

    def column(values: Sequence[float] | float) -> np.ndarray:
        listed = [values] * count if isinstance(values, float) else list(values)
        return np.array(listed, dtype=np.float64)

    return Series(
        host="n1",
        key="GPU-0",
        zoned=True,
        sources=(0,),
        interval_s=interval_s,
        t_s=np.array(t_s, dtype=np.float64),
        util_pct=column(util),
        mem_used_mib=column(used),
        mem_total_mib=column(total),
        power_w=column(power),
        energy_j=column(energy),
        status=[status] * count if isinstance(status, str) else list(status),
        from_s=from_s,
        until_s=until_s,
    )


def measured(rows: Series, end_s: float = 300.0) -> Figures:
    return figures_of(measure(rows, 0.0, end_s))


EVERY_30 = [30.0 * n for n in range(1, 11)]


# --------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("text", "end_s", "local_s"),
    [
        ("2027-01-15T08:00:00Z", NOON, NOON),
        ("2027-01-15T08:00:00", NOON, NOON),
        ("2027-01-15T03:00:00-05:00", NOON, NOON - 5 * 3600),
        (" 2027-01-15 08:00:00.250 ", NOON + 0.25, NOON + 0.25),
    ],
)
def test_an_end_is_utc_for_our_files_and_the_files_own_clock_for_archives(
    text: str, end_s: float, local_s: float
) -> None:
    window = window_at(300, text, now_s=0)
    assert window.bounds_s(zoned=True) == (end_s - 300, end_s)
    assert window.bounds_s(zoned=False) == (local_s - 300, local_s)


def test_a_window_without_an_end_ends_at_the_last_whole_second() -> None:
    assert window_at(60, None, now_s=NOON + 0.9).bounds_s(zoned=True) == (NOON - 60, NOON)


@pytest.mark.parametrize(
    ("seconds", "end"),
    [
        *((0, None), (-5, None), (NAN, None), (math.inf, None), (1e15, None), (300, "noon")),
        *((300, "2027-13-01"), (300, "0001-01-01T00:00:00")),
    ],
)
def test_what_is_no_window_is_a_usage_error(seconds: float, end: str | None) -> None:
    with pytest.raises(UsageError, match="not a|begins before year 1"):
        window_at(seconds, end, now_s=NOON)


def test_times_are_written_with_a_zone_only_where_it_is_known() -> None:
    assert iso(NOON, zoned=True) == "2027-01-15T08:00:00Z"
    assert iso(NOON + 0.25, zoned=False) == "2027-01-15T08:00:00.250"
    assert iso(NOON + 0.000001, zoned=False) == "2027-01-15T08:00:00.000001"


# ---------------------------------------------------------------------------------------- samples


def test_the_end_of_all_dates_is_a_text_like_any_other() -> None:
    assert iso(253_402_300_799.9999999, zoned=True).startswith("9999-12-31T23:59:59.99")
    assert iso(-62_135_596_800.0, zoned=False) == "0001-01-01T00:00:00"


def test_a_row_less_than_a_second_after_the_last_kept_one_is_a_repetition() -> None:
    t_s = np.array([0.0, 0.4, 0.9, 1.0, 1.5, 2.1, 30.0])
    assert kept_rows(t_s).tolist() == [0, 3, 5, 6]


def test_rows_of_a_fast_logger_are_no_repetitions() -> None:
    t_s = [0.46, 1.0, 1.999, 3.001]
    slow = series(t_s)
    fast = series(t_s, interval_s=1.0)
    fast.interval_from = "sidecar"
    assert measured(slow).double_logged_rows == 1
    assert measured(fast).double_logged_rows == 0


def test_of_steps_the_middle_one_is_the_interval_and_two_steps_tell_nothing() -> None:
    assert interval_of(np.array([0.0, 30.05, 60.1, 500.0, 530.05])) == 30.0
    assert interval_of(np.array([0.0, 30.0, 60.0])) is None


def test_a_sample_stands_until_the_next_and_never_beyond_one_and_a_half_intervals() -> None:
    held = holds_s(np.array([0.0, 10.0, 200.0]), 230.0, 30.0)
    assert held.tolist() == [10.0, 45.0, 30.0]


def test_full_coverage_counts_every_row_and_no_more() -> None:
    figures = measured(series(EVERY_30, [0, 4.9, 5, 100, 0, 0, 0, 0, 0, 0]))
    assert figures.samples == figures.util_samples == 10
    assert figures.expected_samples == 10
    assert figures.coverage_fraction == 1.0
    assert figures.active_fraction == 0.2
    assert figures.mean_util_pct == pytest.approx(10.99)
    assert figures.max_util_pct == 100
    assert figures.mean_memory_fraction == 0.5


def test_half_the_samples_are_half_the_coverage() -> None:
    figures = measured(series([30.0, 60.0, 90.0, 120.0, 150.0]))
    assert figures.coverage_fraction == 0.5
    assert figures.time_weighted.covered_s == 4 * 30 + 45
    assert figures.time_weighted.uncovered_s == 300 - 165


def test_what_was_not_measured_is_in_no_mean() -> None:
    figures = measured(series(EVERY_30, [80] + [NAN] * 9, used=NAN, power=NAN))
    assert (figures.samples, figures.util_samples) == (10, 1)
    assert figures.mean_util_pct == 80
    assert figures.active_fraction == 1.0
    assert figures.time_weighted.mean_util_pct == 80
    assert figures.mean_memory_fraction is None
    assert figures.mean_power_w is None
    assert figures.energy_kwh is None
    assert figures.covered_hours == 0


def test_no_row_at_all_has_no_figure_and_no_failure() -> None:
    figures = figures_of(Sums())
    assert figures.mean_util_pct is figures.coverage_fraction is figures.max_util_pct is None


def test_a_total_of_zero_is_no_memory_fraction() -> None:
    assert measured(series(EVERY_30, total=0.0)).mean_memory_fraction is None


def test_double_logged_rows_are_counted_once_in_coverage_and_both_means_are_given() -> None:
    t_s = sorted(EVERY_30 + [t + 0.3 for t in EVERY_30])
    figures = measured(series(t_s, [100, 0] * 10))
    assert figures.samples == 20
    assert figures.double_logged_rows == 10
    assert figures.coverage_fraction == 1.0
    assert figures.mean_util_pct == 50
    assert figures.dedup.samples == 10
    assert figures.dedup.mean_util_pct == 100
    assert figures.time_weighted.mean_util_pct == 50  # rows of one sample are averaged


def test_a_long_reading_weighs_more_than_a_short_one() -> None:
    figures = measured(series([0.0, 10.0], [0, 100], interval_s=30.0), end_s=40.0)
    assert figures.mean_util_pct == 50
    assert figures.time_weighted.mean_util_pct == 75


# ----------------------------------------------------------------------------------------- energy


def test_the_counter_gives_the_energy_where_there_is_one() -> None:
    figures = measured(series(EVERY_30, energy=[1000.0 * n for n in range(10)], power=1.0))
    assert figures.energy_kwh == pytest.approx(9000 / 3.6e6)
    assert figures.covered_hours == pytest.approx(270 / 3600)
    assert figures.energy_method == "counter"


def test_a_counter_that_fell_is_a_reset_and_power_speaks_for_that_step() -> None:
    figures = measured(series([30.0, 60.0, 90.0], energy=[5000.0, 8000.0, 40.0], power=200.0))
    assert figures.counter_resets == 1
    assert figures.energy_kwh == pytest.approx((3000 + 200 * 30) / 3.6e6)
    assert figures.energy_method == "counter and trapezoid"


def test_a_counter_that_was_read_as_zero_once_adds_no_energy_when_it_is_back() -> None:
    counter = [5e8, 5e8 + 3000, 0.0, 5e8 + 9000, 5e8 + 12000]
    figures = measured(series([30.0, 60.0, 90.0, 120.0, 150.0], energy=counter, power=100.0))
    assert figures.energy_kwh == pytest.approx(4 * 3000 / 3.6e6)
    assert figures.covered_hours == pytest.approx(120 / 3600)
    assert figures.counter_resets == 1


def test_a_counter_that_was_read_as_zero_soon_after_it_began_adds_none_either() -> None:
    counter = [2e6, 2e6 + 3000, 0.0, 2e6 + 9000, 2e6 + 12000]
    figures = measured(series([30.0, 60.0, 90.0, 120.0, 150.0], energy=counter, power=100.0))
    assert figures.energy_kwh == pytest.approx(4 * 3000 / 3.6e6)
    assert figures.counter_resets == 1


@pytest.mark.parametrize("first", [15.0, 29.99])
def test_rows_of_two_times_that_one_clock_has_told_are_no_energy_of_their_own(first: float) -> None:
    """The clock was set back half an hour: in between, rows of two times take turns."""
    before = [(30.0 * n, 300 * 30.0 * n) for n in range(1, 81)]
    after = [(first + 600 + 30.0 * n, 300 * (2400 + 30.0 * n)) for n in range(1, 81)]
    t_s, counter = zip(*sorted(before + after), strict=True)
    figures = measured(series(t_s, energy=counter, power=300.0), end_s=3630.0)
    hours = figures.covered_hours
    once_kwh = 0.3 * 1800 / 3600  # what was drawn while the clock told times again
    assert 0.3 * hours - 0.001 <= (figures.energy_kwh or 0.0) <= 0.3 * hours + once_kwh + 0.01


def test_two_loggers_that_read_a_counter_out_of_order_are_no_reset() -> None:
    figures = measured(series([30.0, 30.2, 60.0, 60.2], energy=[1000.0, 999.0, 4000.0, 3999.0]))
    assert figures.counter_resets == 0


@pytest.mark.parametrize(("step", "counts"), [(34.9, True), (35.0, False), (600.0, False)])
def test_no_gap_is_bridged(step: float, counts: bool) -> None:
    figures = measured(series([30.0, 30.0 + step], power=360.0), end_s=1000.0)
    assert figures.energy_kwh == (pytest.approx(360 * step / 3.6e6) if counts else None)
    bridged = measured(series([30.0, 30.0 + step], energy=[0.0, 1e6], power=NAN), end_s=1000.0)
    assert (bridged.energy_kwh is not None) is counts


def test_a_slow_cadence_has_longer_gaps() -> None:
    figures = measured(series([60.0, 120.0], power=360.0, interval_s=60.0))
    assert figures.covered_hours == pytest.approx(60 / 3600)


# ----------------------------------------------------------------------------------------- states


def test_time_is_filed_under_the_state_that_each_sample_shows() -> None:
    rows = series(
        [30.0, 60.0, 90.0, 120.0, 150.0],
        [90, 0, 0, NAN, NAN],
        used=[5000.0, 5000.0, 3.0, NAN, NAN],
        status=["ok", "ok", "ok", "timeout", "lost"],
    )
    figures = measured(rows, end_s=180.0)
    assert figures.state_gpu_s == {
        GpuState.WORKING: 30.0,
        GpuState.RESIDENT_IDLE: 30.0,
        GpuState.FREE_IDLE: 30.0,
        GpuState.LOST: 30.0,
        GpuState.UNKNOWN: 30.0,
        NO_SAMPLE: 30.0,
    }
    assert figures.statuses == {"lost": 1, "ok": 3, "timeout": 1}


def test_a_long_pause_is_silence_and_a_short_one_is_not() -> None:
    silent = measured(series([10.0, 200.0, 290.0]))
    assert silent.state_gpu_s[GpuState.SILENT] == 190 - 45
    assert silent.state_gpu_s[NO_SAMPLE] == 10 + (90 - 45)


def test_before_its_logger_began_and_after_it_stopped_a_gpu_is_not_silent() -> None:
    figures = measured(series([200.0, 230.0], from_s=190.0, until_s=240.0))
    assert GpuState.SILENT not in figures.state_gpu_s
    assert figures.state_gpu_s[NO_SAMPLE] == 10


# ------------------------------------------------------------------------------------- properties

times = st.lists(st.floats(0.001, 3600.0), min_size=1, max_size=40).map(sorted)
readings = st.one_of(st.just(NAN), st.floats(0, 100))


@given(t_s=times, data=st.data())
def test_sums_of_parts_are_the_sums_of_the_whole_and_every_share_is_a_share(
    t_s: list[float], data: st.DataObject
) -> None:
    util = data.draw(st.lists(readings, min_size=len(t_s), max_size=len(t_s)))
    sums = measure(series(t_s, util), 0.0, 3600.0)
    figures = figures_of(sums)
    assert figures.samples == len(t_s)
    assert figures.dedup.samples + figures.double_logged_rows == len(t_s)
    for share in (figures.coverage_fraction, figures.active_fraction):
        assert share is None or 0 <= share <= 1
    for mean in (figures.mean_util_pct, figures.time_weighted.mean_util_pct):
        assert mean is None or -1e-9 <= mean <= 100 + 1e-9
    held = figures.time_weighted
    assert held.covered_s + held.uncovered_s == pytest.approx(3600.0, abs=0.01)
    assert sum(figures.state_gpu_s.values()) == pytest.approx(3600.0, abs=0.05)
    twice = Sums()
    twice.add(sums)
    twice.add(sums)
    doubled = figures_of(twice)
    assert doubled.samples == 2 * figures.samples
    assert doubled.mean_util_pct == pytest.approx(figures.mean_util_pct)
