"""How many values are tried, and what came of them: by hypothesis, in rounds that grow.

A finding is known by its class and the line of ours that it came through, so that one fault is
reported once, with the smallest value that shows it. Invariant: the same seed and the same counts
try the same values.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.fuzz.target import Target, attempt, where

FIRST_ROUND = 50
_GROWTH = 3
_LARGEST_ROUND = 20_000
_SHOWN = 600


@dataclass(kw_only=True)
class Outcome:
    """What came of one target.

    Attributes:
        examples: How many values were tried; of a machine, how many steps were taken.
        errors: Documented errors by class and place.
        findings: What should not have happened: its key, and the smallest value seen.
        seconds: How long that took.
    """

    name: str
    examples: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def check(target: Target, examples: int) -> None:
    """Tries a fixed number of values, the same every time; raises the first finding."""

    @_settings(examples, derandomize=True)
    @given(target.values)
    def trial(value: Any) -> None:
        attempt(target, value)

    trial()


class _EnoughError(BaseException):
    """The time is over; hypothesis would go on looking for a smaller value."""


def explore(target: Target, seed: int, budget_s: float) -> Outcome:
    """Tries values in rounds that grow, until the time is over."""
    outcome = Outcome(name=target.name)
    smallest: dict[str, int] = {}
    known: set[str] = set()

    def one_round(seed: int, examples: int, deadline: float) -> None:
        @seeded(seed)
        @_settings(examples)
        @given(target.values)
        def trial(value: Any) -> None:
            if time.monotonic() > deadline:
                raise _EnoughError
            outcome.examples += 1
            try:
                said = attempt(target, value)
            except Exception as error:
                key = _key(error)
                shown = repr(value)
                if len(shown) < smallest.get(key, 1 << 62):
                    smallest[key] = len(shown)
                    outcome.findings[key] = f"{_shown(error)}\nvalue: {shown[:_SHOWN]}"
                # A fault that is known already hides no other.
                if key not in known:
                    raise
            else:
                if said:
                    outcome.errors[said] += 1

        try:
            trial()
        finally:
            known.update(outcome.findings)

    _in_rounds(outcome, one_round, seed, budget_s)
    return outcome


def explore_machine(
    machine: type[RuleBasedStateMachine], name: str, seed: int, budget_s: float, steps: int
) -> Outcome:
    """Runs a state machine in rounds that grow, until the time is over."""
    outcome = Outcome(name=name)

    class Counted(machine):  # type: ignore[misc, valid-type]
        deadline_s = 0.0

        def check_invariants(self, *args: Any, **kwargs: Any) -> None:
            if time.monotonic() > self.deadline_s:
                raise _EnoughError
            outcome.examples += 1
            super().check_invariants(*args, **kwargs)

    def one_round(seed: int, examples: int, deadline: float) -> None:
        Counted._hypothesis_internal_use_seed = seed
        Counted.deadline_s = deadline
        run_state_machine_as_test(
            Counted, settings=settings(_settings(examples), stateful_step_count=steps)
        )

    _in_rounds(outcome, one_round, seed, budget_s, first=20, again=False)
    return outcome


def _in_rounds(
    outcome: Outcome,
    one_round: Callable[[int, int, float], None],
    seed: int,
    budget_s: float,
    *,
    first: int = FIRST_ROUND,
    again: bool = True,
) -> None:
    began = time.monotonic()
    number, examples = 0, first
    spent_s = 0.0
    while spent_s < budget_s:
        before = time.monotonic()
        try:
            one_round(seed + number, examples, began + budget_s)
        except _EnoughError:
            break
        except Exception as error:
            # A run that was broken off looks to hypothesis as if it had gone another way.
            if isinstance(error, Flaky) and time.monotonic() > began + budget_s:
                break
            if not again:
                outcome.findings.setdefault(_key(error), _shown(error))
                break
        number += 1
        took_s = max(1e-3, time.monotonic() - before)
        spent_s = time.monotonic() - began
        left = int(examples * (budget_s - spent_s) / took_s)
        examples = max(1, min(examples * _GROWTH, left, _LARGEST_ROUND))
    outcome.seconds = time.monotonic() - began


def _key(error: BaseException) -> str:
    if isinstance(error, ExceptionGroup):
        return " and ".join(sorted({_key(one) for one in error.exceptions}))
    sentence = f": {error}"[:160] if isinstance(error, AssertionError) else ""
    return f"{type(error).__name__} at {where(error)}{sentence}"


def _shown(error: BaseException) -> str:
    notes = "\n".join(getattr(error, "__notes__", []))
    return f"{type(error).__name__}: {str(error)[:_SHOWN]}\n{notes[: 4 * _SHOWN]}".strip()


def _settings(examples: int, *, derandomize: bool = False) -> settings:
    return settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate] if derandomize else [Phase.generate, Phase.shrink],
        print_blob=False,
    )
