"""Two holders of one stream, explored in every order: one identity becomes one record.

The earlier holder is the worst one: it looked at its lease right before it was paused, and goes on
at any moment. Not here: the lease itself; tests/test_locks.py has that.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from fleetcraft.errors import FleetError
from fleetcraft.files import FileSystem
from fleetcraft.layout.rollouts import RolloutPaths
from fleetcraft.rollouts import publishing, quarantine
from fleetcraft.rollouts.admission import Admission, Throttled, release_older
from fleetcraft.rollouts.publishing import finish_half_published, publish
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Record
from tests.explore import determinism
from tests.explore.explorer import Actor, Budget, End, Explorer, Scenario, Violation, explore
from tests.explore.model_fs import DirectFS, ModelFS, World
from tests.rollouts.producing import SLOT, record_of, settings_for

PATHS = RolloutPaths("/q")


def draw() -> str:
    """A token of whichever modelled process is at work."""
    return determinism.current.draw()


def drawn_bytes(size: int) -> bytes:
    return draw().encode()


def no_time() -> str:
    return "now"


@pytest.fixture(autouse=True)
def same_every_time() -> Iterator[None]:
    with (
        mock.patch.object(publishing, "new_launch_token", draw),
        mock.patch.object(quarantine, "timestamp", no_time),
        mock.patch.object(os, "urandom", drawn_bytes),
    ):
        yield


def model_queue(fs: FileSystem) -> RolloutQueue:
    return RolloutQueue(PATHS, settings_for(batch=1, low_water=2, high_water=4), fs)


def lease_at(generation: int) -> Any:
    return SimpleNamespace(
        stream="s", generation=generation, nonce=f"n{generation}", slot=SLOT, check=lambda: None
    )


def world() -> World:
    made = World()
    for ino, folder in enumerate((*PATHS.folders(), PATHS.ident_folder("s")), start=1):
        made.names[folder] = ino
        made.data[ino] = None
    return made


def holder(generation: int) -> Callable[[ModelFS], str]:
    """Takes over, then publishes the first identity that nobody has."""

    def act(fs: ModelFS) -> str:
        queue, lease = model_queue(fs), lease_at(generation)
        rooms = Admission(queue, lease)
        if generation > 1:
            finish_half_published(queue, lease, rooms)
            release_older(queue, lease)
        sequence = len(publishing.published(queue, "s"))
        room = rooms.reserve(sequence, [0])
        if isinstance(room, Throttled):
            return "throttled"
        outcome = publish(queue, record_of(lease, sequence), room)
        return f"{type(outcome).__name__} {sequence}"

    return act


def records_in(end: World, folder: str) -> list[Record]:
    found = (end.content(f"{folder}/{name}") for name in end.children(folder))
    return [msgspec.json.decode(data, type=Record) for data in found if data and b'"slot"' in data]


def one_record_an_identity(end: End) -> str:
    """Whatever happened, and after one more holder came."""
    fs = DirectFS(end.world, 90)
    determinism.current = determinism.Tokens("next")
    queue, lease = model_queue(fs), lease_at(9)
    try:
        finish_half_published(queue, lease, Admission(queue, lease))
        release_older(queue, lease)
    except FleetError as error:
        return f"the next holder cannot take over: {error}"
    left = fs.world
    pending = records_in(left, PATHS.pending)
    identities = [record.identity for record in pending]
    if len(set(identities)) < len(identities):
        return f"pending holds an identity twice: {identities}"
    bound = left.children(PATHS.ident_folder("s"))
    bound = [name for name in bound if not name.endswith(".tmp")]
    if len(bound) != len(pending):
        return f"{len(bound)} identities are bound, {len(pending)} records are pending"
    for record in pending:
        ident = PATHS.ident_file("s", record.sequence, record.sample)
        if left.content(ident) != left.content(f"{PATHS.pending}/{record.name}"):
            return f"the identity of {record.name} is bound to another record"
    for folder in (PATHS.tmp, PATHS.reserved):
        if left.children(folder):
            return f"left in {folder}: {left.children(folder)}"
    reported = [str(result[1]) for result in end.results if result and result[0] == "returned"]
    if sum(text.startswith("Published") for text in reported) > len(pending):
        return f"{reported}, but only {len(pending)} are pending"
    return ""


def takeover(*actors: Actor, **budget: int) -> Scenario:
    return Scenario("take-over", world(), actors, Budget(**budget), one_record_an_identity)


TWO = (Actor("A", holder(1)), Actor("B", holder(2)))
RESTART = (Actor("A", holder(1)), Actor("B", holder(2), after=0))


@pytest.mark.parametrize(
    ("actors", "budget"),
    [
        (TWO, {"preemptions": 3}),
        (TWO, {"preemptions": 2, "crashes": 1}),
        (TWO, {"preemptions": 1, "lies": 1}),
        (RESTART, {"preemptions": 0, "crashes": 2}),
        (RESTART, {"preemptions": 0, "crashes": 1, "lies": 1}),
    ],
)
def test_whoever_goes_on_when_an_identity_is_bound_and_pending_once(
    actors: tuple[Actor, ...], budget: dict[str, int]
) -> None:
    report = explore(takeover(*actors, **budget))
    assert report.exhausted
    assert report.ends > 10


def test_three_holders_in_long_random_schedules_bind_and_publish_once() -> None:
    actors = tuple(Actor("ABC"[n], holder(n + 1)) for n in range(3))
    walked = Explorer(takeover(*actors, crashes=1, lies=1)).walk(random.Random(3), walks=100)
    assert walked.walks == 100


def believed(fs: FileSystem, temporary: str, ident: str, data: bytes) -> bool:
    """Takes "exists" for its own success."""
    with contextlib.suppress(OSError):
        fs.link(temporary, ident)
    return True


def swept(queue: RolloutQueue, half: Any, admission: Admission) -> str:
    """Removes what lies in tmp instead of completing it."""
    queue.fs.unlink(half.path)
    return "torn"


@pytest.mark.parametrize(
    ("rule", "broken"), [("_bind", believed), ("_finish", swept)], ids=["believed", "swept"]
)
def test_the_exploration_finds_it_where_a_rule_is_broken(rule: str, broken: Any) -> None:
    with mock.patch.object(publishing, rule, broken), pytest.raises(Violation):
        explore(takeover(*TWO, preemptions=3))
