"""Every target there is, gathered from one module a part; each is loaded when it is asked for.

A parser that reads what others wrote belongs here: a file, an answer of a program, an argument.
"""

from __future__ import annotations

import importlib

from tests.fuzz.target import Target

PARTS = (
    "names",
    "spool",
    "slurm",
    "telemetry",
    "training",
    "evidence",
    "rollouts",
    "configuration",
    "others",
)


def of_part(part: str) -> tuple[Target, ...]:
    """The targets of one part."""
    module = importlib.import_module(f"tests.fuzz.targets.{part}")
    targets: tuple[Target, ...] = module.TARGETS
    return targets


def named(name: str) -> Target:
    """One target by its name."""
    return next(one for part in PARTS for one in of_part(part) if one.name == name)
