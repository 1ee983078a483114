"""When silence is a stall, and the arithmetic that says so.

Pure functions of numbers; who listens and who stops a trial is elsewhere. Invariant: a stall is
reported with what was expected and what was seen, so that a person can check it by hand.
"""

from __future__ import annotations

import msgspec

FACTOR = 4.0
"""Silence of so many times the expected longest one is a stall."""
SHORTEST_S = 10.0
"""A short phase of a busy machine may be late by more than its own length."""
QUIET_S = 300.0
"""Outside of the phases of a real cycle: an interpreter and torch from a cold network file system,
a family's own imports, a preflight, checks and counting, none of which say anything meanwhile."""


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One silence that was too long.

    Attributes:
        silent_s: How long no line came, or the steps did not move.
        limit_s: What was allowed.
        expected_s: The longest silence that was expected; None when nothing was known.
        phase: Where it was silent.
    """

    silent_s: float
    limit_s: float
    expected_s: float | None = None
    phase: str = ""

    def __str__(self) -> str:
        where = f" in phase {self.phase}" if self.phase else ""
        if self.expected_s is None:
            return f"silent for {self.silent_s:.1f} s{where}, allowed were {self.limit_s:g} s"
        return f"expected {self.expected_s:.1f} s, silent for {self.silent_s:.1f} s{where}"


def silence_limit_s(expected_s: float | None, patience_s: float) -> float:
    """How long a trial may be silent.

    Args:
        expected_s: The longest silence to expect, from the batch before; None for the first.
        patience_s: The family's own word for the first batch; a short one (a fault that is to
            stall) also shortens what is allowed at least to later ones.
    """
    if expected_s is None:
        return patience_s
    return max(FACTOR * expected_s, min(patience_s, SHORTEST_S))


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Optimizer steps that a throughput promises over a time, and those that were seen."""

    expected: float
    seen: int
    window_s: float
    step_s: float

    @property
    def is_stalled(self) -> bool:
        """Whether none came in the time of at least `FACTOR` steps."""
        return self.seen == 0 and self.expected >= FACTOR

    def __str__(self) -> str:
        return (
            f"expected {self.expected:.1f} optimizer steps in {self.window_s:g} s "
            f"({self.step_s:.1f} s each), saw {self.seen}"
        )


def count_steps(
    *,
    tokens_per_s: float,
    tokens_per_micro_step: float,
    accumulation: int,
    window_s: float,
    seen: int,
) -> Steps:
    """Compares a throughput that is reported with the steps that it should have made.

    A rank that lives keeps a throughput counter above zero while the others are dead and no
    optimizer step completes; then the two do not fit.

    Args:
        tokens_per_s: As the program reports it.
        tokens_per_micro_step: Tokens of one forward and backward.
        accumulation: Micro-steps of one optimizer step.
        window_s: Over how long.
        seen: Optimizer steps that completed in it.

    Raises:
        ValueError: A number that is not positive.
    """
    if min(tokens_per_s, tokens_per_micro_step, accumulation, window_s) <= 0:
        raise ValueError("throughput, tokens, accumulation and time must be positive")
    step_s = tokens_per_micro_step * accumulation / tokens_per_s
    return Steps(expected=window_s / step_s, seen=seen, window_s=window_s, step_s=step_s)
