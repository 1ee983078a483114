"""``fleetcraft caches show``: effective paths of tasks and of a bare process, and who decided."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fleetcraft.caches.roles import VARIABLES
from tests.cli.conftest import Fleet


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")


def role(roles: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [one] = [one for one in roles if one["role"] == name]
    return one


def test_both_what_tasks_get_and_what_a_bare_process_uses_are_shown(fleet: Fleet) -> None:
    said = fleet.ok("caches", "show", "--json").json
    assert said["schema"] == "fleetcraft.caches/1"
    hub = role(said["tasks"], "hub")
    assert hub["path"] == f"{fleet.root}/caches/huggingface/hub"
    assert hub["decided_by"] == "caches.root"
    assert hub["exists"] is False
    assert hub["filesystem"]["network"] in (True, False, None)
    assert role(said["here"], "hub")["path"] == "/home/me/.cache/huggingface/hub"
    assert role(said["here"], "hub")["decided_by"] == "default"
    assert len(said["digest"]) == 64


def test_the_variable_that_wins_and_those_that_lose_are_named(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/a")
    monkeypatch.setenv("HUGGINGFACE_HUB_CACHE", "/b")
    hub = role(fleet.ok("caches", "show", "--json").json["tasks"], "hub")
    assert (hub["path"], hub["decided_by"]) == ("/a", "HF_HUB_CACHE")
    assert hub["overridden"] == [
        {"variable": "HUGGINGFACE_HUB_CACHE", "path": "/b", "same_role": True}
    ]
    text = fleet.ok("caches", "show").out
    assert "set, and without effect" in text
    assert "HUGGINGFACE_HUB_CACHE" in text


def test_without_a_scratch_tree_this_process_is_shown_and_it_says_why(bare_fleet: Fleet) -> None:
    called = bare_fleet.bare("caches", "show")
    assert called.code == 0
    assert "/home/me/.cache/huggingface/hub" in called.out
    assert "no scratch tree is known" in called.out


def test_training_has_sources_of_its_own(fleet: Fleet) -> None:
    said = fleet.ok("caches", "show", "--purpose", "train", "--json").json
    assert "/caches/train/triton/" in role(said["tasks"], "triton")["path"]


def test_hostile_values_are_spelled_out(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/x\x1b[2Jy\nz")
    text = fleet.ok("caches", "show").out
    assert "\x1b" not in text
    assert "/x\\x1b[2Jy" in text


def test_a_python_that_does_not_answer_is_told_with_exit_7(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_BATCH_PYTHON", "/nowhere/python")
    called = fleet("caches", "show", "--ask", "--json")
    assert called.code == 7
    assert called.json["asked"]["answered"] is False
    assert "cannot be started" in called.json["unknown"][0]


def test_looking_makes_nothing(fleet: Fleet) -> None:
    before = sorted(str(path) for path in fleet.root.rglob("*"))
    fleet.ok("caches", "show")
    fleet.ok("caches", "check")
    fleet.ok("caches", "env", "--run", "a")
    assert sorted(str(path) for path in fleet.root.rglob("*")) == before
    assert not os.path.exists(fleet.root / "caches")
