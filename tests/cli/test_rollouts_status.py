"""``rollouts status``: what it prints for people and programs, and what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.rollouts.abort import ask_abort
from fleetcraft.rollouts.beats import Beater
from fleetcraft.rollouts.producer import Producer
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Settings
from fleetcraft.rollouts.streams import StreamLease
from tests.cli.conftest import Fleet

SETTINGS = Settings(run="wan", batch=4, high_water=10, low_water=5, lock_interval_s=0.05)


@pytest.fixture
def queue(tmp_path: Path) -> RolloutQueue:
    return RolloutQueue.create(f"{tmp_path}/q", SETTINGS)


def publish(queue: RolloutQueue, count: int) -> None:
    with Producer(queue, "seed6", shape="81x480x832") as producer:
        for unit in producer:
            unit.publish(scalars={"reward": float("nan") if unit.sequence == 1 else 1.0})
            if unit.sequence + 1 == count:
                break


def test_status_says_what_waits_and_who_produced_it(bare_fleet: Fleet, queue: RolloutQueue) -> None:
    publish(queue, 3)
    called = bare_fleet.bare("rollouts", "status", queue.paths.folder)
    assert called.code == 0
    assert "run wan, version 0" in called.out
    assert "2 of 10 (2 pending, 0 reserved; refill below 5 pending)" in called.out
    assert "not_finite  1" in called.out
    assert "trainer    gone (nobody ever held it)" in called.out
    assert "seed6   exited" in called.out
    assert "advice: no node: no trainer: nobody ever held it" in called.out


def test_status_as_json_is_one_value_with_null_for_what_is_not_known(
    bare_fleet: Fleet, queue: RolloutQueue
) -> None:
    with StreamLease.acquire(queue, "seed6") as lease, Beater(queue, lease, shape="a"):
        value = bare_fleet.bare("rollouts", "status", queue.paths.folder, "--json").json
    assert value["schema"] == "fleetcraft.rollouts_status/1"
    assert (value["run"], value["pending"], value["waiting"]) == ("wan", 0, 0)
    (stream,) = value["streams"]
    assert (stream["state"], stream["fresh"], stream["produces"]) == ("starting", None, None)
    assert stream["lease"]["alive"] is True
    assert value["rates"] == {"consumed_per_h": None, "produced_per_worker_h": None}
    assert value["abort"] is None
    assert value["advice"]["nodes"] == 0


def test_status_shows_an_abort_without_its_terminal_escapes(
    bare_fleet: Fleet, queue: RolloutQueue
) -> None:
    ask_abort(queue, "look\x1b[31m out\nhere")
    out = bare_fleet.bare("rollouts", "status", queue.paths.folder).out
    assert "ABORT stands: look\\x1b[31m out\\nhere" in out
    assert "\x1b" not in out


def test_status_bounds_its_list_and_says_how_many_it_leaves_out(
    bare_fleet: Fleet, queue: RolloutQueue
) -> None:
    for number in range(5):
        StreamLease.acquire(queue, f"s{number}").release()
    out = bare_fleet.bare("rollouts", "status", queue.paths.folder, "--limit", "2").out
    assert "s1" in out
    assert "s2" not in out
    assert "and 3 more" in out


def test_status_of_no_queue_is_a_mistake_in_the_call(bare_fleet: Fleet, tmp_path: Path) -> None:
    called = bare_fleet.bare("rollouts", "status", str(tmp_path), "--json")
    assert called.code == 2
    assert "no trajectory queue" in called.error["message"]


def test_status_of_settings_that_cannot_be_understood_is_bad_data(
    bare_fleet: Fleet, queue: RolloutQueue
) -> None:
    Path(queue.paths.settings).write_bytes(b"\x00\xff")
    assert bare_fleet.bare("rollouts", "status", queue.paths.folder).code == 7
