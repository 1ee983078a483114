"""When silence is a stall, and the arithmetic that says so."""

from __future__ import annotations

import pytest

from fleetcraft.calibration.trial.stall import Stall, count_steps, silence_limit_s


def test_the_counter_of_a_rank_that_lives_promises_steps_that_never_came() -> None:
    steps = count_steps(
        tokens_per_s=6_900, tokens_per_micro_step=32_768, accumulation=4, window_s=7 * 60, seen=0
    )
    assert steps.expected == pytest.approx(22.1, abs=0.05)
    assert steps.step_s == pytest.approx(19.0, abs=0.05)
    assert steps.is_stalled
    assert str(steps) == "expected 22.1 optimizer steps in 420 s (19.0 s each), saw 0"


def test_a_step_that_was_seen_or_could_not_have_come_yet_is_no_stall() -> None:
    numbers = {"tokens_per_s": 6_900, "tokens_per_micro_step": 32_768, "accumulation": 4}
    assert not count_steps(**numbers, window_s=420, seen=1).is_stalled
    assert not count_steps(**numbers, window_s=4 * 18.9, seen=0).is_stalled
    assert count_steps(**numbers, window_s=4 * 19.1, seen=0).is_stalled


@pytest.mark.parametrize(
    "wrong", ["tokens_per_s", "tokens_per_micro_step", "accumulation", "window_s"]
)
def test_arithmetic_without_a_number_is_refused(wrong: str) -> None:
    numbers = {
        "tokens_per_s": 1.0, "tokens_per_micro_step": 1.0, "accumulation": 1, "window_s": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="must be positive"):
        count_steps(**{**numbers, wrong: 0}, seen=0)  # type: ignore[arg-type]


def test_the_first_batch_has_the_familys_patience_and_later_ones_four_times_the_expected() -> None:
    assert silence_limit_s(None, 120.0) == 120.0
    assert silence_limit_s(30.0, 120.0) == 120.0
    assert silence_limit_s(60.0, 120.0) == 240.0
    assert silence_limit_s(0.01, 120.0) == 10.0  # a busy machine is no stall
    assert silence_limit_s(0.01, 1.5) == 1.5


def test_a_stall_shows_its_arithmetic() -> None:
    told = Stall(silent_s=4.94, limit_s=4.8, expected_s=1.2, phase="decode")
    assert str(told) == "expected 1.2 s, silent for 4.9 s in phase decode"
    first = Stall(silent_s=121.0, limit_s=120.0)
    assert str(first) == "silent for 121.0 s, allowed were 120 s"
