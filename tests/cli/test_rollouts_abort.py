"""``rollouts abort``: asks, says that it stands, and takes it back under a dated name."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Settings
from tests.cli.conftest import Called, Fleet


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return RolloutQueue.create(f"{tmp_path}/q", Settings(run="wan")).paths.folder


def abort(fleet: Fleet, folder: str, *words: str) -> Called:
    return fleet.bare("rollouts", "abort", folder, *words)


def test_it_stands_until_it_is_cleared_and_the_first_reason_stays(
    bare_fleet: Fleet, folder: str
) -> None:
    first = abort(bare_fleet, folder, "--reason", "reward model is wrong", "--json").json
    assert first["action"] == "asked"
    assert first["request"]["reason"] == "reward model is wrong"
    second = abort(bare_fleet, folder, "--reason", "another", "--json").json
    assert second["action"] == "stood_already"
    assert second["request"] == first["request"]
    cleared = abort(bare_fleet, folder, "--clear", "--json").json
    assert cleared["action"] == "cleared"
    assert "/control/ABORT.cleared.2" in cleared["path"]
    assert Path(cleared["path"]).is_file()
    again = abort(bare_fleet, folder, "--clear")
    assert (again.code, again.out) == (0, "ABORT does not stand\n")


def test_text_names_who_asked(bare_fleet: Fleet, folder: str) -> None:
    out = abort(bare_fleet, folder, "--reason", "why\x1b[2J").out
    assert out.startswith("ABORT stands now: why\\x1b[2J, asked by ")
    assert "kept as " in abort(bare_fleet, folder, "--clear").out


def test_a_dry_run_only_says_whether_it_stands(bare_fleet: Fleet, folder: str) -> None:
    assert abort(bare_fleet, folder, "--dry-run").out == "ABORT does not stand\n"
    abort(bare_fleet, folder, "--reason", "why")
    out = abort(bare_fleet, folder, "--clear", "--dry-run").out
    assert out.startswith("ABORT stood already: why")
    assert Path(folder, "control", "ABORT").is_file()


@pytest.mark.parametrize("words", [(), ("--clear", "--reason", "x")])
def test_a_reason_is_needed_to_ask_and_none_to_clear(
    bare_fleet: Fleet, folder: str, words: tuple[str, ...]
) -> None:
    called = abort(bare_fleet, folder, *words)
    assert called.code == 2
    assert not Path(folder, "control", "ABORT").exists()


def test_no_queue_is_a_mistake_in_the_call(bare_fleet: Fleet, tmp_path: Path) -> None:
    assert abort(bare_fleet, str(tmp_path), "--reason", "x").code == 2
