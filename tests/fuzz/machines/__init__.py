"""The state machines, by name: each is a model beside real code, loaded when it is asked for."""

from __future__ import annotations

import importlib

from hypothesis.stateful import RuleBasedStateMachine

MACHINES = {
    "machine: spool": "spool:SpoolMachine",
    "machine: rollouts": "rollouts:RolloutMachine",
    "machine: locks": "locks:LockMachine",
}
STEPS = 40
"""Steps of one run of a machine."""


def machine(name: str) -> type[RuleBasedStateMachine]:
    """The machine of a name."""
    module, _, kind = MACHINES[name].partition(":")
    made: type[RuleBasedStateMachine] = getattr(
        importlib.import_module(f"tests.fuzz.machines.{module}"), kind
    )
    return made
