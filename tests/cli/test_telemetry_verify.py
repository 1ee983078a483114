"""``fleetcraft telemetry verify``: verdicts, exit codes, and what could not be checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import REPO, Fleet
from tests.telemetry.trees import lines, write_file

WINDOWS = REPO.parent / "shared" / "telemetry" / "windows"
T = 1_800_000_000.0
archived = pytest.mark.skipif(not WINDOWS.is_dir(), reason="no archived windows beside this copy")


@pytest.fixture
def window(fleet: Fleet, tmp_path: Path) -> Path:
    write_file(fleet.root / "telemetry", "n1", lines(T + 30, 10))
    path = tmp_path / "evidence" / "w.json"
    path.parent.mkdir()
    fleet.ok("telemetry", "summary", "--end", "2027-01-15T08:05:00", "--freeze", str(path))
    return path


def test_a_window_that_holds_is_verified_with_its_sources(fleet: Fleet, window: Path) -> None:
    out = fleet.ok("telemetry", "verify", str(window)).out
    assert out.startswith("verified: ")
    assert "recomputed from 10 observations, 1 source read again" in out


def test_sources_that_are_not_there_are_said_in_words(fleet: Fleet, window: Path) -> None:
    moved = (fleet.root / "telemetry").rename(fleet.root / "moved")
    called = fleet.bare("telemetry", "verify", str(window))
    assert called.code == 0
    assert "sources: not found" in called.out
    assert "--sources" in called.out
    folder = str(moved)
    value = fleet.bare("telemetry", "verify", str(window), "--sources", folder, "--json").json
    assert value["schema"] == "fleetcraft.telemetry_verification/1"
    assert (value["verdict"], value["sources"], value["sources_checked"]) == (
        *("verified", "checked", 1),
    )


def test_a_changed_window_is_refuted_with_what_differs(fleet: Fleet, window: Path) -> None:
    value = json.loads(window.read_text())
    value["summary"]["fleet"]["mean_util_pct"] += 1e-6
    window.write_text(json.dumps(value))
    called = fleet("telemetry", "verify", str(window))
    assert called.code == 1
    assert called.out.startswith("refuted: ")
    assert "summary.fleet.mean_util_pct: found 90.000001, expected 90.0" in called.out
    found = fleet("telemetry", "verify", str(window), "--json").json
    names = {each["field"] for each in found["differences"]}
    assert names == {"digest", "summary.fleet.mean_util_pct"}


def test_what_is_no_window_is_one_sentence_and_exit_code_7(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    for text in ("", "{}x", "[1]"):
        path.write_text(text)
        called = fleet("telemetry", "verify", str(path))
        assert called.code == 7
        assert called.err.count("\n") == 2  # the error and its hint
    assert fleet("telemetry", "verify", str(tmp_path / "nowhere")).code == 7
    path.write_text('{"schema_version": 9}')
    called = fleet("telemetry", "verify", str(path))
    assert called.code == 7
    assert "unverifiable" in called.out


@archived
def test_archived_windows_are_verified_or_unverifiable(fleet: Fleet) -> None:
    codes = {}
    for path in sorted(WINDOWS.glob("*.json")):
        called = fleet.bare("telemetry", "verify", str(path))
        codes[json.loads(path.read_text())["schema_version"]] = called.code
        assert ("unverifiable" in called.out) is (called.code == 7)
    assert codes == {1: 7, 2: 0}
