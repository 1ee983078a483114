"""``fleetcraft evidence archive`` and ``export``: what they print, exit codes, and receipts.

Not here: what happens when a disk misbehaves; tests/evidence/test_archive.py has that.
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


def test_an_archive_is_made_and_says_how_it_was_proved(kept: Fleet, tmp_path: Path) -> None:
    value = kept.ok("evidence", "archive", "s", "out/arch", "--json").json
    assert value["schema"] == "fleetcraft.evidence_archive/1"
    assert (value["files"], value["already"], value["level"]) == (3, False, "reread")
    assert value["counts"] == {"listed": 3, "sized": 3, "hashed": 3, "reread": 3}
    assert sum(value["how"].values()) == 3
    assert value["receipt_kept"] == str(kept.root / "evidence/receipts/s.json")
    text = kept.ok("evidence", "archive", "s", "out/arch").out
    assert text.startswith("already archived, and verified again: ")
    assert "agree: listed 3 of 3, sized 3 of 3, hashed 3 of 3, reread 3 of 3" in text
    called = kept.ok("evidence", "verify", "out/arch", "--level", "reread", "--json")
    assert called.json["target_kind"] == "archive"


def test_a_temporary_folder_of_another_call_is_not_said_to_be_dead(
    kept: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "arch.abcd2345.partial").mkdir()
    text = kept.ok("evidence", "archive", "s", "arch").out
    assert "arch.abcd2345.partial, of a call that still runs or was cut short" in text


def test_a_source_that_differs_is_the_answer_no(kept: Fleet, tmp_path: Path) -> None:
    (tmp_path / "set/run.log").unlink()
    called = kept("evidence", "archive", "s", "arch", "--json")
    assert called.code == 1
    assert called.error["facts"]["differences"][0]["change"] == "removed"
    assert not (tmp_path / "arch").exists()


def test_a_bit_that_flipped_in_the_source_is_named(kept: Fleet, tmp_path: Path) -> None:
    flip_a_bit(tmp_path / "set/run.log")
    called = kept("evidence", "archive", "s", "arch")
    assert called.code == 1
    assert "changed 'run.log'" in called.err
    assert not (tmp_path / "arch").exists()


def test_a_damaged_archive_is_refuted(kept: Fleet, tmp_path: Path) -> None:
    kept.ok("evidence", "archive", "s", "arch")
    flip_a_bit(tmp_path / "arch/data/run.log")
    called = kept("evidence", "verify", "arch")
    assert called.code == 1
    assert "changed 'run.log'" in called.out
    assert kept("evidence", "archive", "s", "arch").code == 1


def test_paths_alone_need_no_scratch_tree(bare_fleet: Fleet, tmp_path: Path) -> None:
    plant(tmp_path / "set")
    for words in (
        ["freeze", "set", "-o", "m.json"],
        ["archive", "m.json", "arch"],
        ["archive", "arch", "second"],
        ["verify", "second"],
    ):
        called = bare_fleet.bare("evidence", *words)
        assert called.code == 0, called.err
    assert not bare_fleet.root.exists()


def test_a_taken_name_is_a_wrong_word(kept: Fleet, tmp_path: Path) -> None:
    (tmp_path / "arch").mkdir()
    called = kept("evidence", "archive", "s", "arch")
    assert called.code == 2
    assert "hint: name a new folder" in called.err


def test_a_bag_is_exported_and_verified(kept: Fleet, tmp_path: Path) -> None:
    bagit = pytest.importorskip("bagit")
    value = kept.ok("evidence", "export", "s", "bag", "--json").json
    assert value["schema"] == "fleetcraft.evidence_export/1"
    assert (value["files"], value["level"], value["verdict"]) == (3, "reread", "verified")
    assert bagit.Bag("bag").validate()
    assert kept.ok("evidence", "verify", "bag", "--json").json["target_kind"] == "bag"
    assert "already exported" in kept.ok("evidence", "export", "s", "bag").out
    flip_a_bit(tmp_path / "bag/data/run.log")
    assert kept("evidence", "verify", "bag").code == 1


def test_help_teaches_with_examples_and_exit_codes(fleet: Fleet) -> None:
    for command in ("freeze", "verify", "archive", "export"):
        text = fleet.ok("evidence", command, "--help").out
        assert f"fleetcraft evidence {command} " in text
        assert "Exit codes:" in text
