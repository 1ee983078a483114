"""The arithmetic of an expected step and of the alarm."""

from __future__ import annotations

import pytest

from fleetcraft.training.plan.records import ProgressPlan
from fleetcraft.training.watching.expectation import (
    alarm_after_s,
    expected_from_steps,
    expected_step,
    seconds,
    with_due,
)

DRAFTERS = ProgressPlan(tokens_per_step=32 * 1024, accumulation=4, tokens_per_s=6900.0)
"""Source: TRAINING.md, Progress watch, second seed."""


def test_the_seeds_step_takes_19_seconds_so_22_were_due_in_420() -> None:
    expected = expected_step(DRAFTERS)
    assert expected is not None
    assert expected.step_s == pytest.approx(19.0, abs=0.05)
    assert with_due(expected, 420.0).arithmetic == (
        "4 x 32,768 tokens / 6,900 tok/s = 19.0 s a step; 22.1 steps were due in 420 s, 0 came"
    )


def test_the_declared_throughput_is_taken_before_the_measured_one() -> None:
    measured = ProgressPlan(tokens_per_step=1000)
    assert expected_step(DRAFTERS, 1.0) == expected_step(DRAFTERS)
    found = expected_step(measured, 500.0)
    assert found is not None
    assert (found.step_s, found.arithmetic) == (2.0, "1,000 tokens / 500 tok/s = 2.0 s a step")


@pytest.mark.parametrize(
    ("plan", "measured"),
    [
        (ProgressPlan(), 500.0),
        (ProgressPlan(tokens_per_step=1000), None),
        (ProgressPlan(tokens_per_step=1000), 0.0),
        (ProgressPlan(tokens_per_s=10.0), None),
    ],
)
def test_what_was_not_declared_nor_measured_gives_no_expectation(
    plan: ProgressPlan, measured: float | None
) -> None:
    assert expected_step(plan, measured) is None
    assert alarm_after_s(plan, None) == 120.0


def test_the_alarm_waits_five_steps_but_at_least_two_minutes() -> None:
    plan = ProgressPlan()
    assert alarm_after_s(plan, expected_from_steps(19.0, 20)) == 120.0
    assert alarm_after_s(plan, expected_from_steps(60.0, 20)) == 300.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(420.4, "420 s"), (1234.0, "1,234 s"), (19.0, "19.0 s"), (0.25, "0.25 s"), (0.0, "0 s")],
)
def test_seconds_are_written_for_people(value: float, text: str) -> None:
    assert seconds(value) == text
