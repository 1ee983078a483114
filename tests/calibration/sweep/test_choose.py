"""The choice: throughput beyond noise, under headroom, semantics proven."""

from __future__ import annotations

import math
import random
import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetcraft.calibration.records import MIB, Check, Failure, PhaseRecord, Verdict
from fleetcraft.calibration.sweep.choose import End, Limits, choose, device_need_bytes, gain
from tests.calibration.sweep.families import (
    PROVEN,
    ROOMY,
    failed,
    simulated,
    skipped,
    trial,
)


def pick(trials, *, semantics="independent", limits=ROOMY, **other):
    return choose(trials, semantics=semantics, limits=limits, **other)


# ------------------------------------------------------------------------------- simulated


def saturated(batch: int) -> float:
    return 0.92 if batch == 1 else 0.92 * 0.98


def scaling(batch: int) -> float:
    return 0.5 * 1.8 ** math.log2(batch)


def cliff(batch: int) -> float:
    return {1: 1.0, 2: 1.8, 4: 0.6}[batch]


@pytest.mark.parametrize("seed", range(25))
def test_a_saturated_family_keeps_batch_one_through_noise(seed):
    choice = pick(simulated(saturated, (1, 2), noise=0.02, seed=seed))

    assert (choice.batch, choice.reason) == (1, "compute_saturated")
    assert (choice.next_batch, choice.next_verdict) == (2, Verdict.OK)
    assert choice.throughput_gain == pytest.approx(-0.02, abs=0.12)


def test_a_saturated_family_without_noise_has_the_gain_that_was_simulated():
    choice = pick(simulated(saturated, (1, 2), noise=0.0, seed=0))

    assert (choice.batch, choice.reason) == (1, "compute_saturated")
    assert choice.throughput_gain == pytest.approx(-0.02)


@pytest.mark.parametrize("seed", range(25))
def test_a_scaling_family_takes_the_largest_batch_through_noise(seed):
    choice = pick(simulated(scaling, (1, 2, 4, 8), noise=0.02, seed=seed))

    assert (choice.batch, choice.reason, choice.next_batch) == (8, "largest_tried", None)


@pytest.mark.parametrize("seed", range(25))
def test_a_throughput_cliff_keeps_the_batch_before_it(seed):
    choice = pick(simulated(cliff, (1, 2, 4), noise=0.02, seed=seed))

    assert (choice.batch, choice.reason, choice.next_batch) == (2, "compute_saturated", 4)
    assert choice.throughput_gain < -0.5


def test_a_small_rise_within_wide_noise_is_no_rise():
    """A gain of 8 % whose standard error is above 4 % is not believed."""
    noisy = [trial(1, walls=(0.9, 1.0, 1.1)), trial(2, walls=(1.7, 1.85, 2.0))]
    steady = [trial(1, walls=(0.999, 1.0, 1.001)), trial(2, walls=(1.849, 1.85, 1.851))]

    assert pick(noisy).batch == 1
    assert pick(steady).batch == 2


def test_wide_noise_rarely_makes_a_saturated_family_look_better():
    wrong = [
        seed
        for seed in range(400)
        if pick(simulated(saturated, (1, 2), noise=0.06, seed=seed)).batch != 1
    ]

    assert len(wrong) <= 16  # 4 %: what two standard errors of three draws let through


def test_many_small_rises_that_are_each_no_gain_are_not_added_up():
    choice = pick([trial(1, walls=(1.0,) * 3), trial(2, walls=(2 / 1.04,) * 3),
                   trial(4, walls=(4 / 1.08,) * 3)])  # fmt: skip

    assert (choice.batch, choice.next_batch) == (1, 2)


def test_a_dip_is_passed_over_only_by_what_beats_the_batch_before_it():
    dip = [trial(1, walls=(1.0,) * 3), trial(2, walls=(2 / 0.9,) * 3)]

    assert pick([*dip, trial(4, walls=(4 / 1.5,) * 3)]).batch == 4
    assert pick([*dip, trial(4, walls=(4 / 0.97,) * 3)]).batch == 1


# ---------------------------------------------------------------------------- the statistics


def test_the_gain_is_of_throughput_not_of_time():
    found = gain(trial(2, walls=(2.0, 2.0, 2.0)), trial(4, walls=(2.0, 2.0, 2.0)))

    assert found.fraction == pytest.approx(1.0)
    assert found.error_fraction == 0


def test_the_standard_error_is_about_that_of_repeated_experiments():
    """Gains of many simulated pairs scatter as the mean of their stated errors says."""
    draw = random.Random(7)

    def walls(mean: float) -> tuple[float, ...]:
        return tuple(draw.gauss(mean, 0.03 * mean) for _ in range(7))

    gains = [gain(trial(1, walls=walls(1.0)), trial(2, walls=walls(1.6))) for _ in range(2000)]

    scatter = statistics.stdev(one.fraction for one in gains)
    stated = statistics.fmean(one.error_fraction for one in gains)
    assert stated == pytest.approx(scatter, rel=0.12)


@pytest.mark.parametrize("walls", [(), (1.0,), (1.0, 1.0), (0.0, 0.0, 0.0)])
def test_fewer_than_three_timed_cycles_prove_nothing(walls):
    assert gain(trial(1), trial(2, walls=walls)) is None

    choice = pick([trial(1), trial(2, walls=walls)])

    assert (choice.batch, choice.reason, choice.throughput_gain) == (1, "not_timed", None)


# --------------------------------------------------------------------------------- headroom

FAST = (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("peak_mib", "batch"), [(849, 2), (850, 2), (851, 1)])
def test_a_batch_may_fill_85_percent_of_the_device(peak_mib, batch):
    choice = pick([trial(1), trial(2, peak_mib=peak_mib, walls=FAST)])

    assert choice.batch == batch
    if batch == 1:
        assert (choice.reason, choice.next_batch) == ("headroom", 2)
        assert "851.0 of 1000.0 MiB" in choice.detail


@pytest.mark.parametrize(("host_mib", "batch"), [(3600, 2), (3601, 1)])
def test_a_batch_leaves_a_tenth_of_host_memory(host_mib, batch):
    choice = pick([trial(1), trial(2, host_mib=host_mib, walls=FAST)])

    assert choice.batch == batch
    assert choice.reason == ("largest_tried" if batch == 2 else "host_bound")


@pytest.mark.parametrize("unknown", [
    {"limits": Limits(device_bytes=None, host_bytes=ROOMY.host_bytes)},
    {"limits": Limits(device_bytes=ROOMY.device_bytes, host_bytes=None)},
])  # fmt: skip
def test_a_limit_that_nobody_knows_is_not_enough_for_a_larger_batch(unknown):
    choice = pick([trial(1), trial(2, walls=FAST)], **unknown)

    assert choice.batch == 1
    assert choice.reason in ("headroom", "host_bound")
    assert "not known" in choice.detail


@pytest.mark.parametrize("unmeasured", [{"peak_mib": None}, {"host_mib": None}])
def test_a_peak_that_was_not_measured_is_not_small(unmeasured):
    assert pick([trial(1), trial(2, walls=FAST, **unmeasured)]).batch == 1


def test_batch_one_is_kept_although_it_leaves_little_room():
    choice = pick([trial(1, peak_mib=950)])

    assert (choice.batch, choice.reason) == (1, "headroom")
    assert "nothing smaller ran" in choice.detail


def test_a_real_device_is_filled_by_what_the_allocator_reserved():
    phase = PhaseRecord(name="decode", peak_bytes=1, allocated_peak_bytes=2, reserved_peak_bytes=3)
    one = trial(1, phases=(phase,))

    assert device_need_bytes(one, Limits(device_bytes=10)) == 3
    assert device_need_bytes(one, Limits(device_bytes=10, emulated=True)) == 1


# -------------------------------------------------------------------------------- semantics


@pytest.mark.parametrize(("semantics", "reason"), [
    ("shared", "semantics_shared"),
    ("unknown", "semantics_unknown"),
    ("claimed_independent", "semantics_unknown"),
])  # fmt: skip
def test_without_proven_independence_batch_one_is_kept(semantics, reason):
    choice = pick([trial(1), trial(2, walls=FAST)], semantics=semantics)

    assert (choice.batch, choice.reason, choice.next_batch) == (1, reason, 2)


@pytest.mark.parametrize("checks", [
    (),
    (Check(name="parity", ok=None, detail="it needs values"),),
    (*PROVEN, Check(name="noise", ok=None)),
])  # fmt: skip
def test_a_check_that_was_not_done_proves_no_independence(checks):
    choice = pick([trial(1), trial(2, walls=FAST, checks=checks)])

    assert (choice.batch, choice.reason) == (1, "semantics_unknown")


def test_batch_one_that_was_not_tried_is_not_chosen_either():
    choice = pick([trial(2), trial(4)], semantics="shared")

    assert (choice.batch, choice.reason) == (None, "semantics_shared")
    assert "was not tried" in choice.detail


# -------------------------------------------------------------------- failed, skipped, smoke


def test_a_failed_first_batch_leaves_nothing_to_choose():
    choice = pick([failed(1), skipped(2, Failure.SMALLER_FAILED)])

    assert (choice.batch, choice.reason) == (None, "first_failed")
    assert (choice.next_batch, choice.next_class) == (1, Failure.CAPACITY)


def test_the_class_of_the_next_batch_is_told():
    choice = pick([trial(1), failed(2)])

    assert (choice.batch, choice.reason) == (1, "next_failed")
    assert (choice.next_verdict, choice.next_class) == (Verdict.FAILED, Failure.CAPACITY)
    assert "backward2" in choice.detail


def test_a_batch_that_was_predicted_not_to_fit_is_lack_of_headroom():
    choice = pick([trial(1), skipped(2, detail="the preflight predicts too much")])

    assert (choice.reason, choice.next_verdict) == ("headroom", Verdict.SKIPPED)
    assert choice.detail == "the preflight predicts too much"


def test_a_rising_soak_falls_to_the_next_smaller_batch():
    scaling_trials = simulated(scaling, (1, 2, 4), noise=0.0, seed=0)
    risen = msgspec.structs.replace(
        scaling_trials[2], verdict=Verdict.FAILED, failure=Failure.SOAK_RISING
    )

    choice = pick([*scaling_trials[:2], risen])

    assert (choice.batch, choice.reason) == (2, "soak_rising")


def test_nothing_above_a_failed_batch_is_chosen():
    choice = pick([failed(1, Failure.SOAK_RISING), trial(2)])

    assert choice.batch is None


def test_a_record_without_a_required_phase_is_only_a_smoke_test():
    choice = pick([trial(1), trial(2, walls=FAST, missing_phases=("step2",))])

    assert (choice.batch, choice.reason) == (1, "smoke")
    assert "step2" in choice.detail


def test_why_the_sweep_ended_is_told_where_no_trial_tells_it():
    end = End(reason="headroom", detail="the line says so", batch=4)

    choice = pick([trial(1), trial(2, walls=FAST)], end=end)

    assert (choice.batch, choice.reason, choice.next_batch) == (2, "headroom", 4)
    assert "the line says so" in choice.detail


def test_nothing_tried_is_nothing_chosen():
    assert pick([]).batch is None


# ------------------------------------------------------------------------------ any trials

_trials = st.lists(
    st.builds(
        lambda batch, peak, host, wall, spread, how, checks, missing: trial(
            batch,
            peak_mib=peak,
            host_mib=host,
            walls=() if wall is None else (wall, wall * spread, wall / spread),
            verdict=how[0],
            failure=how[1],
            checks=checks,
            missing_phases=missing,
        ),
        st.integers(1, 64),
        st.none() | st.floats(1, 1200),
        st.none() | st.floats(1, 5000),
        st.none() | st.floats(0.01, 100),
        st.floats(0.5, 2),
        st.sampled_from(
            [
                (Verdict.OK, None),
                (Verdict.OK, None),
                (Verdict.FAILED, Failure.STALLED),
                (Verdict.SKIPPED, Failure.PREDICTED),
            ]
        ),
        st.sampled_from([PROVEN, ()]),
        st.sampled_from([(), (), ("save",)]),
    ),
    max_size=6,
    unique_by=lambda one: one.batch,
)


@settings(max_examples=200, deadline=None)
@given(_trials, st.sampled_from(["independent", "shared", "unknown"]))
def test_whatever_ran_the_choice_ran_well_fits_and_has_a_reason(trials, semantics):
    choice = pick(trials, semantics=semantics)

    well = {one.batch: one for one in trials if one.verdict is Verdict.OK}
    assert choice.reason
    assert choice.detail
    assert choice.timed_batch == 1
    if choice.batch is None:
        return
    assert choice.batch in well
    if choice.batch != min(well):
        chosen = well[choice.batch]
        assert semantics == "independent"
        assert chosen.peak_bytes <= 0.85 * ROOMY.device_bytes
        assert chosen.host_peak_bytes <= 0.9 * ROOMY.host_bytes
        smaller = max(batch for batch in well if batch < choice.batch)
        assert gain(well[smaller], chosen).fraction > 0.05
        assert chosen.peak_bytes / MIB > 0
