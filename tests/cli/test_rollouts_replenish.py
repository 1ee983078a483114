"""``rollouts replenish``: one task a pass, and none on what is not known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.locks import GenerationLock
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Settings
from tests.cli.conftest import Called, Fleet

SETTINGS = Settings(run="wan", batch=4, high_water=10, low_water=5, beat_s=0.05, fresh_s=0.2)


@pytest.fixture
def queue(tmp_path: Path) -> RolloutQueue:
    return RolloutQueue.create(f"{tmp_path}/q", SETTINGS)


@pytest.fixture
def trainer(queue: RolloutQueue) -> Iterator[None]:
    held = GenerationLock(queue.paths.trainer_lock, purpose="training of wan").acquire()
    yield
    held.release()


def replenish(fleet: Fleet, queue: RolloutQueue, *words: str) -> Called:
    return fleet("rollouts", "replenish", queue.paths.folder, *words)


@pytest.mark.usefixtures("trainer")
def test_a_low_queue_with_a_live_trainer_gets_one_task_and_no_second(
    fleet: Fleet, queue: RolloutQueue
) -> None:
    words = ("--workers-per-node", "3", "--time", "01:00:00", "produce --stream s{n}")
    first = replenish(fleet, queue, "--json", *words).json
    assert (first["schema"], first["action"]) == ("fleetcraft.rollouts_replenish/1", "enqueued")
    assert first["task"] == "rollouts.wan.000001"
    assert first["advice"]["nodes"] == 1
    assert fleet.state("rollouts.wan.000001") == "pending"
    assert "produce --stream s1" in fleet.record("rollouts.wan.000001")
    second = replenish(fleet, queue, *words)
    assert second.code == 0
    assert "task rollouts.wan.000001 waits to be run" in second.out
    assert fleet.names() == ["rollouts.wan.000001"]


@pytest.mark.usefixtures("trainer")
def test_given_rates_are_those_of_a_node_and_shown_in_the_arithmetic(
    fleet: Fleet, queue: RolloutQueue
) -> None:
    called = replenish(
        fleet, queue, "--produced-per-hour", "154", "--consumed-per-hour", "96",
        "--workers-per-node", "3", "--dry-run", "--", "produce", "a b",
    )  # fmt: skip
    assert called.code == 0
    assert called.out.startswith("would be enqueued: rollouts.wan.000001")
    assert "one node more gains 58 an hour" in called.out
    assert fleet.names() == []


def test_without_a_trainer_nothing_is_enqueued(fleet: Fleet, queue: RolloutQueue) -> None:
    called = replenish(fleet, queue, "produce")
    assert (called.code, fleet.names()) == (0, [])
    assert "no trainer: nobody ever held it" in called.out


@pytest.mark.usefixtures("trainer")
def test_a_worker_of_which_nothing_is_known_is_watched_and_then_called_unknown(
    fleet: Fleet, queue: RolloutQueue
) -> None:
    from fleetcraft.rollouts.beats import Beater
    from fleetcraft.rollouts.streams import StreamLease

    slow = RolloutQueue.create(
        f"{queue.paths.folder}/slow", Settings(run="wan", batch=4, high_water=10, low_water=5)
    )
    held = GenerationLock(slow.paths.trainer_lock, purpose="training of wan").acquire()
    Beater(slow, StreamLease.acquire(slow, "s")).beat()
    called = replenish(fleet, slow, "--for", "1s", "--json", "produce")
    held.release()
    assert called.code == 75
    assert called.json["action"] == "unknown"
    assert called.json["workers"] == {"fresh": [], "unknown": ["s"]}
    assert fleet.names() == []


@pytest.mark.usefixtures("trainer")
def test_a_worker_that_is_silent_for_long_enough_suppresses_nothing(
    fleet: Fleet, queue: RolloutQueue
) -> None:
    from fleetcraft.rollouts.beats import Beater
    from fleetcraft.rollouts.streams import StreamLease

    lease = StreamLease.acquire(queue, "s")
    with lease, Beater(queue, lease):
        called = replenish(fleet, queue, "--json", "produce")
        assert called.json["workers"] == {"fresh": ["s"], "unknown": []}
        assert called.json["action"] == "not_needed"
    Beater(queue, StreamLease.acquire(queue, "s")).beat()
    assert replenish(fleet, queue, "--json", "produce").json["action"] == "enqueued"


@pytest.mark.parametrize("words", [(), ("--workers-per-node", "0", "x")])
def test_a_call_without_a_command_or_workers_is_a_mistake(
    fleet: Fleet, queue: RolloutQueue, words: tuple[str, ...]
) -> None:
    assert replenish(fleet, queue, *words).code == 2


def test_a_spool_that_is_not_there_is_said_before_anything_is_watched(
    bare_fleet: Fleet, queue: RolloutQueue
) -> None:
    assert replenish(bare_fleet, queue, "produce").code == 5
