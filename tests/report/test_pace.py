"""How quickly tasks end, and when the rest may have ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.report.pace import MAX_BINS, bins_of, pace_of

NOW_S = 1_780_000_000.0
STEADY = [NOW_S - 60.0 * n for n in range(200, 0, -1)]
TIMES = st.lists(st.floats(1e9, 2e9), max_size=60)


@given(TIMES, TIMES)
def test_every_end_is_in_exactly_one_of_a_bounded_number_of_bins(
    completed: list[float], other: list[float]
) -> None:
    start_s, bin_s, done, rest = bins_of(completed, other)

    assert (sum(done), sum(rest)) == (len(completed), len(other))
    assert len(done) == len(rest) <= MAX_BINS + 1
    if completed + other:
        assert start_s is not None
        assert start_s <= min(completed + other)
        assert max(completed + other) < start_s + bin_s * (len(done) + 1)


@given(TIMES, st.integers(0, 10_000), st.floats(-1e4, 1e6))
def test_an_estimate_is_an_interval_or_a_reason(
    ends: list[float], left: int, later_s: float
) -> None:
    found = pace_of(ends, [], ends, left=left, now_s=max(ends, default=0.0) + later_s)

    assert found.eta_why
    if found.eta_s is not None:
        low_s, high_s = found.eta_s
        assert 0 <= low_s <= high_s


def test_at_a_steady_rate_the_interval_holds_the_time_that_the_rest_takes() -> None:
    found = pace_of(STEADY, [], STEADY, left=120, now_s=NOW_S)

    assert found.per_h == pytest.approx(60)
    assert found.eta_s is not None
    assert found.eta_s[0] < 120 * 60 < found.eta_s[1]


def test_tasks_that_end_in_waves_have_a_wider_interval() -> None:
    waves = [NOW_S - 1500.0 * (n // 25) - n % 25 for n in range(200)]

    calm = pace_of(STEADY, [], STEADY, left=120, now_s=NOW_S).eta_s
    rough = pace_of(waves, [], waves, left=120, now_s=NOW_S).eta_s

    assert calm is not None
    assert rough is not None
    assert rough[1] / rough[0] > 1.5 * calm[1] / calm[0]


def test_the_rate_is_that_of_late_not_that_of_all() -> None:
    slow = [NOW_S - 40_000 + 600.0 * n for n in range(50)]
    fast = [NOW_S - 600 + 6.0 * n for n in range(100)]

    found = pace_of(slow + fast, [], slow + fast, left=10, now_s=NOW_S)

    assert found.per_h is not None
    assert found.per_h > 30


@pytest.mark.parametrize(
    ("ends", "now_s", "hindrance", "why"),
    [
        (STEADY[:5], NOW_S, "", "fewer than"),
        (STEADY, NOW_S + 90_000, "", "no task has ended for"),
        (STEADY, None, "", "in the past"),
        (STEADY, NOW_S, "no worker is there", "no worker is there"),
        ([NOW_S] * 50, NOW_S, "", "at different times"),
    ],
)
def test_what_cannot_be_estimated_is_unknown_with_the_reason(
    ends: list[float], now_s: float | None, hindrance: str, why: str
) -> None:
    found = pace_of(ends, [], ends, left=7, now_s=now_s, hindrance=hindrance)

    assert found.eta_s is None
    assert why in found.eta_why


def test_with_nothing_left_no_time_is_left() -> None:
    assert pace_of(STEADY, [], STEADY, left=0, now_s=NOW_S).eta_s == (0.0, 0.0)
