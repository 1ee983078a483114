"""What is tried next: rising until something does not hold, then at most two in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.calibration.records import MIB, Failure, Trial, Verdict
from fleetcraft.calibration.sweep.choose import Limits, choose
from fleetcraft.calibration.sweep.plan import (
    LARGEST_AUTOMATIC,
    line_bytes,
    next_step,
    preflight_batches,
    wanted_batches,
)
from fleetcraft.errors import UsageError
from tests.calibration.sweep.families import ROOMY, failed, skipped, trial


def sweep(
    run: Callable[[int], Trial],
    *,
    wanted: tuple[int, ...] | None = None,
    predictions: Mapping[int, int] | None = None,
    limits: Limits = ROOMY,
):
    """Plays a sweep to its end; returns its trials in the order of trying, and why it ended."""
    trials: list[Trial] = []
    while True:
        step = next_step(trials, wanted=wanted, predictions=predictions or {}, limits=limits)
        if step.batch is None:
            return trials, step.end
        assert len(trials) < 50
        assert step.batch not in {one.batch for one in trials}
        trials.append(
            run(step.batch) if step.skip is None else skipped(step.batch, step.skip,
                                                              detail=step.detail)
        )  # fmt: skip


def linear(base_mib: float, each_mib: float, *, fails_from: int = 1 << 30):
    """A family whose peak is a line, that scales, and that fails from some batch on."""

    def run(batch: int) -> Trial:
        if batch >= fails_from:
            return failed(batch)
        return trial(batch, peak_mib=base_mib + each_mib * batch, walls=(1.0, 1.0, 1.0))

    return run


def batches(trials: list[Trial], verdict: Verdict | None = None) -> list[int]:
    return [one.batch for one in trials if verdict is None or one.verdict is verdict]


# ------------------------------------------------------------------------------ 1, 2, 4, ...


def test_it_doubles_until_its_end_which_is_said():
    trials, end = sweep(linear(1, 1))

    assert batches(trials) == [1, 2, 4, 8, 16, 32, 64]
    assert batches(trials)[-1] == LARGEST_AUTOMATIC
    assert end.detail == "a sweep without a list ends at 64"


def test_it_stops_where_the_line_predicts_more_than_85_percent_and_tries_between():
    # 850 MiB are allowed: 4 takes 420 and 8 would take 820 more.
    trials, end = sweep(linear(20, 100))

    assert batches(trials) == [1, 2, 4, 8]
    assert end.reason == "headroom"

    trials, end = sweep(linear(20, 110))

    assert batches(trials) == [1, 2, 4, 7]  # 20 + 7 * 110 = 790, and 8 would take 900
    assert (end.reason, end.batch) == ("headroom", 8)
    assert "900.0 of 1000.0 MiB of the device for batch 8" in end.detail


def test_the_line_of_the_host_stops_it_too():
    def run(batch: int) -> Trial:
        return trial(batch, peak_mib=10, host_mib=900 * batch)

    trials, end = sweep(run)

    assert batches(trials) == [1, 2, 3]  # 85 % of 4000 MiB are 3.8 batches
    assert (end.reason, end.batch) == ("host_bound", 4)


def test_a_failure_that_the_line_did_not_see_halves_the_gap_twice():
    trials, end = sweep(linear(1, 1, fails_from=13))

    assert batches(trials) == [1, 2, 4, 8, 16, 12, 14]
    assert end.reason == "next_failed"


def test_after_a_failure_at_the_smaller_of_both_sizes_between_it_goes_down():
    trials, _ = sweep(linear(1, 1, fails_from=11))

    assert batches(trials) == [1, 2, 4, 8, 16, 12, 10]


@pytest.mark.parametrize("failure", [Failure.MASK_DROPPED, Failure.ERROR, Failure.STALLED])
def test_what_a_smaller_batch_cannot_cure_ends_it_at_once(failure):
    def run(batch: int) -> Trial:
        return trial(batch) if batch < 8 else failed(batch, failure)

    trials, end = sweep(run)

    assert batches(trials) == [1, 2, 4, 8]
    assert (end.reason, end.batch) == ("next_failed", 8)


def test_a_first_batch_that_fails_ends_it():
    trials, end = sweep(failed)

    assert batches(trials) == [1]
    assert end.reason == "next_failed"


def test_a_prediction_above_the_device_is_recorded_and_sizes_below_are_tried():
    predictions = {2**n: int((1 + 300 * 2**n) * MIB) for n in range(7)}

    trials, _ = sweep(linear(1, 300), predictions=predictions)

    # 4 would take 1201 of 1000 MiB; 3 would take 901, more than 85 %.
    assert batches(trials, Verdict.OK) == [1, 2]

    # The line alone, without the preflight, says the same of it, without a record.
    trials, end = sweep(linear(1, 300))
    assert batches(trials) == [1, 2]
    assert end.batch == 4


def test_the_preflight_skips_where_there_is_no_line_yet():
    trials, _ = sweep(linear(1, 600), predictions={1: int(601 * MIB), 2: int(1201 * MIB)})

    assert batches(trials, Verdict.OK) == [1]
    (skip,) = [one for one in trials if one.verdict is Verdict.SKIPPED]
    assert (skip.batch, skip.failure) == (2, Failure.PREDICTED)
    assert "1201.0 MiB" in skip.detail


def test_two_doublings_that_bring_nothing_end_it():
    def run(batch: int) -> Trial:
        return trial(batch, peak_mib=batch, walls=(float(batch),) * 3)

    trials, end = sweep(run)

    assert batches(trials) == [1, 2, 4]
    assert end.reason == "compute_saturated"
    assert choose(trials, semantics="independent", limits=ROOMY, end=end).batch == 1


def test_what_is_not_timed_is_not_called_flat():
    trials, _ = sweep(lambda batch: trial(batch, peak_mib=batch, walls=()))

    assert batches(trials)[-1] == LARGEST_AUTOMATIC


def test_a_first_batch_is_tried_whatever_is_predicted():
    trials, _ = sweep(failed, predictions={1: 1 << 60})

    assert batches(trials, Verdict.FAILED) == [1]


# ------------------------------------------------------------------------ a list of the user


def test_a_list_is_sorted_and_each_is_tried_once():
    assert wanted_batches([4, 1, 2, 4]) == (1, 2, 4)
    trials, end = sweep(linear(1, 1), wanted=(1, 2, 4))

    assert batches(trials) == [1, 2, 4]
    assert end.reason == "largest_tried"


def test_nothing_between_is_tried_beside_a_list():
    trials, _ = sweep(linear(1, 1, fails_from=8), wanted=(1, 4, 8))

    assert batches(trials) == [1, 4, 8]


def test_after_a_failure_the_rest_of_a_list_is_skipped_with_the_reason():
    trials, _ = sweep(linear(1, 1, fails_from=2), wanted=(1, 2, 4, 8))

    assert batches(trials, Verdict.SKIPPED) == [4, 8]
    assert {one.failure for one in trials[2:]} == {Failure.SMALLER_FAILED}
    assert trials[2].detail == (
        "batch 2 failed in backward2 (device_oom.capacity), so no larger one was tried"
    )


def test_a_list_is_skipped_from_what_is_predicted_not_to_fit():
    predictions = {1: 1, 4: int(1001 * MIB)}

    trials, _ = sweep(linear(1, 1), wanted=(1, 4, 8), predictions=predictions)

    assert batches(trials, Verdict.SKIPPED) == [4, 8]
    assert {one.failure for one in trials[1:]} == {Failure.PREDICTED}
    assert "batch 4" in trials[2].detail


def test_the_first_of_a_list_is_never_skipped():
    trials, _ = sweep(linear(1, 1), wanted=(8,), predictions={8: 1 << 60})

    assert batches(trials, Verdict.OK) == [8]


def test_a_list_goes_on_above_85_percent_since_it_was_asked_for():
    trials, _ = sweep(linear(0, 240), wanted=(1, 2, 4), predictions={4: int(960 * MIB)})

    assert batches(trials, Verdict.OK) == [1, 2, 4]


def test_a_list_does_not_go_where_the_line_is_above_the_device():
    trials, _ = sweep(linear(0, 300), wanted=(1, 2, 4))

    assert batches(trials, Verdict.OK) == [1, 2]
    assert trials[-1].failure is Failure.PREDICTED


@pytest.mark.parametrize("bad", [[], [0], [-1, 2]])
def test_a_list_of_anything_but_positive_numbers_is_refused(bad):
    with pytest.raises(UsageError, match="whole numbers from 1"):
        wanted_batches(bad)


def test_the_preflight_predicts_the_list_or_every_doubling():
    assert preflight_batches((3, 5)) == (3, 5)
    assert preflight_batches(None) == (1, 2, 4, 8, 16, 32, 64)


# ------------------------------------------------------------------------------- the line


def test_the_line_goes_through_the_last_two_and_never_falls():
    assert line_bytes([], 4) is None
    assert line_bytes([(1, 10)], 4) is None
    assert line_bytes([(1, 99), (2, 20), (4, 40)], 8) == 80
    assert line_bytes([(1, 20), (2, 10)], 8) == 10


_runs = st.dictionaries(
    st.integers(1, 64),
    st.tuples(
        st.floats(1, 1500), st.floats(1, 5000), st.floats(0.1, 10),
        st.sampled_from([None, None, None, Failure.CAPACITY, Failure.HOST_OOM, Failure.ERROR]),
    ),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    _runs,
    st.none() | st.lists(st.integers(1, 64), min_size=1, max_size=5),
    st.dictionaries(st.integers(1, 64), st.integers(1, int(2000 * MIB))),
)
def test_whatever_happens_a_sweep_ends_tries_the_first_and_nothing_above_a_failure(
    runs, asked, predictions
):
    wanted = None if asked is None else wanted_batches(asked)

    def run(batch: int) -> Trial:
        peak, host, wall, failure = runs.get(batch, (10.0 * batch, 20.0, 1.0, None))
        if failure is not None:
            return failed(batch, failure)
        return trial(batch, peak_mib=peak, host_mib=host, walls=(wall,) * 3)

    trials, end = sweep(run, wanted=wanted, predictions=predictions)

    assert end is not None
    assert trials[0].verdict is not Verdict.SKIPPED
    ran = [one for one in trials if one.verdict is not Verdict.SKIPPED]
    least = min(batches(trials, Verdict.FAILED), default=1 << 30)
    first = next((i for i, one in enumerate(ran) if one.verdict is Verdict.FAILED), len(ran))
    for one in ran[first + 1 :]:
        assert one.batch < max(batches(ran[: first + 1]))
    if wanted is not None:
        assert batches(trials) == list(wanted)
        assert all(one.batch <= least for one in ran)
    else:
        assert sum(1 for one in ran if one.batch & (one.batch - 1)) <= 2
