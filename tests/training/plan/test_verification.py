"""When an epoch is healthy, and the report that says what that cost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.plan.verification import (
    Comparison,
    Pending,
    Throughput,
    Verification,
    Verified,
    drift_fraction,
    spread_of,
)
from fleetcraft.training.records import Knob, Rung, RungKind

GIB = 1 << 30


def plan(**settings: object) -> RunPlan:
    return RunPlan(run="a", command=("x",), **{"warmup_s": 180.0, "verify_steps": 5, **settings})


def follow(
    verification: Verification,
    *,
    rates: Iterable[float],
    first: int = 690,
    begin_s: float = 0.0,
    step_s: float = 19.0,
    saved_step: int | None = None,
) -> list[Verified | Pending]:
    """One look a step, each with its throughput."""
    return [
        verification.observe(
            begin_s + number * step_s,
            step=first + number,
            tokens_per_s=rate,
            saved_step=saved_step,
            memory_bytes={0: 60 * GIB, 1: None},
        )
        for number, rate in enumerate(rates)
    ]


def test_an_epoch_is_verified_after_warm_up_steps_and_a_level_throughput() -> None:
    found = follow(Verification(plan(), began_s=0.0), rates=[16_400.0] * 20)

    kinds = [isinstance(one, Verified) for one in found]
    assert kinds.index(True) == 15  # 10 steps of warm-up, then five measured ones
    last = found[-1]
    assert isinstance(last, Verified)
    assert (last.step, last.steps) == (709, 19)
    assert last.memory_bytes == {0: 60 * GIB}
    assert last.throughput == Throughput(
        median=16_400, low=16_400, high=16_400, samples=9, unit="tokens/s"
    )


def test_warm_up_is_waited_for_however_many_steps_are_done() -> None:
    found = follow(Verification(plan(), began_s=0.0), rates=[9.0] * 50, step_s=1.0)

    assert found[-1] == Pending(why="warming up for another 2 min 11 s")


def test_a_throughput_that_rises_as_in_the_second_seed_is_not_level() -> None:
    rates = [13_800.0 + 200 * number for number in range(14)]
    found = follow(Verification(plan(warmup_s=0.0), began_s=0.0), rates=rates)

    assert all(isinstance(one, Pending) for one in found)
    assert isinstance(found[-1], Pending)
    assert "throughput is still rising (+" in found[-1].why


def test_scatter_around_a_level_is_no_trend() -> None:
    noisy = [100.0, 130.0, 90.0, 120.0, 95.0, 125.0, 105.0, 110.0]
    found = follow(Verification(plan(warmup_s=0.0), began_s=0.0), rates=noisy)

    assert isinstance(found[-1], Verified)


def test_the_second_step_must_be_done_since_only_then_the_optimizer_is_there() -> None:
    verification = Verification(plan(warmup_s=0.0, verify_steps=1), began_s=0.0, first_step=690)

    assert verification.observe(1.0, step=691) == Pending(why="1 of 2 steps since the start")


def test_a_declared_save_must_be_of_this_epoch() -> None:
    def last(saved_step: int | None) -> Verified | Pending:
        verification = Verification(plan(warmup_s=0.0, verify_save=True), began_s=0.0)
        return follow(verification, rates=[5.0] * 9, saved_step=saved_step)[-1]

    assert last(None) == Pending(why="no checkpoint was committed since the start")
    assert last(690) == Pending(why="no checkpoint was committed since the start")
    assert isinstance(last(695), Verified)


def test_without_tokens_the_time_between_steps_is_the_throughput() -> None:
    verification = Verification(plan(warmup_s=0.0), began_s=0.0)
    for number in range(8):
        found = verification.observe(number * 0.5, step=number)

    assert isinstance(found, Verified)
    assert found.throughput is not None
    assert found.throughput.unit == "steps/s"
    assert found.throughput.median == pytest.approx(2.0)


def test_the_time_of_a_declared_phase_is_no_step_s() -> None:
    verification = Verification(plan(warmup_s=0.0), began_s=0.0)
    now_s = 0.0
    for number in range(8):
        now_s += 1.0
        verification.observe(now_s, step=number)
        for _ in range(3):  # a save after each step
            now_s += 10.0
            verification.observe(now_s, step=number, in_phase=True)

    measured = verification.throughput()
    assert measured is not None
    assert measured.median == pytest.approx(1.0)


def test_a_step_that_goes_back_to_a_checkpoint_is_no_progress() -> None:
    verification = Verification(plan(warmup_s=0.0), began_s=0.0, first_step=690)
    for number in range(4):
        verification.observe(float(number), step=690 + number)

    found = verification.observe(5.0, step=600)

    assert found == Pending(why="0 of 5 steps since the start")


def test_nothing_is_verified_before_a_step_was_seen() -> None:
    verification = Verification(plan(warmup_s=0.0), began_s=0.0)

    assert verification.observe(9.0, step=None) == Pending(why="0 of 5 steps since the start")
    assert verification.throughput() is None


def test_a_trend_is_a_share_of_the_middle() -> None:
    assert drift_fraction([(0.0, 100.0), (1.0, 110.0), (2.0, 120.0)]) == pytest.approx(20 / 110)
    assert drift_fraction([(0.0, 100.0)]) is None
    assert drift_fraction([]) is None
    assert drift_fraction([(0.0, 0.0), (1.0, 0.0)]) is None


def test_a_report_says_before_and_after_with_spread_memory_knob_and_what_is_not_measured() -> None:
    report = Comparison(
        epoch=3,
        against=1,
        rung=Rung(kind=RungKind.KNOB, knob="max_anchors", before=1024, after=768),
        knobs=(Knob(name="max_anchors", value=768, floor=256),),
        before=spread_of([21_000.0, 21_500.0, 22_000.0], "tokens/s"),
        after=spread_of([18_000.0, 18_300.0, 18_900.0], "tokens/s"),
        memory_before_bytes=91 * GIB,
        memory_after_bytes=70 * GIB,
        memory_bytes=95 * GIB,
    )

    assert report.text().splitlines() == [
        "epoch 3: max_anchors 1024 -> 768, against epoch 1",
        "throughput before: 21.5k tokens/s (21.0k to 22.0k, 3 samples)",
        "throughput after:  18.3k tokens/s (18.0k to 18.9k, 3 samples), -15%",
        "memory: peak 91.0 GiB before, 70.0 GiB now; headroom 25.0 GiB",
        "knob max_anchors: 768 (floor 256)",
        "quality effect: not measured",
    ]


def test_a_report_of_what_was_not_measured_says_so() -> None:
    report = Comparison(
        epoch=2,
        rung=Rung(kind=RungKind.COMBINED, knob="chunk", before=8, after=6, confounded=True),
    )

    assert report.confounded
    assert report.throughput_ratio is None
    assert report.text().splitlines() == [
        "epoch 2: expandable_segments on and chunk 8 -> 6, together as declared",
        "throughput before: not measured",
        "throughput after:  not measured",
        "memory: not measured",
        "quality effect: not measured",
        "confounded: two things were changed, so neither is shown to be the cure",
    ]


def test_throughputs_in_different_units_are_not_compared() -> None:
    steps = spread_of([1.0], "steps/s")
    tokens = spread_of([1.0], "tokens/s")

    assert (
        Comparison(
            epoch=2, rung=Rung(kind=RungKind.FIRST), before=steps, after=tokens
        ).throughput_ratio
        is None
    )
