"""The state machines, with few and always the same runs; `python -m tests.fuzz` makes many."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz.machines import MACHINES, machine

RUNS = {"machine: spool": 4, "machine: rollouts": 4, "machine: locks": 6}


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_second_reader_sees_is_what_the_model_says(name: str) -> None:
    run_state_machine_as_test(
        machine(name),
        settings=settings(
            max_examples=RUNS[name],
            stateful_step_count=25,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # made smaller by `python -m tests.fuzz --only machine`
            suppress_health_check=list(HealthCheck),
        ),
    )
