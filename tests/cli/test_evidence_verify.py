"""``fleetcraft evidence verify``: verdicts with their level, exit codes, and what is named.

Not here: every kind of difference; tests/evidence/test_verifying.py has that.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Fleet
from tests.evidence.folders import flip_a_bit, plant


@pytest.fixture
def kept(fleet: Fleet, tmp_path: Path) -> Fleet:
    plant(tmp_path / "set")
    fleet.ok("evidence", "freeze", "set", "--name", "s")
    return fleet


@pytest.mark.parametrize("level", ["listed", "sized", "hashed", "reread"])
def test_the_level_is_always_said(level: str, kept: Fleet) -> None:
    called = kept.ok("evidence", "verify", "s", "--level", level)
    assert called.out.startswith(f"verified at level {level}: manifest s: 3 files, ")
    value = kept.ok("evidence", "verify", "s", "--level", level, "--json").json
    assert value["schema"] == "fleetcraft.evidence_verification/1"
    assert (value["verdict"], value["level"]) == ("verified", level)
    assert value["counts"][level] == 3


def test_every_difference_is_named_by_its_kind(kept: Fleet, tmp_path: Path) -> None:
    flip_a_bit(tmp_path / "set/a.csv")
    (tmp_path / "set/run.log").rename(tmp_path / "set/ran.log")
    plant(tmp_path / "set", {"new": b"1"})
    (tmp_path / "set/clips/one.mp4").unlink()
    called = kept("evidence", "verify", "s")
    assert called.code == 1
    assert called.out.startswith("refuted at level hashed")
    for words in (
        "changed 'a.csv' (sha256 ",
        "renamed 'ran.log' (it was 'run.log')",
        "added 'new'",
        "removed 'clips/one.mp4'",
    ):
        assert words in called.out
    value = kept("evidence", "verify", "s", "--json").json
    assert value["by_change"] == {"added": 1, "changed": 1, "removed": 1, "renamed": 1}
    short = kept("evidence", "verify", "s", "--limit", "1").out
    assert "... and 3 more differences" in short


def test_names_from_the_disk_cannot_hurt_a_terminal(kept: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set", {"\x1b]0;title\x07": b""})
    called = kept("evidence", "verify", "s")
    assert called.code == 1
    assert "\x1b" not in called.out


def test_what_is_not_there_is_unverifiable(kept: Fleet, tmp_path: Path) -> None:
    (tmp_path / "set").rename(tmp_path / "moved")
    called = kept("evidence", "verify", "s")
    assert called.code == 7
    assert called.out.startswith("unverifiable at level hashed")
    assert kept("evidence", "verify", "s", "--folder", "moved").code == 0
    near = kept("evidence", "verify", "t")
    assert near.code == 7
    assert "no kept manifest" in near.err


def test_a_manifest_of_which_a_bit_flipped_is_refused(kept: Fleet) -> None:
    path = kept.root / "evidence/manifests/s.json"
    for offset in (40, 300, path.stat().st_size - 20):
        flip_a_bit(path, offset)
        called = kept("evidence", "verify", "s", "--json")
        assert called.code == 7
        assert "manifest" in called.error["message"]
        flip_a_bit(path, offset)
    kept.ok("evidence", "verify", "s")
