"""Two trainers and a producer in a model, in every order, with crashes, lies and wrong judges.

The real code runs; the file system under it is `tests.explore.model_fs`. Not here: one operation
ended at each of its steps, which `crash_points` has.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import msgspec
import pytest

from fleetcraft.errors import FleetError
from fleetcraft.identity import HostId, ProcessId
from fleetcraft.layout.rollouts import RolloutPaths, parse_rollout
from fleetcraft.locks import Holder
from fleetcraft.locks import generation as chain
from fleetcraft.rollouts import quarantine
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Commit, encode
from fleetcraft.rollouts.recovery import recover
from fleetcraft.rollouts.trainer import trainer_lock
from fleetcraft.rollouts.transaction import batch as batches
from fleetcraft.rollouts.transaction import records as names
from fleetcraft.rollouts.transaction import settling
from fleetcraft.rollouts.transaction.batch import Transaction
from tests.explore import determinism
from tests.explore.explorer import Actor, Budget, End, Explorer, Scenario, Violation, explore
from tests.explore.model_fs import DirectFS, ModelFS, World
from tests.rollouts.filling import SMALL, record

PATHS = RolloutPaths("/q")
SETTINGS = msgspec.structs.replace(SMALL, batch=1, low_water=1, high_water=4)
FIRST = tuple(record(sequence) for sequence in range(2))
LATE = record(0, stream="p")


def draw() -> str:
    """A token of whichever modelled process is at work."""
    return determinism.current.draw()


@pytest.fixture(autouse=True)
def same_every_time() -> Iterator[None]:
    """Nonces, clocks and process facts of the modelled processes."""
    here = HostId(host="c1", boot_id="boot", pid_namespace="pid:[1]")
    replaced: list[tuple[Any, str, Any]] = [
        (names, "new_launch_token", draw),
        (chain, "new_launch_token", draw),
        (chain, "this_host", lambda: here),
        (chain, "process_id", lambda pid: ProcessId(1, 1)),
        (chain, "_LOOKS_PER_INTERVAL", 1 / 3),
        (os, "getpid", lambda: 1),
        (os, "urandom", lambda size: draw().encode()),
    ]
    clocked = (chain, batches, settling, quarantine)
    replaced += [(module, "timestamp", lambda: "now") for module in clocked]
    with contextlib.ExitStack() as stack:
        for module, name, value in replaced:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


class OwnClock:
    """A process's own clock, which moves only while that process waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def queue_on(fs: ModelFS) -> RolloutQueue:
    return RolloutQueue(PATHS, SETTINGS, fs)


def start() -> World:
    """A queue in which two records wait."""
    world = World()
    for ino, folder in enumerate(PATHS.folders(), start=1):
        world.names[folder] = ino
        world.data[ino] = None
    fs = DirectFS(world, 80)
    for made in FIRST:
        fs.create(f"{PATHS.pending}/{made.name}", encode(made))
    return fs.world


def trainer(name: str, *, by_age: bool = False, rounds: int = 1) -> Callable[[ModelFS], Any]:
    """Takes the lock, ends what was left, and trains on so many batches."""

    def act(fs: ModelFS) -> Any:
        queue = queue_on(fs)

        def judge(holder: Holder) -> bool | None:
            return None if by_age else fs.verdict(holder.nonce[0]) == "alive"

        clock = OwnClock()
        lock = trainer_lock(queue, judge=judge, clock=clock, sleep=clock.sleep)
        held = lock.acquire(by_age=by_age)
        ledger = Ledger.load(queue)
        for prepared in recover(queue, ledger, held).prepared:
            fs.note("not to start from", prepared.checkpoint)
        versions = []
        for _ in range(rounds):
            batch = Transaction.open(queue, ledger, held)
            if isinstance(batch, Transaction):
                batch.computed()
                batch.prepared(f"step-{batch.version}-{name}", name)
                commit = batch.commit()
                fs.note("committed", commit.version, name)
                versions.append(commit.version)
        return versions

    return act


def producer(fs: ModelFS) -> str:
    """Publishes one record."""
    fs.create(f"{PATHS.tmp}/{LATE.name}", encode(LATE))
    fs.rename_new(f"{PATHS.tmp}/{LATE.name}", f"{PATHS.pending}/{LATE.name}")
    fs.note("published", str(LATE.name))
    return "published"


def commits_in(world: World) -> dict[int, Commit]:
    return {
        commit.version: commit
        for name in world.children(PATHS.commits)
        if not name.endswith(".tmp")
        and (commit := msgspec.json.decode(world.content(f"{PATHS.commits}/{name}"), type=Commit))
    }


def each_identity_once(world: World) -> str:
    """The commits are a chain, and train on nothing twice. None is ever changed or removed."""
    found = commits_in(world)
    if sorted(found) != list(range(1, len(found) + 1)):
        return f"versions {sorted(found)}"
    times = Counter(m.identity for commit in found.values() for m in commit.members)
    twice = [str(identity) for identity, count in times.items() if count > 1]
    return f"trained on twice: {twice}" if twice else ""


def promises_are_kept(world: World) -> str:
    """A version is whose it was said to be, and no version has a checkpoint that was given up."""
    found = commits_in(world)
    for event in world.trace:
        if event[0] == "committed":
            commit = found[event[1]]
            if commit.checkpoint != f"step-{event[1]}-{event[2]}":
                return f"version {event[1]} was promised to {event[2]}, is {commit.checkpoint}"
    given_up = {event[1] for event in world.trace if event[0] == "not to start from"}
    used = given_up & {commit.checkpoint for commit in found.values()}
    return f"committed after they were given up: {sorted(used)}" if used else ""


def nothing_is_lost(end: End) -> str:
    """Whatever happened, the next trainer finds every record and trains on each once."""
    if problem := each_identity_once(end.world):
        return problem
    if problem := promises_are_kept(end.world):
        return problem
    determinism.current = determinism.Tokens("next")
    fs = DirectFS(end.world, 90)
    published = [made for made in (*FIRST, LATE) if _lies_in(end.world, str(made.name))]
    try:
        trainer("next", rounds=4)(fs)
    except (OSError, FleetError) as error:
        return f"the next trainer cannot go on: {error}"
    if problem := each_identity_once(fs.world):
        return problem
    trained = {m.name for commit in commits_in(fs.world).values() for m in commit.members}
    expected = {str(made.name) for made in published}
    if trained != expected or not {str(made.name) for made in FIRST} <= expected:
        return f"trained on {sorted(trained)}, published were {sorted(expected)}"
    filed = [name for name in _files(fs.world, PATHS.consumed) if parse_rollout(name)]
    if sorted(filed) != sorted(trained):
        return f"filed are {filed}"
    return _left_over(fs.world)


def _lies_in(world: World, name: str) -> bool:
    states = (PATHS.pending, PATHS.claimed, PATHS.consumed, PATHS.quarantine)
    return any(name in _files(world, folder) for folder in states)


def _files(world: World, folder: str) -> list[str]:
    return [
        path.rpartition("/")[2]
        for path, ino in world.names.items()
        if path.startswith(f"{folder}/") and world.data[ino] is not None
    ]


def _left_over(world: World) -> str:
    left = world.children(PATHS.claimed)
    left += [name for name in world.children(PATHS.pending) if not name.endswith(".tmp")]
    return f"left over: {left}" if left else ""


def two_trainers(*, producing: bool = False, **budget: Any) -> Scenario:
    """One trainer that may stand still at any point, and one that follows it by age."""
    actors = [
        Actor("A", trainer("A"), launch="A"),
        Actor("B", trainer("B", by_age=True), launch="B"),
    ]
    if producing:
        actors.append(Actor("P", producer))
    return Scenario("two trainers", start(), tuple(actors), Budget(**budget), nothing_is_lost)


@pytest.mark.parametrize(
    "budget",
    [{"preemptions": 2}, {"crashes": 1, "preemptions": 1}, {"lies": 1, "preemptions": 0}],
    ids=str,
)
def test_a_trainer_paused_at_any_point_past_a_takeover_trains_on_nothing_that_its_follower_does(
    budget: dict[str, int],
) -> None:
    report = explore(two_trainers(**budget))
    assert report.exhausted
    assert report.ends > 10


@pytest.mark.parametrize("seed", range(2))
def test_long_random_schedules_with_a_producer_lose_nothing(seed: int) -> None:
    walk_random_schedules(seed, 60)


def walk_random_schedules(seed: int, walks: int) -> int:
    """Two trainers and a producer, crashes, lies and faults; returns how many schedules."""
    scenario = two_trainers(producing=True, crashes=1, lies=2, faults=1, verdicts=1)
    explored = Explorer(scenario).walk(random.Random(seed), walks=walks)
    assert explored.walks == walks
    return explored.walks


@contextlib.contextmanager
def decided_without_a_fence() -> Iterator[None]:
    """A follower that reads the commits while the one before it can still commit."""

    def leave(queue: RolloutQueue, held: Any, name: Any, folder: str) -> str:
        return folder

    with mock.patch.object(settling, "_fence", leave):
        yield


@contextlib.contextmanager
def undone_without_a_look_at_the_commits() -> Iterator[None]:
    """A recovery that puts back whatever lies in a claim folder."""
    with (
        mock.patch.object(settling, "find_commit", return_value=None),
        mock.patch.object(Ledger, "contains", return_value=False),
    ):
        yield


@pytest.mark.parametrize(
    ("broken", "budget"),
    [
        (decided_without_a_fence, {"preemptions": 2}),
        (undone_without_a_look_at_the_commits, {"crashes": 1, "preemptions": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_exploration_finds_what_goes_wrong_where_a_rule_is_broken(
    broken: Callable[[], contextlib.AbstractContextManager[None]], budget: dict[str, int]
) -> None:
    with broken(), pytest.raises(Violation):
        explore(two_trainers(**budget))
