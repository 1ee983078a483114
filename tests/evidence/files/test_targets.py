"""What a person names, and where manifests and receipts are kept.

Not here: what verifying finds.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence.files.archive import archive
from fleetcraft.evidence.files.keeping import (
    keep_manifest,
    keep_receipt,
    relative_inside,
    write_new,
)
from fleetcraft.evidence.files.manifest import make_manifest
from fleetcraft.evidence.files.targets import (
    TargetKind,
    find_target,
    kept_names,
    require_files,
    verify_target,
)
from fleetcraft.evidence.files.verifying import Verdict
from fleetcraft.evidence.records import Level
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import EvidencePaths
from tests.evidence.folders import frozen, plant


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvidencePaths:
    monkeypatch.chdir(tmp_path)
    return EvidencePaths(str(tmp_path / "evidence"))


def test_a_kept_name_leads_to_its_manifest_and_files(room: EvidencePaths, tmp_path: Path) -> None:
    keep_manifest(room, frozen(tmp_path / "set"), "set")
    target = find_target("set", kept=room)
    assert target.kind is TargetKind.MANIFEST
    assert target.folder == os.path.realpath(tmp_path / "set")
    assert verify_target(target, Level.HASHED).verdict is Verdict.VERIFIED
    assert kept_names(room) == ["set"]


def test_a_manifest_and_its_files_can_be_moved_together(
    room: EvidencePaths, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    manifest = frozen(tmp_path / "here/set")
    write_new(FileSystem(), str(tmp_path / "here/m.json"), manifest, "here/set")
    (tmp_path / "here").rename(tmp_path / "there")
    target = find_target("there/m.json")
    assert verify_target(target, Level.HASHED).verdict is Verdict.VERIFIED


def test_a_folder_with_a_manifest_in_it_is_that_manifest(
    room: EvidencePaths, tmp_path: Path
) -> None:
    manifest = frozen(tmp_path / "set")
    write_new(FileSystem(), str(tmp_path / "set/manifest.json"), manifest, "set")
    assert find_target("set").path == str(tmp_path / "set/manifest.json")


def test_an_archive_wins_over_a_kept_name_and_has_its_own_files(
    room: EvidencePaths, tmp_path: Path
) -> None:
    manifest = frozen(tmp_path / "src")
    keep_manifest(room, manifest, "src")
    archive(manifest, "src", "set")
    target = find_target("set", kept=room)
    assert (target.kind, target.folder) == (TargetKind.ARCHIVE, str(tmp_path / "set/data"))
    with pytest.raises(UsageError, match="--folder is for manifests"):
        find_target("set", kept=room, folder="src")


def test_a_name_of_an_archive_here_and_of_other_files_that_were_kept_is_refused(
    room: EvidencePaths, tmp_path: Path
) -> None:
    archive(frozen(tmp_path / "set"), "set", "copy")
    plant(tmp_path / "more", {"b": b"b"})
    keep_manifest(room, make_manifest("more", name="copy"), "more")
    with pytest.raises(UsageError, match="is the archive here and a kept manifest of other files"):
        find_target("copy", kept=room)
    assert find_target("./copy", kept=room).kind is TargetKind.ARCHIVE
    assert find_target(room.manifest("copy"), kept=room).folder == os.path.realpath("more")


@pytest.mark.parametrize("text", ["sett", "nowhere/at/all", "plain", "../x", ""])
def test_what_is_nothing_is_told_with_what_was_meant(
    text: str, room: EvidencePaths, tmp_path: Path
) -> None:
    keep_manifest(room, frozen(tmp_path / "src"), "src")
    plant(tmp_path / "plain")
    with pytest.raises(DataError, match="nothing was checked") as refused:
        find_target(text, kept=room)
    assert ("did you mean set?" in refused.value.hint) == (text == "sett")


def test_a_manifest_without_a_folder_asks_for_one(room: EvidencePaths, tmp_path: Path) -> None:
    from fleetcraft.evidence.files.manifest import write_manifest

    (tmp_path / "m.json").write_bytes(write_manifest(frozen(tmp_path / "set")))
    with pytest.raises(DataError, match="does not say where its files are"):
        require_files(find_target("m.json"))
    _, folder = require_files(find_target("m.json", folder="set"))
    assert folder == "set"


def test_the_same_files_may_be_kept_again_and_others_may_not(
    room: EvidencePaths, tmp_path: Path
) -> None:
    first = keep_manifest(room, frozen(tmp_path / "set"), "set")
    again = keep_manifest(room, frozen(tmp_path / "set"), "set")
    assert (first[1], again[1]) == (True, False)
    assert again[0].made_at == first[0].made_at
    with pytest.raises(DataError, match="already there with other files"):
        keep_manifest(room, frozen(tmp_path / "set", {"more": b"1"}), "set")


def test_receipts_of_several_archives_are_all_kept(room: EvidencePaths, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    receipts = [archive(manifest, "set", name).receipt for name in ("one", "two")]
    paths = [keep_receipt(room, receipt) for receipt in (*receipts, *receipts)]
    names = ["set.json", "set.2.json", "set.json", "set.2.json"]
    assert [(os.path.basename(path), held) for path, held in paths] == [(n, True) for n in names]


def test_a_path_is_inside_a_folder_whatever_it_is_reached_by(tmp_path: Path) -> None:
    plant(tmp_path / "set", {"deep/x": b""})
    (tmp_path / "way").symlink_to("set")
    assert (
        relative_inside(str(tmp_path / "way/deep/m.json"), str(tmp_path / "set")) == "deep/m.json"
    )
    assert relative_inside(str(tmp_path / "settle.json"), str(tmp_path / "set")) == ""
