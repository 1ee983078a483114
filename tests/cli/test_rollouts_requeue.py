"""``rollouts requeue``: the calls, their JSON, and their exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.rollouts.queue import RolloutQueue
from tests.cli.conftest import Fleet
from tests.rollouts.filling import counts, fill, held_on, new_queue, taken
from tests.rollouts.test_requeue import set_aside


@pytest.fixture
def queue(tmp_path: Path) -> RolloutQueue:
    return new_queue(tmp_path)


def test_a_name_and_a_reason_put_records_back(fleet: Fleet, queue: RolloutQueue) -> None:
    folder = queue.paths.folder
    names = [set_aside(queue, sequence) for sequence in range(3)]
    dry = fleet.bare("rollouts", "requeue", folder, names[0], "--dry-run")
    assert (dry.code, dry.out.splitlines()[0]) == (0, f"{folder}: 1 record would be put back")
    one = fleet.bare("rollouts", "requeue", folder, names[0], "--json")
    assert (one.code, one.json["requeued"]) == (0, [names[0]])
    rest = fleet.bare("rollouts", "requeue", folder, "--reason", "requested", "--limit", "1")
    assert rest.out.splitlines() == [
        f"{folder}: 2 records put back", f"  {names[1]}", "  ... and 1 more",
    ]  # fmt: skip
    assert counts(queue)["pending"] == 3


def test_what_stays_is_exit_code_1_with_the_reason(fleet: Fleet, queue: RolloutQueue) -> None:
    name = set_aside(queue, 0, version=5)
    called = fleet.bare("rollouts", "requeue", queue.paths.folder, name)
    assert called.code == 1
    assert f"left: {name}: begun under version 5" in called.out


def test_a_dead_trainers_batch_is_undone(fleet: Fleet, queue: RolloutQueue) -> None:
    folder = queue.paths.folder
    fill(queue, 4)
    held = held_on(queue)
    taken(queue, held=held)
    assert fleet.bare("rollouts", "requeue", folder, "--dead").code == 75
    dry = fleet.bare("rollouts", "requeue", folder, "--dead", "--dry-run")
    assert dry.out == "open transactions: 0 would be filed, 1 would be undone\n"
    held.release()
    value = fleet.bare("rollouts", "requeue", folder, "--dead", "--json").json
    assert value["recovered"]["returned"] == 4
    assert counts(queue)["pending"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to requeue"),
        (["--reason", "lagg"], "no reason 'lagg'"),
        (["x.json", "--dead"], "--dead goes with no NAME"),
        (["x.json", "--by-age"], "--by-age goes with --dead"),
        (["x.json"], "not in quarantine: x.json"),
    ],
)
def test_a_call_that_makes_no_sense_is_a_usage_error(
    fleet: Fleet, queue: RolloutQueue, words: list[str], message: str
) -> None:
    called = fleet.bare("rollouts", "requeue", queue.paths.folder, *words, "--json")
    assert called.code == 2
    assert message in called.error["message"]
