"""How long an optimizer step should take, with the arithmetic, and when its absence is an alarm.

Pure numbers. Invariant: an expectation that cannot be computed is None, and then the alarm waits
its least time, never shorter.
"""

from __future__ import annotations

import msgspec

from fleetcraft.training.plan.records import ProgressPlan


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """The expected optimizer step.

    Attributes:
        step_s: Seconds a step.
        arithmetic: How that follows, for people.
    """

    step_s: float
    arithmetic: str


def expected_step(
    plan: ProgressPlan, measured_tokens_per_s: float | None = None
) -> Expectation | None:
    """The expected time of an optimizer step: its tokens over the throughput.

    Args:
        plan: Its tokens a step, and the declared throughput, which is taken before the measured.
        measured_tokens_per_s: What was measured while steps came.

    Returns:
        None without tokens a step or a throughput.

    Source: TRAINING.md, Progress watch: tokens per optimizer step / throughput.
    """
    rate = plan.tokens_per_s or measured_tokens_per_s
    if not plan.tokens_per_step or not rate or rate <= 0:
        return None
    step_s = plan.accumulation * plan.tokens_per_step / rate
    times = f"{plan.accumulation} x " if plan.accumulation != 1 else ""
    return Expectation(
        step_s=step_s,
        arithmetic=f"{times}{plan.tokens_per_step:,} tokens / {_rate(rate)} tok/s"
        f" = {seconds(step_s)} a step",
    )


def expected_from_steps(step_s: float, steps: int) -> Expectation:
    """An expectation from what steps took, for a run that declares no tokens.

    Args:
        step_s: What one took on average.
        steps: Of how many.
    """
    text = f"the last {steps} steps took {seconds(step_s)} each"
    return Expectation(step_s=step_s, arithmetic=text)


def with_due(expectation: Expectation, quiet_s: float, came: int = 0) -> Expectation:
    """The same with how many steps were due in a time, and how many came."""
    due = f"{quiet_s / expectation.step_s:.1f} steps were due in {seconds(quiet_s)}, {came} came"
    return Expectation(step_s=expectation.step_s, arithmetic=f"{expectation.arithmetic}; {due}")


def alarm_after_s(plan: ProgressPlan, expectation: Expectation | None) -> float:
    """Seconds without a step after which the run counts as standing still.

    Source: TRAINING.md, Progress watch: max(5 x expected, 120 s).
    """
    expected_s = expectation.step_s if expectation else 0.0
    return max(plan.stall_factor * expected_s, plan.stall_least_s)


def seconds(value: float) -> str:
    """Seconds for people: ``19.0 s``, ``420 s``, ``0.25 s``."""
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.1f} s" if value >= 1 else f"{value:.2g} s"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
