"""Folding the driver's buffer of utilization samples into rows: numbers in, numbers out.

Not here: how the buffer is read. Time stamps are microseconds since 1970, as the driver gives them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.gpu.sampling.utilization import PERIOD_US, Fold

NOW_US = 1_780_000_000_000_000
NOW_S = NOW_US / 1e6

percents = st.integers(0, 100)
impossible = st.sampled_from([101, 4294967295, 9223372036854775807, -1, math.nan, math.inf])
steps = st.integers(1, 4 * PERIOD_US)
series = st.lists(st.tuples(steps, percents), min_size=1, max_size=200)


def stamps(series: list[tuple[int, object]]) -> list[int]:
    """Time stamps with these steps between them, the last of them now."""
    times, at_us = [], NOW_US - sum(step for step, _ in series)
    for step, _ in series:
        at_us += step
        times.append(at_us)
    return times


def fold(interval_s: float = 10_000.0, last_us: int = 0) -> Fold:
    """A fold, which has seen a sample of this stamp."""
    fold = Fold(interval_s)
    if last_us:
        fold.add([last_us], [0], last_us / 1e6)
        fold.take()
    return fold


@given(series)
def test_a_mean_lies_between_least_and_greatest_and_every_sample_counts(
    series: list[tuple[int, int]],
) -> None:
    values = [value for _, value in series]
    row = fold()
    row.add(stamps(series), values, NOW_S)
    folded = row.take()
    assert (folded.count, folded.invalid, folded.max_pct) == (len(values), 0, max(values))
    assert folded.mean_pct is not None
    assert min(values) - 1e-9 <= folded.mean_pct <= max(values)
    assert row.take() == fold().take()  # it begins anew


@given(st.lists(percents, min_size=1, max_size=200), st.integers(1, PERIOD_US))
def test_of_even_samples_the_mean_is_the_plain_one(values: list[int], step: int) -> None:
    row = fold(last_us=NOW_US - step * len(values))
    row.add(stamps([(step, value) for value in values]), values, NOW_S)
    assert row.take().mean_pct == pytest.approx(sum(values) / len(values))


def mean_over_time(series: list[tuple[int, int]]) -> float:
    return sum(step * value for step, value in series) / sum(step for step, _ in series)


@given(
    st.integers(100_000, 900_000),
    st.lists(st.tuples(st.floats(-0.1, 0.1), percents), min_size=1, max_size=150),
)
def test_of_samples_that_jitter_the_mean_is_that_over_time_within_a_little(
    period_us: int, shape: list[tuple[float, int]]
) -> None:
    series = [(round(period_us * (1 + jitter)), value) for jitter, value in shape]
    row = fold(last_us=NOW_US - sum(step for step, _ in series))
    row.add(stamps(series), [value for _, value in series], NOW_S)
    assert row.take().mean_pct == pytest.approx(mean_over_time(series), abs=10)


@given(st.lists(percents, min_size=10, max_size=80), st.lists(percents, min_size=10, max_size=80))
def test_of_samples_at_two_rates_the_mean_is_that_over_time(
    slow: list[int], fast: list[int]
) -> None:
    series = [(900_000, value) for value in slow] + [(100_000, value) for value in fast]
    row = fold(last_us=NOW_US - sum(step for step, _ in series))
    row.add(stamps(series), [value for _, value in series], NOW_S)
    assert row.take().mean_pct == pytest.approx(mean_over_time(series))


def test_a_longer_time_weighs_more() -> None:
    row = fold(last_us=NOW_US - 1_000_000)
    row.add([NOW_US - 900_000, NOW_US - 800_000, NOW_US], [0, 0, 100], NOW_S)
    assert row.take().mean_pct == 80


def test_a_time_without_samples_weighs_nothing() -> None:
    times = [NOW_US - 20_000_000 + n * 200_000 for n in range(10)]
    times += [NOW_US - 2_000_000 + n * 200_000 for n in range(10)]
    row = fold(last_us=times[0] - 200_000)
    row.add(times, [0] * 10 + [100] * 10, NOW_S)
    assert row.take().mean_pct == 50


@given(series, st.integers(0, 200))
def test_drained_in_between_a_row_has_the_same_samples(
    series: list[tuple[int, int]], cut: int
) -> None:
    times, values = stamps(series), [value for _, value in series]
    whole, parts = fold(), fold()
    whole.add(times, values, NOW_S)
    parts.add(times[:cut], values[:cut], NOW_S)
    parts.add(times[cut:], values[cut:], NOW_S)
    first, second = whole.take(), parts.take()
    assert (first.count, first.max_pct) == (second.count, second.max_pct)
    assert whole.since_us == parts.since_us == times[-1]


@given(st.lists(st.tuples(steps, percents | impossible), min_size=1, max_size=100))
def test_what_cannot_be_is_counted_and_enters_nothing(
    series: list[tuple[int, float]],
) -> None:
    values = [value for _, value in series]
    valid = [value for value in values if 0 <= value <= 100]
    row = fold()
    row.add(stamps(series), values, NOW_S)
    folded = row.take()
    assert (folded.count, folded.invalid) == (len(valid), len(values) - len(valid))
    if not valid:
        assert (folded.mean_pct, folded.max_pct) == (None, None)
    else:
        assert folded.mean_pct is not None
        assert min(valid) - 1e-9 <= folded.mean_pct <= max(valid) == folded.max_pct


@given(series, st.integers(0, 199))
def test_what_was_seen_before_is_not_counted_again(
    series: list[tuple[int, int]], seen: int
) -> None:
    times, values = stamps(series), [value for _, value in series]
    seen = min(seen, len(times) - 1)
    row = fold(last_us=times[seen])
    row.add(times, values, NOW_S)
    assert row.take().count == len(times) - seen - 1


def test_before_the_first_row_only_its_own_time_counts() -> None:
    times = [NOW_US - age_s * 1_000_000 for age_s in range(60, 0, -1)]
    row = Fold(interval_s=30.0)
    row.add(times, [100] * 30 + [0] * 30, NOW_S)
    folded = row.take()
    assert (folded.count, folded.mean_pct) == (29, 0)


def test_a_buffer_from_hours_ago_belongs_to_no_row() -> None:
    row = Fold(interval_s=30.0)
    row.add([NOW_US - 7200_000_000, NOW_US - 7199_000_000], [100, 100], NOW_S)
    assert row.take().count == 0
    row.add([NOW_US], [7], NOW_S)
    assert row.take().mean_pct == 7


def test_a_driver_that_counts_from_its_start_is_taken_by_its_own_time() -> None:
    times = [5_000_000_000 - age_s * 1_000_000 for age_s in range(60, -1, -1)]
    row = Fold(interval_s=10.0)
    row.add(times, [100] * 51 + [0] * 10, NOW_S)
    folded = row.take()
    assert (folded.count, folded.mean_pct) == (10, 0)


class Driver:
    """A driver's buffer of the last hundred samples, and its answers, as NVML describes them."""

    ROOM = 100
    STEP_US = 200_000

    def __init__(self) -> None:
        self.now_us = NOW_US
        self.taken = 0
        self.buffer: list[tuple[int, int]] = []

    def sample(self, times: int) -> None:
        """Takes some samples, whose values are their numbers."""
        for _ in range(times):
            self.now_us += self.STEP_US
            self.buffer = [*self.buffer, (self.now_us, self.taken)][-self.ROOM :]
            self.taken += 1

    def newer(self, since_us: int) -> tuple[int, list[int], list[float]]:
        found = [one for one in self.buffer if one[0] > since_us]
        code = 0 if found else 6
        return code, [time for time, _ in found], [value for _, value in found]


class Recorder(Fold):
    """A fold that writes down what enters it."""

    def __init__(self) -> None:
        super().__init__(interval_s=100.0)
        self.entered: list[float] = []

    def _add(
        self, times_us: Sequence[int], values_pct: Sequence[float], before_us: int | None
    ) -> None:
        super()._add(times_us, values_pct, before_us)
        self.entered.extend(values_pct)


def drain(driver: Driver, row: Recorder) -> int:
    """What a reader does with the driver's answers; how many samples came."""
    before = len(row.entered)
    now_s = driver.now_us / 1e6
    code, times, values = driver.newer(row.since_us)
    if code == 0:
        row.add(times, values, now_s)
    elif row.is_overdue(now_s):
        row.add_whole(*driver.newer(0)[1:], now_s)
    row.take()
    return len(row.entered) - before


moves = st.tuples(st.integers(0, 60), st.integers(-40_000_000, 40_000_000) | st.just(0))


@given(st.lists(moves, min_size=1, max_size=12))
def test_whatever_the_clock_does_no_sample_is_counted_twice(moves: list[tuple[int, int]]) -> None:
    driver, row = Driver(), Recorder()
    for samples, step_us in moves:
        driver.sample(samples)
        drain(driver, row)
        drain(driver, row)
        driver.now_us += step_us
        driver.sample(1)
    assert len(set(row.entered)) == len(row.entered)


@given(st.integers(1, 100), st.integers(1, 100), st.integers(30, 3600), st.integers(0, 50))
def test_after_the_clock_went_back_new_samples_are_found_and_counted_once(
    old: int, new: int, back_s: int, later: int
) -> None:
    driver, row = Driver(), Recorder()
    driver.sample(old)
    assert drain(driver, row) == old
    driver.now_us -= back_s * 1_000_000
    driver.sample(new)
    assert drain(driver, row) == new
    assert drain(driver, row) == 0
    driver.sample(later)
    assert drain(driver, row) == later
    driver.sample(100)
    drain(driver, row)
    assert row.since_us == driver.now_us  # nothing of before is left: it asks as usual


def test_with_nothing_new_the_whole_buffer_gives_nothing() -> None:
    times = [NOW_US - 1_000_000, NOW_US]
    row = fold()
    row.add(times, [1, 2], NOW_S)
    row.take()
    row.add_whole(times, [1, 2], NOW_S)
    row.add_whole([], [], NOW_S)
    row.add([], [], NOW_S)
    assert row.take().count == 0


def test_the_buffer_is_looked_through_only_when_a_sample_is_overdue() -> None:
    row = fold()
    assert not row.is_overdue(NOW_S)  # nothing was seen yet
    row = fold(last_us=NOW_US)
    assert not row.is_overdue(NOW_S + 1)
    assert row.is_overdue(NOW_S + 5)
    assert row.is_overdue(NOW_S - 5)


def test_stamps_that_stand_still_count_like_any_other() -> None:
    row = fold(last_us=NOW_US - 1)
    row.add([NOW_US] * 4, [10, 20, 30, 40], NOW_S)
    folded = row.take()
    assert (folded.count, folded.mean_pct) == (4, 25)
