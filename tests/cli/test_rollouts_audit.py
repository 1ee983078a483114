"""``rollouts audit``: the calls, their JSON, and their exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.rollouts.queue import RolloutQueue
from tests.cli.conftest import Fleet
from tests.rollouts.filling import encode, fill, finish, new_queue, put, record, taken


@pytest.fixture
def queue(tmp_path: Path) -> RolloutQueue:
    """A queue with one version and two records that wait."""
    made = new_queue(tmp_path)
    fill(made, 4)
    finish(taken(made))
    fill(made, 2, first=10, version=1)
    return made


def test_a_sound_queue_is_proved_with_exit_code_0(fleet: Fleet, queue: RolloutQueue) -> None:
    called = fleet.bare("rollouts", "audit", queue.paths.folder, "--json")
    assert called.code == 0
    value = called.json
    assert value["schema"] == "fleetcraft.rollouts_audit/1"
    assert {key: value[key] for key in ("ok", "duplicates", "quarantined", "committed")} == {
        "ok": True, "duplicates": 0, "quarantined": 0, "committed": 4,
    }  # fmt: skip
    assert (value["pending"], value["verified"]) == (2, 4)
    text = fleet.bare("rollouts", "audit", queue.paths.folder).out
    assert text.startswith(f"proved: {queue.paths.folder}: no record was trained on twice")
    assert text.splitlines()[1].split() == ["committed", "4", "in", "1", "version"]


def test_a_duplicate_is_exit_code_1_and_its_name_cannot_hurt_the_terminal(
    fleet: Fleet, queue: RolloutQueue
) -> None:
    put(queue, record(0, version=1))
    stray = record(3, version=1, group="\x1b[31mred")
    Path(queue.paths.consumed_folder(1), str(stray.name)).write_bytes(encode(stray))
    called = fleet.bare("rollouts", "audit", queue.paths.folder)
    assert called.code == 1
    assert "problem: s.0.0 waits, and was trained on already" in called.out
    assert "\x1b" not in called.out
    value = fleet.bare("rollouts", "audit", queue.paths.folder, "--json").json
    assert (value["ok"], value["duplicates"]) == (False, 1)
    assert fleet.bare("rollouts", "audit", queue.paths.folder, "--limit", "1").out.endswith(
        "... and 1 more\n"
    )


def test_what_cannot_be_read_is_exit_code_7(fleet: Fleet, queue: RolloutQueue) -> None:
    path = Path(queue.paths.commit(1))
    path.unlink()
    os.mkdir(path)  # unreadable also for root
    called = fleet.bare("rollouts", "audit", queue.paths.folder, "--json")
    assert (called.code, called.json["ok"]) == (7, None)
    assert "unknown: " in fleet.bare("rollouts", "audit", queue.paths.folder).out


def test_a_folder_that_is_no_queue_is_a_usage_error(fleet: Fleet, tmp_path: Path) -> None:
    called = fleet.bare("rollouts", "audit", str(tmp_path), "--json")
    assert called.code == 2
    assert "no trajectory queue" in called.error["message"]
