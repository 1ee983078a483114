"""``grid`` and the grid options of ``enqueue``: freeze a list, bind lane last to it, be refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Fleet

PANELS = b'{"name": "a", "command": "echo a"}\n{"name": "b", "command": "echo b"}\n'


def freeze(fleet: Fleet, *words: str, stdin: bytes = PANELS) -> str:
    source = ("--from", "-", "--format", "jsonl")
    call = ("enqueue", "--spool", "gpu", "--lane", "last", *source, "--freeze-grid", *words)
    return fleet.ok(*call, stdin=stdin).out.strip()


def put_last(fleet: Fleet, name: str, command: str, *words: str) -> int:
    call = ("enqueue", "--spool", "gpu", "--lane", "last", "-n", name, *words, command)
    return fleet(*call).code


def test_a_list_is_frozen_bound_and_then_alone_admitted(fleet: Fleet) -> None:
    digest = freeze(fleet)
    assert len(digest) == 64
    bound = fleet.ok("grid", "bind", "--spool", "gpu", digest, "--json").json
    assert (bound["schema"], bound["result"]) == ("fleetcraft.grid_bind/1", "bound")
    again = fleet.ok("grid", "bind", "--spool", "gpu", digest, "--json").json
    assert again["result"] == "already_bound"
    assert put_last(fleet, "a", "echo a") == 0
    assert put_last(fleet, "a", "echo b") == 5
    refused = fleet(
        "enqueue", "--spool", "gpu", "--lane", "last", "-n", "c", "true", "--json"
    ).error
    assert refused["exit_code"] == 5
    assert refused["facts"]["field"] == "name"
    assert refused["facts"]["setting"] == "pack.last_grid"
    assert "declares no task of this name" in refused["message"]
    # A dry run says the same.
    assert put_last(fleet, "c", "true", "--dry-run") == 5
    shown = fleet.ok("grid", "show", "--spool", "gpu", "--json").json
    assert (shown["digest"], shown["bound"], shown["tasks"]) == (digest, True, 2)
    assert shown["names"] == ["a", "b"]
    # The outer spool is another one.
    assert fleet.ok("grid", "show").out == "lane last is open to any task\n"
    assert fleet("enqueue", "--lane", "last", "-n", "c", "true").code == 0


def test_what_is_frozen_is_exactly_what_the_same_words_enqueue(fleet: Fleet) -> None:
    words = ("--retries", "2", "--timeout", "00:10:00")
    digest = freeze(fleet, *words)
    fleet.ok("grid", "bind", "--spool", "gpu", digest)
    call = ("enqueue", "--spool", "gpu", "--lane", "last", "--from", "-", "--format", "jsonl")
    refused = fleet(*call, "--retries", "2", stdin=PANELS)
    assert refused.code == 5
    assert "its directive 'timeout' is not the one" in refused.err
    fleet.ok(*call, *words, stdin=PANELS)


def test_one_task_can_be_frozen_too_and_nothing_is_enqueued(fleet: Fleet) -> None:
    call = ("enqueue", "--lane", "last", "-n", "one", "echo 1", "--freeze-grid", "--json")
    frozen = fleet.ok(*call).json
    assert frozen["schema"] == "fleetcraft.grid_freeze/1"
    assert frozen["tasks"] == 1
    assert Path(frozen["path"]).name == f"{frozen['digest']}.json"
    assert fleet.names() == []


def test_a_grid_of_another_lane_and_a_dry_run_of_freezing_are_usage_errors(fleet: Fleet) -> None:
    assert fleet("enqueue", "-n", "x", "true", "--freeze-grid").code == 2
    assert fleet("enqueue", "-n", "x", "true", "--freeze-grid", "--dry-run").code == 2


def test_a_digest_that_is_none_and_one_that_the_spool_does_not_have_are_refused(
    fleet: Fleet,
) -> None:
    assert fleet("grid", "bind", "abc").code == 3
    refused = fleet("grid", "bind", "0" * 64)
    assert refused.code == 5
    assert "--freeze-grid" in refused.err


def test_the_projects_setting_binds_the_inner_spool_at_the_first_enqueue(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = freeze(fleet)
    Path("fleet.yaml").write_text(f"pack:\n  last_grid: {digest}\n")
    assert put_last(fleet, "c", "true") == 5
    shown = fleet.ok("grid", "show", "--spool", "gpu").out
    assert shown.startswith("lane last is not bound yet; pack.last_grid is")
    assert put_last(fleet, "a", "echo a") == 0
    assert fleet.ok("grid", "show", "--spool", "gpu", "--json").json["bound"] is True
    # From now on it holds for those who do not have the setting, too.
    Path("fleet.yaml").unlink()
    assert put_last(fleet, "c", "true") == 5
    # And a project with another list is told so.
    monkeypatch.setenv("FLEET_PACK_LAST_GRID", freeze(fleet, stdin=PANELS.splitlines()[0]))
    refused = fleet("enqueue", "--spool", "gpu", "--lane", "last", "-n", "a", "echo a")
    assert refused.code == 5
    assert "pack.last_grid is" in refused.err
    assert f"is bound to {digest}" in refused.err
    # The outer spool's lane is not what the setting speaks of.
    assert fleet("enqueue", "--lane", "last", "-n", "c", "true").code == 0


def test_a_setting_that_is_no_digest_is_a_configuration_error(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_PACK_LAST_GRID", "panel-7")
    assert put_last(fleet, "a", "echo a") == 3
    # Where it does not matter it is not looked at.
    assert fleet("enqueue", "--spool", "gpu", "-n", "a", "echo a").code == 0


@pytest.mark.parametrize("verb", [["worker", "--idle", "0.1"], ["run"]], ids=["worker", "run"])
def test_a_worker_of_a_project_with_a_grid_binds_the_inner_spool_before_it_claims(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    assert put_last(fleet, "invented", "touch invented") == 0
    assert put_last(fleet, "a", "echo a") == 0
    monkeypatch.setenv("FLEET_PACK_LAST_GRID", freeze(fleet))
    assert fleet(*verb, "--spool", "gpu").code == 0
    assert not Path("invented").exists()
    counts = fleet.ok("status", "--spool", "gpu", "--json").json["counts"]
    assert (counts["pending"], counts["done"]) == (1, 1)
    assert fleet.ok("grid", "show", "--spool", "gpu", "--json").json["bound"] is True
