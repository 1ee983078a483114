"""Throughput, slope, plateau and ETA of series that are known exactly."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.training.watching.pace import MOST_EVENTS, Pace


def steady(steps: int, *, step_s: float = 2.0, tokens: float = 100.0, warm_s: float = 0.0) -> Pace:
    pace = Pace(counts_from_s=warm_s)
    for step in range(steps + 1):
        pace.note(step * step_s, step, step * tokens)
    return pace


def test_a_steady_run_has_its_throughput_no_slope_and_a_plateau() -> None:
    pace = steady(40)
    assert pace.tokens_per_s() == pytest.approx(50.0)
    assert pace.tokens_per_s_now(80.0) == pytest.approx(50.0)
    assert pace.steps_per_s_now(80.0) == pytest.approx(0.5)
    assert pace.step_s() == (2.0, 20)
    assert pace.slope_per_minute() == pytest.approx(0.0, abs=1e-9)
    assert pace.is_flat(5)
    assert pace.eta_s(10) == (pytest.approx(20.0), pytest.approx(20.0))


def test_before_the_end_of_warm_up_nothing_is_measured_that_decides() -> None:
    pace = steady(10, warm_s=1000.0)
    assert pace.tokens_per_s() is None
    assert pace.step_s() is None
    assert pace.eta_s(10) is None
    assert not pace.is_flat(0)
    assert pace.tokens_per_s_now(20.0) == pytest.approx(50.0)


def test_a_slow_first_step_is_no_part_of_the_throughput_after_warm_up() -> None:
    pace = Pace(counts_from_s=300.0)
    pace.note(0.0, 0, 0.0)
    for step in range(1, 20):
        pace.note(290.0 + 2 * step, step, 100.0 * step)
    assert pace.tokens_per_s() == pytest.approx(50.0)


def test_the_throughput_now_falls_while_nothing_comes_and_the_measured_one_does_not() -> None:
    pace = steady(20)
    assert pace.tokens_per_s_now(42.0) == pytest.approx(50.0)
    assert pace.tokens_per_s_now(80.0) == pytest.approx(25.0)
    assert pace.tokens_per_s() == pytest.approx(50.0)


def test_a_rising_throughput_has_a_slope_and_no_plateau() -> None:
    pace = Pace(counts_from_s=0.0)
    tokens, now_s = 0.0, 0.0
    for step in range(60):
        pace.note(now_s, step, tokens)
        rate = 50.0 + now_s  # one token a second more each second
        tokens += 2.0 * rate
        now_s += 2.0
    assert pace.slope_per_minute() == pytest.approx(60.0, rel=0.02)
    assert not pace.is_flat(5)


def test_the_interval_of_the_eta_spans_slow_and_quick_stretches() -> None:
    pace = Pace(counts_from_s=0.0)
    now_s = 0.0
    for step in range(81):
        pace.note(now_s, step, None)
        now_s += 1.0 if (step // 10) % 2 else 3.0
    low, high = pace.eta_s(100) or (0.0, 0.0)
    assert (low, high) == (pytest.approx(100.0), pytest.approx(300.0))


def test_saves_belong_to_the_steps_between_them() -> None:
    pace = Pace(counts_from_s=0.0)
    now_s = 0.0
    for step in range(161):
        pace.note(now_s, step, None)
        now_s += 61.0 if step % 10 == 9 else 1.0
    low, high = pace.eta_s(100) or (0.0, 0.0)
    assert low <= 700.0 <= high
    assert low >= 600.0


def test_without_tokens_there_is_no_throughput_but_a_step_time_and_a_plateau() -> None:
    pace = Pace(counts_from_s=0.0)
    for step in range(30):
        pace.note(step * 2.0, step, None)
    assert pace.tokens_per_s() is None
    assert pace.slope_per_minute() is None
    assert pace.step_s() == (2.0, 20)
    assert pace.is_flat(5)


def test_tokens_without_steps_give_a_throughput() -> None:
    pace = Pace(counts_from_s=0.0)
    for look in range(30):
        pace.note(look * 1.0, None, look * 7.0)
    assert pace.tokens_per_s() == pytest.approx(7.0)
    assert pace.steps_per_s_now(29.0) is None


def test_memory_is_bounded_and_old_events_are_thinned_not_dropped() -> None:
    pace = steady(20_000)
    assert len(pace._events) <= MOST_EVENTS
    assert pace._events[0].step == 0
    assert pace.step_s() == (2.0, 20)
    assert pace.eta_s(1000) == (pytest.approx(2000.0), pytest.approx(2000.0))


def test_a_run_that_began_anew_has_no_pace_of_before() -> None:
    pace = steady(40)
    pace.begin_anew(1000.0)
    assert pace.tokens_per_s_now(100.0) is None
    assert pace.slope_per_minute() is None
    assert not pace.is_flat(0)


def test_noise_makes_no_plateau_vanish() -> None:
    pace, now_s = Pace(counts_from_s=0.0), 0.0
    chance = random.Random(7)
    for step in range(200):
        pace.note(now_s, step, 100.0 * step)
        now_s += 2.0 * chance.uniform(0.9, 1.1)
    assert pace.is_flat(5)


@given(
    st.lists(st.tuples(st.floats(0.01, 50), st.integers(0, 3), st.integers(0, 100)), max_size=60)
)
def test_no_series_makes_a_figure_negative_or_an_interval_empty(
    looks: list[tuple[float, int, int]],
) -> None:
    pace = Pace(counts_from_s=10.0)
    now_s, step, tokens = 0.0, 0, 0
    for later_s, steps, more in looks:
        now_s, step, tokens = now_s + later_s, step + steps, tokens + more
        pace.note(now_s, step, float(tokens))
        for figure in (pace.tokens_per_s(), pace.tokens_per_s_now(now_s)):
            assert figure is None or figure >= 0
        eta_s = pace.eta_s(10)
        assert eta_s is None or 0 < eta_s[0] <= eta_s[1]
