"""Room in the queue: explored in a model in every order, and counted on a real disk.

The exploration holds the high water at every single step of producers and a trainer that undoes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from fleetcraft.errors import SpoolError, UsageError
from fleetcraft.layout.rollouts import RolloutName, RolloutPaths, parse_rollout
from fleetcraft.locks import Holder, LockLostError
from fleetcraft.rollouts import admission
from fleetcraft.rollouts.admission import (
    Admission,
    Reservation,
    Room,
    Throttled,
    look,
    release_dead,
    release_older,
    require_unit,
)
from fleetcraft.rollouts.publishing import Published, publish
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Commit, encode
from tests.explore.explorer import Actor, Budget, End, Explorer, Scenario, Violation, explore
from tests.explore.model_fs import ModelFS, World
from tests.rollouts.producing import (
    SLOT,
    DisturbedFS,
    Killed,
    QuickFS,
    files_in,
    gone,
    lease_of,
    queue_in,
    record_of,
    room_for,
    settings_for,
    unknown,
    with_fs,
)

# ------------------------------------------------------------------------- explored in a model

PATHS = RolloutPaths("/q")
HIGH = 2


def model_queue(fs: ModelFS) -> RolloutQueue:
    return RolloutQueue(PATHS, settings_for(batch=1, low_water=1, high_water=HIGH), fs)


def world_with(pending: int) -> World:
    world = World()
    folders = (*PATHS.folders(), *(PATHS.ident_folder(name) for name in "ABC"))
    for ino, folder in enumerate(folders, start=1):
        world.names[folder] = ino
        world.data[ino] = None
    for sequence in range(pending):
        world.names[f"{PATHS.pending}/{RolloutName(0, 't', sequence, 0)}"] = 900 + sequence
        world.data[900 + sequence] = b""
    return world


def producer(stream: str, units: int = 1) -> Callable[[ModelFS], str]:
    """Reserves and publishes, one unit after another, for as long as it is let."""

    def act(fs: ModelFS) -> str:
        queue = model_queue(fs)
        lease: Any = SimpleNamespace(
            stream=stream, generation=1, nonce=stream, slot=SLOT, check=lambda: None
        )
        rooms = Admission(queue, lease)
        for sequence in range(units):
            room = rooms.reserve(sequence, [0])
            if isinstance(room, Throttled):
                return f"throttled at {sequence}"
            assert isinstance(publish(queue, record_of(lease, sequence), room), Published)
        return f"made {units}"

    return act


def trainer(times: int) -> Callable[[ModelFS], str]:
    """Claims what is pending and gives it back, by one transaction after another."""

    def act(fs: ModelFS) -> str:
        for number in range(1, times + 1):
            name = f"v000001-{number}-n"
            fs.create(PATHS.intent(name), b"")
            fs.make_folder(PATHS.claim_folder(name))
            claimed = [file for file in fs.listdir(PATHS.pending) if parse_rollout(file)]
            for file in claimed:
                fs.rename_new(f"{PATHS.pending}/{file}", f"{PATHS.claim_folder(name)}/{file}")
            for file in claimed:
                fs.rename_new(f"{PATHS.claim_folder(name)}/{file}", f"{PATHS.pending}/{file}")
            fs.remove_folder(PATHS.claim_folder(name))
            fs.create(PATHS.intent(f"{name}.rolled-back"), b"")
            fs.unlink(PATHS.intent(name))
        return "trained"

    return act


def below_high_water(world: World, left: Budget) -> str:
    """Distinct identities that are held, pending or claimed."""
    held = {
        tuple(name.split(".")[:3])
        for name in world.children(PATHS.reserved)
        if not name.endswith(".asked")
    }
    records = [
        name
        for path in world.names
        if path.startswith((PATHS.pending + "/", PATHS.claimed + "/"))
        and (name := parse_rollout(path.rpartition("/")[2])) is not None
    ]
    there = {(n.stream, f"{n.sequence:08d}", f"{n.sample:03d}") for n in records}
    both = held | there
    return f"{len(both)} are held or there: {sorted(both)}" if len(both) > HIGH else ""


def scenario(pending: int, *actors: Callable[[ModelFS], str], **budget: int) -> Scenario:
    named = tuple(Actor("PQRT"[index], act) for index, act in enumerate(actors))
    return Scenario(
        "admission", world_with(pending), named, Budget(**budget), nothing_is_wrong,
        always=below_high_water,
    )  # fmt: skip


def nothing_is_wrong(end: End) -> str:
    return ""


@pytest.mark.parametrize(
    ("pending", "actors", "budget"),
    [
        (1, (producer("A"), producer("B")), {"preemptions": 3, "crashes": 1}),
        (1, (producer("A", 2), producer("B", 2)), {"preemptions": 3}),
        (1, (producer("A"), producer("B")), {"preemptions": 2, "lies": 1}),
        (1, (producer("A"), producer("B")), {"preemptions": 2, "faults": 1}),
        (2, (producer("A"), trainer(1)), {"preemptions": 3}),
        (2, (producer("A"), trainer(2)), {"preemptions": 2}),
        (1, (producer("A"), producer("B"), trainer(1)), {"preemptions": 2}),
    ],
)
def test_the_high_water_is_never_exceeded_at_any_step(
    pending: int, actors: tuple[Callable[[ModelFS], str], ...], budget: dict[str, int]
) -> None:
    report = explore(scenario(pending, *actors, **budget))
    assert report.exhausted
    assert report.ends > 10


@pytest.mark.parametrize("seed", range(2))
def test_long_random_schedules_never_exceed_it_either(seed: int) -> None:
    actors = (producer("A", 2), producer("B", 2), trainer(3))
    walked = Explorer(scenario(1, *actors, lies=2, faults=1, crashes=1)).walk(
        random.Random(seed), walks=60
    )
    assert walked.walks == 60


def counted_first(self: Admission, sequence: int, samples: tuple[int, ...]) -> Any:
    """Looks before it reserves."""
    room = look(self._queue)
    if room is None or room.taken + len(samples) > self._queue.settings.high_water:
        return Throttled(waiting=None, claimed=None, why="")
    reservation = Reservation(self._queue, self._lease, sequence)
    reservation._ask(samples)
    reservation._keep(samples)
    return reservation


def looked_once(queue: RolloutQueue) -> Room:
    """Lists each folder once."""
    claimed = admission._uncommitted(queue)
    waiting = {name.place for name in admission.reservations(queue)}
    waiting |= {(n.stream, n.sequence, n.sample) for n in queue.names(queue.paths.pending)}
    return Room(pending=frozenset(), waiting=frozenset(waiting), claimed=frozenset(claimed))


def pending_before_reserved(queue: RolloutQueue) -> Room:
    """Lists in the direction in which records do not move."""
    waiting = {(n.stream, n.sequence, n.sample) for n in queue.names(queue.paths.pending)}
    waiting |= {name.place for name in admission.reservations(queue)}
    return Room(pending=frozenset(), waiting=frozenset(waiting), claimed=frozenset())


@pytest.mark.parametrize(
    ("broken", "actors"),
    [
        (mock.patch.object(Admission, "_try", counted_first), (producer("A"), producer("B"))),
        (mock.patch.object(admission, "look", looked_once), (producer("A"), trainer(1))),
        (
            mock.patch.object(admission, "look", pending_before_reserved),
            (producer("A"), producer("B")),
        ),
    ],
    ids=["counted first", "looked once", "pending before reserved"],
)
def test_the_exploration_finds_too_many_where_a_rule_is_broken(
    broken: Any, actors: tuple[Callable[[ModelFS], str], ...]
) -> None:
    pending = 2 if len(actors) == 2 and "trainer" in actors[1].__qualname__ else 1
    with broken, pytest.raises(Violation, match="are held or there"):
        explore(scenario(pending, *actors, preemptions=4))


# --------------------------------------------------------------------------- on a real disk


def put(queue: RolloutQueue, count: int, stream: str = "t", folder: str = "") -> list[Path]:
    made = []
    for sequence in range(count):
        path = Path(folder or queue.paths.pending, str(RolloutName(0, stream, sequence, 0)))
        path.touch()
        made.append(path)
    return made


def test_room_is_given_up_to_the_high_water_and_then_not_until_below_the_low_one(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)  # 10 and 5
    files = put(queue, 7)
    rooms = Admission(queue, lease_of(queue))
    held = [rooms.reserve(sequence, [0]) for sequence in range(3)]
    assert all(isinstance(room, Reservation) for room in held)
    refused = rooms.reserve(3, [0])
    assert isinstance(refused, Throttled)
    assert (refused.waiting, refused.claimed) == (10, 0)
    for path in files[:2]:
        path.unlink()
        assert isinstance(rooms.reserve(3, [0]), Throttled)  # 6 and 5 are not below 5
    files[2].unlink()
    assert isinstance(rooms.reserve(3, [0]), Reservation)
    assert files_in(queue.paths.reserved) == [f"s.{n:08d}.000.1" for n in range(4)]


@pytest.mark.parametrize("left", ["reserved", "pieces"])
def test_what_dead_workers_left_does_not_keep_the_living_waiting_for_ever(
    tmp_path: Path, left: str
) -> None:
    """A trainer that lacks one whole group of a batch waits for them."""
    queue = queue_in(tmp_path, group=2)
    rooms = Admission(queue, lease_of(queue))
    filling = put(queue, 10)
    assert isinstance(rooms.reserve(0, [0, 1]), Throttled)
    for path in filling:
        path.unlink()
    for sequence in range(2):
        if left == "reserved":
            room_for(queue, lease_of(queue, "dead"), sequence, samples=2)
        else:
            put(queue, 4, "pieces")
        put(queue, 1, "whole")
        Path(queue.paths.pending, str(RolloutName(0, "whole", 0, 1))).touch()
    assert isinstance(rooms.reserve(0, [0, 1]), Reservation)


def test_a_unit_gets_room_for_all_its_samples_or_for_none(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    put(queue, 8)
    rooms = Admission(queue, lease_of(queue))
    assert isinstance(rooms.reserve(0, range(3)), Throttled)
    assert files_in(queue.paths.reserved) == []
    fresh = Admission(queue, lease_of(queue, "u"))
    room = fresh.reserve(0, range(2))
    assert isinstance(room, Reservation)
    assert room.samples == (0, 1)


@pytest.mark.parametrize("samples", [0, 7])
def test_a_unit_that_might_never_get_room_is_a_mistake(tmp_path: Path, samples: int) -> None:
    queue = queue_in(tmp_path)  # 10, and a batch of 4 may come back
    with pytest.raises(UsageError, match="expected 1 to 6"):
        require_unit(queue, samples)


def test_two_hundred_pending_at_a_restart_are_no_reason_to_make_more(tmp_path: Path) -> None:
    queue = queue_in(tmp_path, batch=64, low_water=80, high_water=160)
    files = put(queue, 200)
    rooms = Admission(queue, lease_of(queue))
    assert isinstance(rooms.reserve(0, [0]), Throttled)
    for path in files[:120]:
        path.unlink()
    assert isinstance(rooms.reserve(0, [0]), Throttled)  # 80 are not below 80
    files[120].unlink()
    assert isinstance(rooms.reserve(0, [0]), Reservation)


def claim_folder(queue: RolloutQueue, transaction: str) -> str:
    folder = queue.paths.claim_folder(transaction)
    os.mkdir(folder)
    return folder


@pytest.mark.parametrize("folder", ["v000001-1-n", "v000001-1-n.2-token", "not ours"])
def test_claimed_records_that_may_come_back_keep_their_room(tmp_path: Path, folder: str) -> None:
    queue = queue_in(tmp_path)
    put(queue, 4, folder=claim_folder(queue, folder))
    put(queue, 6, "u")
    refused = Admission(queue, lease_of(queue)).reserve(0, [0])
    assert isinstance(refused, Throttled)
    assert (refused.waiting, refused.claimed) == (6, 4)


@pytest.mark.parametrize("folder", ["v000001-1-n", "v000001-1-n.2-token"])
def test_claimed_records_of_a_commit_never_come_back(tmp_path: Path, folder: str) -> None:
    queue = queue_in(tmp_path)
    put(queue, 4, folder=claim_folder(queue, folder))
    put(queue, 6, "u")
    commit = Commit(
        version=1, parent=0, transaction="v000001-1-n", generation=1, nonce="n", members=(),
        checkpoint="c", checkpoint_sha256="", at="",
    )  # fmt: skip
    path = Path(queue.paths.commit(1))
    path.write_bytes(encode(msgspec.structs.replace(commit, transaction="v000001-2-other")))
    assert isinstance(Admission(queue, lease_of(queue)).reserve(0, [0]), Throttled)
    path.write_bytes(encode(commit))
    assert isinstance(Admission(queue, lease_of(queue, "v")).reserve(0, [0]), Reservation)


def test_a_queue_whose_transactions_never_stand_still_gives_no_room(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    count = 0

    class Restless(type(queue.fs)):  # type: ignore[misc]
        def listdir(self, path: str) -> list[str]:
            nonlocal count
            count += 1
            return [f"v{count}.json"] if path == queue.paths.transactions else super().listdir(path)

    restless = with_fs(queue, Restless())
    assert look(restless) is None
    refused = Admission(restless, lease_of(queue)).reserve(0, [0])
    assert isinstance(refused, Throttled)
    assert refused.waiting is None
    assert files_in(queue.paths.reserved) == []


def test_a_folder_that_cannot_be_listed_gives_no_room_and_leaves_none_reserved(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    lease = lease_of(queue)
    counted = DisturbedFS(0, "before")
    Admission(with_fs(queue, counted), lease).reserve(0, [0])
    for at in range(1, counted.steps + 1):
        disturbed = DisturbedFS(at, 5)
        with pytest.raises(SpoolError, match="cannot reserve room"):
            Admission(with_fs(queue, disturbed), lease).reserve(at, [0])
        assert files_in(queue.paths.reserved) == ["s.00000000.000.1"], disturbed.hit


def test_the_next_holder_releases_what_the_one_before_had_reserved_and_nothing_else(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path, high_water=100)
    room_for(queue, lease_of(queue, "t"))
    first = lease_of(queue)
    room_for(queue, first, samples=2)
    counted = DisturbedFS(0, "before")
    Admission(with_fs(queue, counted), first).reserve(1, [0])
    for at in range(1, counted.steps + 1):  # killed anywhere in a third one
        with pytest.raises(Killed):
            Admission(with_fs(queue, DisturbedFS(at, "after")), first).reserve(1 + at, [0])
    second = lease_of(queue)
    mine = room_for(queue, second)
    assert release_older(queue, second) > counted.steps
    assert files_in(queue.paths.reserved) == ["s.00000000.000.2", "t.00000000.000.1"]
    assert mine.samples == (0,)
    with pytest.raises(LockLostError):
        release_older(queue, first)


def test_a_repair_releases_for_those_who_left_or_are_gone_and_for_nobody_else(
    tmp_path: Path,
) -> None:
    queue = queue_in(tmp_path)
    left, lives, silent = (lease_of(queue, name) for name in ("left", "lives", "silent"))
    for lease in (left, lives, silent):
        room_for(queue, lease)
    left.release()

    def judge(holder: Holder) -> bool | None:
        return True if "lives" in holder.purpose else None

    assert release_dead(queue, judge=judge) == {"left": 1}
    assert files_in(queue.paths.reserved) == ["lives.00000000.000.1", "silent.00000000.000.1"]
    assert release_dead(queue, judge=unknown) == {}
    assert release_dead(queue, judge=gone) == {"lives": 1, "silent": 1}


def test_a_repair_leaves_alone_what_the_holder_that_followed_has_reserved(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    room_for(queue, lease_of(queue))
    second = lease_of(queue)
    room_for(queue, second)
    assert release_dead(queue, judge=lambda holder: True) == {"s": 1}
    assert files_in(queue.paths.reserved) == ["s.00000000.000.2"]


def test_room_that_was_taken_away_while_it_was_counted_is_not_given(tmp_path: Path) -> None:
    """A holder that was paused there, and followed meanwhile."""
    queue = queue_in(tmp_path)
    first = lease_of(queue)

    class Paused(QuickFS):
        def listdir(self, path: str) -> list[str]:
            if path == queue.paths.pending:
                release_older(queue, lease_of(queue))
            return super().listdir(path)

    with pytest.raises(SpoolError, match="the reservation was taken away"):
        Admission(with_fs(queue, Paused()), first).reserve(0, [0])
    assert files_in(queue.paths.reserved) == []
