"""``fleetcraft evidence rerun``: enqueued when all is the same, and otherwise not."""

from __future__ import annotations

import platform
import sys
from typing import Any

import pytest

from tests.cli.conftest import Fleet

FLEET = f"{sys.executable} -m fleetcraft"


@pytest.fixture
def ran(fleet: Fleet) -> Fleet:
    """A task that ran and appended a result, with the versions of here."""
    _run(fleet, "gen", f"python={platform.python_version()}")
    return fleet


def _run(fleet: Fleet, name: str, *stack: str) -> None:
    words = " ".join(f"--stack {one}" for one in stack)
    put = f"{FLEET} evidence append --set sweep --arm {name} --seed 1 --metric m=1 {words}"
    fleet.ok("enqueue", "-n", name, f"echo out > {name}.txt && {put} --output {name}.txt")
    fleet.ok("run")


def names(fleet: Fleet) -> list[str]:
    return sorted(path.name for path in (fleet.spool / "names").iterdir())


def verdicts(value: dict[str, Any]) -> dict[str, str]:
    return {check["what"]: check["verdict"] for check in value["checks"]}


def test_a_result_runs_again_on_the_stack_that_made_it(ran: Fleet) -> None:
    called = ran.ok("evidence", "rerun", "sweep:gen/1", "--json")
    value = called.json
    assert value["schema"] == "fleetcraft.rerun/1"
    assert (value["state"], value["task"], value["rerun_of"]) == ("enqueued", "gen.rerun-1", "gen")
    assert verdicts(value) == {"command": "same", "stack.python": "same", "code": "unrecorded"}
    assert value["writes_over"] == ["gen.txt"]
    assert "it writes over 1 file (gen.txt)" in called.err
    ran.ok("run")
    assert ran.ok("show", "gen.rerun-1", "--json").json["state"] == "done"


def test_a_dry_run_only_compares(ran: Fleet) -> None:
    called = ran.ok("evidence", "rerun", "gen", "--dry-run")
    assert called.out.startswith("would be enqueued: gen.rerun-1 repeats gen\n")
    assert names(ran) == ["gen"]


def test_another_version_is_told_and_nothing_is_enqueued(fleet: Fleet) -> None:
    _run(fleet, "old", "python=2.7.18")
    called = fleet("evidence", "rerun", "old", "--json")
    assert (called.code, called.json["state"]) == (1, "not_enqueued")
    (check,) = [one for one in called.json["checks"] if one["what"] == "stack.python"]
    assert (check["recorded"], check["found"]) == ("2.7.18", platform.python_version())
    text = fleet("evidence", "rerun", "old").out
    assert "differs  stack.python  recorded 2.7.18, here " in text
    assert names(fleet) == ["old"]


def test_anyway_needs_a_reason_and_writes_it_down(fleet: Fleet) -> None:
    _run(fleet, "old", "python=2.7.18")
    assert fleet("evidence", "rerun", "old", "--anyway", " ").code == 2
    fleet.ok("evidence", "rerun", "old", "--as", "again", "--anyway", "only integers here")
    record = fleet.ok("show", "again", "--record").out
    assert "# although stack.python differs: only integers here\n" in record
    assert "export FLEET_RERUN_OF=old\n" in record


def test_without_recorded_versions_nothing_is_enqueued(fleet: Fleet, put: Any) -> None:
    put("plain")
    called = fleet("evidence", "rerun", "plain")
    assert called.code == 7
    assert "unrecorded stack" in called.out
    assert names(fleet) == ["plain"]


def test_a_name_that_nothing_has_is_told(ran: Fleet) -> None:
    called = ran("evidence", "rerun", "genn", "--json")
    assert called.code == 5
    assert "gen" in called.error["hint"]
    assert ran("evidence", "rerun", "sweep:nothing/1").code == 7
