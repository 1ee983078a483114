"""Bags: valid by the bagit library, and every harm to one is seen.

Not here: copying and proving, which are the archive's.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.errors import ConfigError, DataError, UsageError
from fleetcraft.evidence.files.bag import export, verify_bag
from fleetcraft.evidence.files.verifying import RefutedError, Verdict
from fleetcraft.evidence.records import Level
from tests.evidence.folders import FILES, Cut, DisturbedFS, flip_a_bit, frozen, plant

bagit = pytest.importorskip("bagit")


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    manifest = frozen(tmp_path / "set", {**FILES, "é ü/1 2.txt": b"text"})
    export(manifest, str(tmp_path / "set"), str(tmp_path / "bag"))
    return tmp_path / "bag"


def test_a_bag_is_valid_by_the_library_and_has_our_manifest(bag: Path) -> None:
    found = bagit.Bag(str(bag))
    assert found.validate()
    assert found.version_info == (1, 0)
    assert found.info["External-Identifier"] == "set"
    assert found.info["Payload-Oxum"] == f"{sum(map(len, FILES.values())) + 4}.{len(FILES) + 1}"
    assert (bag / "bagit.txt").read_text().startswith("BagIt-Version: 1.0\n")
    assert sorted(os.listdir(bag)) == [
        "bag-info.txt", "bagit.txt", "data", "fleetcraft-manifest.json",
        "manifest-sha256.txt", "tagmanifest-sha256.txt",
    ]  # fmt: skip


@pytest.mark.parametrize("level", [Level.LISTED, Level.SIZED, Level.HASHED, Level.REREAD])
def test_a_bag_is_verified_at_every_level(level: Level, bag: Path) -> None:
    found = verify_bag(str(bag), level)
    assert (found.verdict, found.level) == (Verdict.VERIFIED, level)
    assert found.counts[level.value] == len(FILES) + 1


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda at: flip_a_bit(at / "data/run.log"), ("changed", "run.log")),
        (lambda at: plant(at, {"data/new": b"1"}), ("added", "new")),
        (lambda at: plant(at, {"tag.txt": b"1"}), ("added", "../tag.txt")),
        (lambda at: (at / "data/run.log").unlink(), ("removed", "run.log")),
        (lambda at: flip_a_bit(at / "bagit.txt"), ("record", "../bagit.txt")),
        (lambda at: flip_a_bit(at / "bag-info.txt"), ("record", "../bag-info.txt")),
        (lambda at: flip_a_bit(at / "manifest-sha256.txt"), ("record", "../manifest-sha256.txt")),
        (lambda at: flip_a_bit(at / "tagmanifest-sha256.txt"), ("record", "../bag-info.txt")),
        (lambda at: (at / "bag-info.txt").unlink(), ("record", "../bag-info.txt")),
    ],
)
def test_every_harm_to_a_bag_is_named(
    harm: Callable[[Path], object], expected: tuple[str, str], bag: Path
) -> None:
    harm(bag)
    found = verify_bag(str(bag), Level.HASHED)
    assert found.verdict is Verdict.REFUTED
    assert [(each.change.value, each.path) for each in found.differences] == [expected]


def test_a_payload_manifest_that_is_not_ours_is_seen_though_its_digest_is_right(bag: Path) -> None:
    payload, tags = bag / "manifest-sha256.txt", bag / "tagmanifest-sha256.txt"
    before = hashlib.sha256(payload.read_bytes()).hexdigest()
    for path in (payload, tags):
        path.chmod(0o600)
    payload.write_bytes(b"".join(payload.read_bytes().splitlines(keepends=True)[1:]))
    after = hashlib.sha256(payload.read_bytes()).hexdigest()
    tags.write_text(tags.read_text().replace(before, after))
    found = verify_bag(str(bag), Level.LISTED)
    assert [each.path for each in found.differences] == ["../manifest-sha256.txt"]


def test_exporting_again_verifies_what_is_there(bag: Path, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    assert export(manifest, str(tmp_path / "set"), str(bag)).already
    flip_a_bit(bag / "data/run.log")
    with pytest.raises(RefutedError, match="is damaged"):
        export(manifest, str(tmp_path / "set"), str(bag))


def test_something_else_under_the_name_is_left_alone(tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set")
    (tmp_path / "bag").mkdir()
    with pytest.raises(UsageError, match="something else"):
        export(manifest, str(tmp_path / "set"), str(tmp_path / "bag"))


@pytest.mark.parametrize("name", ["50%.txt", "a%0Ab", "end ", "end\u00a0"])
def test_a_name_that_readers_of_bags_take_differently_is_refused(name: str, tmp_path: Path) -> None:
    manifest = frozen(tmp_path / "set", {name: b"1"})
    with pytest.raises(DataError) as refused:
        export(manifest, str(tmp_path / "set"), str(tmp_path / "bag"))
    assert refused.value.paths == [name]
    assert not (tmp_path / "bag").exists()


def test_without_the_library_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bagit", None)
    manifest = frozen(tmp_path / "set")
    with pytest.raises(ConfigError) as refused:
        export(manifest, str(tmp_path / "set"), str(tmp_path / "bag"))
    assert refused.value.hint == "pip install 'fleetcraft[evidence]'"
    assert os.listdir(tmp_path) == ["set"]


def test_our_own_bag_is_verified_without_the_library(
    bag: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bagit", None)
    assert verify_bag(str(bag), Level.HASHED).verdict is Verdict.VERIFIED


def test_a_crash_between_copy_and_name_leaves_no_bag_and_a_second_call_completes(
    tmp_path: Path,
) -> None:
    manifest = frozen(tmp_path / "set", {"a": b"1"})
    source = str(tmp_path / "set")
    counting = DisturbedFS(0, "cut")
    export(manifest, source, str(tmp_path / "0"), fs=counting)
    for at in range(counting.steps - 6, counting.steps + 1):
        final = str(tmp_path / f"{at}")
        with pytest.raises(Cut):
            export(manifest, source, final, fs=DisturbedFS(at, "cut"))
        if os.path.exists(final):
            assert bagit.Bag(final).validate()
        export(manifest, source, final)
        assert verify_bag(final, Level.HASHED).verdict is Verdict.VERIFIED


def test_a_bag_that_cannot_be_read_is_never_refuted(bag: Path) -> None:
    counting = DisturbedFS(0, "EIO")
    verify_bag(str(bag), Level.HASHED, fs=counting)
    for at in range(2, counting.steps + 1):  # the first is the manifest itself
        found = verify_bag(str(bag), Level.HASHED, fs=DisturbedFS(at, "EIO"))
        assert (found.verdict, found.differences) == (Verdict.UNVERIFIABLE, ()), at


# -------------------------------------------------------------------- bags of other programs


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = plant(tmp_path / "foreign")
    bagit.make_bag(str(folder), checksums=["sha512"])
    return folder


def test_a_bag_of_another_program_is_verified_by_the_library(foreign: Path) -> None:
    for asked, level in (
        (Level.LISTED, Level.LISTED),
        (Level.SIZED, Level.LISTED),
        (Level.HASHED, Level.HASHED),
        (Level.REREAD, Level.REREAD),
    ):
        found = verify_bag(str(foreign), asked)
        assert (found.verdict, found.level) == (Verdict.VERIFIED, level)
        assert found.counts[level.value] == len(FILES)
        assert found.not_checked[0].startswith("sizes")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (lambda at: flip_a_bit(at / "data/run.log"), {("changed", "data/run.log")}),
        (lambda at: plant(at, {"data/new": b"1"}), {("added", "data/new")}),
        (lambda at: (at / "data/run.log").unlink(), {("removed", "data/run.log")}),
        (
            lambda at: (at / "data/link").symlink_to("/etc/hostname"),
            {("added", "data/link"), ("symlink", "data/link")},
        ),
    ],
)
def test_harm_to_a_bag_of_another_program_is_named(
    harm: Callable[[Path], object], expected: set[tuple[str, str]], foreign: Path
) -> None:
    harm(foreign)
    found = verify_bag(str(foreign), Level.HASHED)
    assert found.verdict is Verdict.REFUTED
    changed = {(each.change.value, each.path) for each in found.differences}
    assert changed == expected


def test_what_is_no_bag_after_all_is_one_sentence(tmp_path: Path) -> None:
    plant(tmp_path / "bag", {"bagit.txt": b"nonsense", "data/x": b""})
    with pytest.raises(DataError, match="cannot verify the bag"):
        verify_bag(str(tmp_path / "bag"), Level.HASHED)
