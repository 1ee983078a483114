"""``fleetcraft train claims``: its answers, exit codes, and the one task that it enqueues."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.cli.train import COMMANDS
from fleetcraft.cli.train.claims import claims_command
from fleetcraft.training.checkpoint.records import Part
from tests.cli.conftest import Fleet
from tests.training.checkpoint.incident import RESUME, TASK, Incident
from tests.training.checkpoint.stores import save


@pytest.fixture
def incident(fleet: Fleet) -> Incident:
    made = Incident(fleet.root)
    made.declare()
    made.end_task(TASK)
    return made


def test_its_help_begins_as_the_table_says(bare_fleet: Fleet) -> None:
    assert (claims_command.help or "").partition("\n")[0] == COMMANDS["claims"][1]
    assert bare_fleet.bare("train", "claims", "--help").code == 0


def test_a_done_task_before_its_end_is_a_no_and_is_resumed_once(
    fleet: Fleet, incident: Incident
) -> None:
    save(incident.store, 30)
    looked = fleet("train", "claims", "--json")
    assert (looked.code, looked.err) == (1, "")
    (run,) = looked.json["runs"]
    assert looked.json["schema"] == "fleetcraft.train-claims/1"
    assert (run["standing"], run["have"], run["kind"], run["want"], run["resume"]) == (
        "invalid", 30, "EXACT", 37, RESUME,
    )  # fmt: skip

    dry = fleet("train", "claims", TASK, "--resume", "--dry-run")
    assert dry.code == 1
    assert fleet.names() == [TASK]

    first = fleet("train", "claims", TASK, "--resume", "--json")
    assert (first.code, first.json["runs"][0]["standing"]) == (0, "resumed")
    again = fleet("train", "claims", TASK, "--resume", "--json")
    assert (again.code, again.json["runs"][0]["standing"]) == (0, "resuming")
    assert fleet.names() == [TASK, RESUME]
    assert fleet.state(RESUME) == "pending"


def test_only_weights_need_consent(fleet: Fleet, incident: Incident) -> None:
    save(incident.store, 30, but=Part.OPTIMIZER)
    asked = fleet("train", "claims", "--resume")
    assert asked.code == 1
    assert "holds weights only (missing: optimizer)" in asked.out
    assert fleet("train", "claims", "--resume", "--from-weights").code == 0
    assert fleet.names() == [TASK, RESUME]


def test_an_end_that_is_reached_is_valid(fleet: Fleet, incident: Incident) -> None:
    save(incident.store, 37)
    called = fleet("train", "claims")
    assert called.code == 0
    assert "step 37 is committed, EXACT" in called.out


def test_an_end_that_cannot_be_read_is_unknown(fleet: Fleet, incident: Incident) -> None:
    Path(incident.paths.end).write_text("{torn")
    called = fleet("train", "claims", "--resume", "--json")
    assert (called.code, called.json["runs"][0]["standing"]) == (7, "unknown")
    assert fleet.names() == [TASK]


def test_without_runs_it_says_so_and_a_wrong_name_is_told_a_near_one(
    fleet: Fleet, tmp_path: Path
) -> None:
    assert fleet.ok("train", "claims").out == "no run is there\n"
    os.makedirs(fleet.root / "runs" / "distill")
    wrong = fleet("train", "claims", "distil")
    assert wrong.code == 2
    assert "did you mean distill?" in wrong.err
