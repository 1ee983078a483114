"""``fleetcraft evidence freeze``: what it prints, where it writes, and how it refuses.

Not here: what is in a manifest; tests/evidence/test_manifest.py has that.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Fleet
from tests.evidence.folders import FILES, plant


def test_a_folder_is_frozen_under_a_name_of_the_scratch_tree(fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set")
    value = fleet.ok("evidence", "freeze", "set", "--name", "sweep-1", "--json").json
    assert value["schema"] == "fleetcraft.evidence_freeze/1"
    assert (value["name"], value["files"]) == ("sweep-1", len(FILES))
    assert value["bytes"] == sum(map(len, FILES.values()))
    assert value["kinds"] == {"log": 1, "table": 1, "video": 1}
    kept = fleet.root / "evidence/manifests/sweep-1.json"
    assert value["written"] == [str(kept)]
    assert json.loads(kept.read_bytes())["root_sha256"] == value["root_sha256"]
    again = fleet.ok("evidence", "freeze", "set", "--name", "sweep-1")
    assert "it was there, with the same files" in again.out


def test_a_file_needs_no_scratch_tree(bare_fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set")
    called = bare_fleet.bare("evidence", "freeze", "set", "-o", "m.json", "--json")
    assert called.code == 0
    assert called.json["written"] == ["m.json"]
    assert "/" not in json.loads(Path("m.json").read_bytes())["folder"]


def test_a_manifest_inside_the_folder_leaves_itself_out(fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set")
    value = fleet.ok("evidence", "freeze", "set", "-o", "set/manifest.json", "--json").json
    assert value["left_out"] == ["manifest.json"]
    assert fleet("evidence", "verify", "set", "--level", "reread").code == 0


def test_without_a_place_it_says_what_is_missing(bare_fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set")
    assert bare_fleet.bare("evidence", "freeze", "set").code == 3
    called = bare_fleet("evidence", "freeze", "set", "--json")
    assert called.error["exit_code"] == 3
    assert "no scratch tree" in called.error["message"]


def test_what_is_refused_is_named_and_nothing_is_written(fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set", {"a": b"", "A": b""})
    (tmp_path / "set/\x1b[31mlink").symlink_to("/etc")
    called = fleet("evidence", "freeze", "set", "--name", "s", "--json")
    assert called.code == 7
    problems = {(p["path"], p["problem"]) for p in called.error["facts"]["problems"]}
    assert {("a", "case_collision"), ("A", "case_collision")} <= problems
    shown = fleet("evidence", "freeze", "set", "--name", "s")
    assert "\x1b" not in shown.err
    assert "differ only in case" in shown.err
    assert not (fleet.root / "evidence/manifests/s.json").exists()


def test_kinds_are_declared_by_globs_and_those_that_match_nothing_are_said(
    fleet: Fleet, tmp_path: Path
) -> None:
    plant(tmp_path / "set")
    words = ["--kind", "clips/*=figure", "--kind", "*.none=log"]
    value = fleet.ok("evidence", "freeze", "set", "-o", "m.json", *words, "--json").json
    assert value["kinds"]["figure"] == 1
    assert value["unmatched_globs"] == ["*.none=log"]


def test_wrong_words_are_told_as_such(fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set")
    for words in (["--kind", "x"], ["--kind", "*=film"], ["--name", "../up"]):
        assert fleet("evidence", "freeze", "set", *words).code == 2
    assert fleet("evidence", "freeze", "gone", "-o", "m.json").code == 7
    assert fleet("evidence", "freeze", "set/run.log", "-o", "m.json").code == 7


def test_other_files_under_a_taken_name_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set")
    fleet.ok("evidence", "freeze", "set", "--name", "s", "-o", "m.json")
    plant(tmp_path / "set", {"more": b"1"})
    for words in (["--name", "s"], ["-o", "m.json"]):
        called = fleet("evidence", "freeze", "set", *words)
        assert called.code == 7
        assert "already there" in called.err
