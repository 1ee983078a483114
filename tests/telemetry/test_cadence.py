"""When samples are due: whatever the interval, the moment, and however the clock is set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.telemetry.logger.cadence import LEAST_DISTANCE_S, next_tick_s, realigned_s

MOMENTS = st.floats(min_value=0, max_value=4e9)
INTERVALS = st.one_of(st.sampled_from([0.1, 0.25, 1, 7, 30, 60, 86400]), st.floats(0.1, 86400))
BLUR_S = 1e-5  # of times around 4e9 in a float, and of their quotients


@given(now_s=MOMENTS, interval_s=INTERVALS)
def test_a_tick_is_a_whole_multiple_soon_but_not_at_once(now_s: float, interval_s: float) -> None:
    tick_s = next_tick_s(now_s, interval_s)
    least_s = min(LEAST_DISTANCE_S, interval_s / 2)
    assert abs(round(tick_s / interval_s) * interval_s - tick_s) < BLUR_S
    assert now_s + least_s - BLUR_S <= tick_s <= now_s + least_s + interval_s + BLUR_S


@given(
    now_s=MOMENTS,
    interval_s=INTERVALS,
    lates=st.lists(st.floats(min_value=0, max_value=0.4), max_size=20),
)
def test_samples_that_begin_late_cause_no_drift(
    now_s: float, interval_s: float, lates: list[float]
) -> None:
    first = next_tick_s(now_s, interval_s)
    tick_s = first
    for late in lates:
        tick_s = next_tick_s(tick_s + late * interval_s + BLUR_S, interval_s)
    assert round(tick_s / interval_s) - round(first / interval_s) == len(lates)


@given(now_s=MOMENTS, interval_s=INTERVALS, took=st.floats(min_value=1, max_value=50))
def test_what_passed_during_a_long_sample_is_left_out(
    now_s: float, interval_s: float, took: float
) -> None:
    ended_s = now_s + took * interval_s
    tick_s = next_tick_s(now_s, interval_s, ended_s)
    assert ended_s - BLUR_S <= tick_s <= ended_s + interval_s + BLUR_S


@given(now_s=MOMENTS, interval_s=INTERVALS, waited=st.floats(min_value=0, max_value=1))
def test_a_clock_that_just_goes_on_realigns_nothing(
    now_s: float, interval_s: float, waited: float
) -> None:
    tick_s = next_tick_s(now_s, interval_s)
    assert realigned_s(tick_s, now_s + waited * (tick_s - now_s), interval_s) == tick_s


@given(now_s=MOMENTS, interval_s=INTERVALS, then_s=MOMENTS)
def test_however_the_clock_is_set_the_wait_is_bounded_and_comes_to_its_end(
    now_s: float, interval_s: float, then_s: float
) -> None:
    tick_s = realigned_s(next_tick_s(now_s, interval_s), then_s, interval_s)
    assert tick_s - then_s <= 1.5 * interval_s + LEAST_DISTANCE_S + BLUR_S
    # From then on the clock goes on, and the tick must not run away from it.
    for part in (0.25, 0.5, 0.9, 0.999):
        again_s = realigned_s(tick_s, then_s + part * (tick_s - then_s), interval_s)
        assert tick_s <= then_s or again_s == tick_s
