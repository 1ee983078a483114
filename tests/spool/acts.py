"""Short forms of what many tests of the spool do: a task, a claim, an end."""

from __future__ import annotations

import itertools
from typing import Any

from fleetcraft.identity import Owner
from fleetcraft.layout import State
from fleetcraft.spool import claims
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue
from fleetcraft.spool.record import HistoryLine, Outcome, Record, destination
from fleetcraft.spool.tree import SpoolTree

_numbers = itertools.count(1)


def spec(name: str, command: str = "true", **directives: Any) -> TaskSpec:
    return TaskSpec(name=name, command=command, **{"project_dir": "/", **directives})


def publish(tree: SpoolTree, name: str, command: str = "true", **directives: Any) -> TaskSpec:
    task = spec(name, command, **directives)
    enqueue(tree, task)
    return task


def new_owner(launch: str = "test") -> Owner:
    return Owner("L1", "0", "0", f"{launch}-{next(_numbers)}")


def take(tree: SpoolTree, name: str, owner: Owner | None = None) -> claims.Claim:
    held = claims.claim(tree, name, tree.find(name).path, owner or new_owner())
    assert held is not None
    return held


def end(tree: SpoolTree, held: claims.Claim, outcome: Outcome) -> claims.Closed | None:
    line = HistoryLine(
        claim=held.owner.token,
        outcome=outcome,
        to=destination(held.record, outcome),
        attempt=held.record.next_attempt,
    )
    return claims.close_own(tree, held, line)


def run(tree: SpoolTree, name: str, outcome: Outcome = Outcome.COMPLETED) -> claims.Closed | None:
    return end(tree, take(tree, name), outcome)


def state_of(tree: SpoolTree, name: str) -> State:
    return tree.find(name).state


def record_of(tree: SpoolTree, name: str) -> Record:
    return tree.read(tree.find(name).path)
