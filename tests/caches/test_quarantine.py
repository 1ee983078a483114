"""A corrupt file set aside: its bytes are kept, its links are gone, its users are named."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.caches.blobs import Verdict
from fleetcraft.caches.hub import HubFiles, StorageError, parse_repo
from fleetcraft.caches.mirror import mirror
from fleetcraft.caches.quarantine import NotCorruptError, quarantine, read_quarantine
from fleetcraft.caches.snapshots import read_snapshot
from fleetcraft.caches.writing import take_turn
from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.layout.caches import CachePaths
from fleetcraft.locks import LockHeldError
from tests.caches.hub_caches import (
    COMMIT,
    OTHER_COMMIT,
    SHARDS,
    contents,
    flip_a_bit,
    make_repo,
    sharded_model,
)
from tests.caches.stopping import WAYS, Killed, StopsAt, release

REPO = "org/tiny"
FOLDER = "models--org--tiny"
SHARD = SHARDS[1]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A model whose second shard is corrupt."""
    make_repo(tmp_path / "hub", sharded_model())
    flip_a_bit(tmp_path / "hub" / FOLDER / "snapshots" / COMMIT / SHARD)
    return tmp_path / "hub"


@pytest.fixture
def paths(tmp_path: Path) -> CachePaths:
    return CachePaths(str(tmp_path / "caches"))


def test_a_corrupt_shard_is_set_aside_and_who_used_it_is_named(
    hub: Path, paths: CachePaths
) -> None:
    make_repo(hub, {"renamed.safetensors": sharded_model()[SHARD]}, commit=OTHER_COMMIT,
              refs=("v2",))  # fmt: skip
    flip_a_bit(hub / FOLDER / "snapshots" / COMMIT / SHARD)
    damaged = (hub / FOLDER / "snapshots" / COMMIT / SHARD).read_bytes()

    record = quarantine(paths, str(hub), REPO, SHARD, "loading says header too large")

    assert (record.proof.verdict, record.blob) == (Verdict.CORRUPT, record.proof.expected)
    assert Path(record.aside).read_bytes() == damaged
    assert [(user.commit, user.refs, user.paths) for user in record.users] == [
        (COMMIT, ("main",), (SHARD,)), (OTHER_COMMIT, ("v2",), ("renamed.safetensors",)),
    ]  # fmt: skip
    assert record.users[0].fetch == (
        f"HF_HUB_CACHE={hub} hf download org/tiny {SHARD} --revision {COMMIT}"
    )
    assert read_quarantine(paths) == (record,)
    assert read_snapshot(str(hub), REPO).missing_shards == (SHARD,)


def test_a_mirror_brings_the_file_back(hub: Path, paths: CachePaths, tmp_path: Path) -> None:
    make_repo(tmp_path / "good", sharded_model())
    quarantine(paths, str(hub), REPO, SHARD)

    mirror(str(tmp_path / "good"), str(hub), REPO)

    assert contents(hub) == contents(tmp_path / "good")


def test_a_good_file_is_moved_only_by_consent(hub: Path, paths: CachePaths) -> None:
    before = contents(hub)
    with pytest.raises(NotCorruptError, match="is not corrupt") as caught:
        quarantine(paths, str(hub), REPO, "config.json")
    assert (caught.value.exit_code, contents(hub)) == (1, before)

    record = quarantine(paths, str(hub), REPO, "config.json", "edited by hand", anyway=True)

    assert (record.proof.verdict, record.reason) == (Verdict.PROVED, "edited by hand")


def test_a_dry_run_moves_nothing(hub: Path, paths: CachePaths) -> None:
    before = contents(hub)

    record = quarantine(paths, str(hub), REPO, SHARD, dry_run=True)

    assert (record.aside, contents(hub), read_quarantine(paths)) == ("", before, ())


def test_a_blob_is_a_name_too(hub: Path, paths: CachePaths) -> None:
    blob = os.path.basename(os.readlink(hub / FOLDER / "snapshots" / COMMIT / SHARD))

    assert quarantine(paths, str(hub), REPO, blob).file == SHARD


def test_two_commits_with_different_files_of_one_name_need_a_revision(
    hub: Path, paths: CachePaths
) -> None:
    make_repo(hub, {SHARD: b"another"}, commit=OTHER_COMMIT, refs=())
    with pytest.raises(DataError, match="different files"):
        quarantine(paths, str(hub), REPO, SHARD)

    record = quarantine(paths, str(hub), REPO, SHARD, revision=COMMIT)

    assert [user.commit for user in record.users] == [COMMIT]
    assert read_snapshot(str(hub), REPO, OTHER_COMMIT).complete


def test_a_file_that_is_not_there_has_near_names(hub: Path, paths: CachePaths) -> None:
    with pytest.raises(DataError, match="has no file") as caught:
        quarantine(paths, str(hub), REPO, "model-00002-of-00003.safetensor")

    assert SHARD in caught.value.hint


def test_a_second_call_says_that_it_was_set_aside(hub: Path, paths: CachePaths) -> None:
    quarantine(paths, str(hub), REPO, SHARD)

    with pytest.raises(DataError, match="has no file") as caught:
        quarantine(paths, str(hub), REPO, SHARD)

    assert "set aside before; fetch it again: HF_HUB_CACHE=" in caught.value.hint


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ""])
def test_a_path_cannot_lead_out(hub: Path, paths: CachePaths, name: str) -> None:
    with pytest.raises(UsageError):
        quarantine(paths, str(hub), REPO, name)


def test_bytes_that_repositories_share_are_gone_from_all_of_them(
    tmp_path: Path, paths: CachePaths
) -> None:
    hub, data = tmp_path / "hub", b"w" * 300
    store = hub / "blobs/ab/abcdef"
    for folder in (FOLDER, "models--org--twin"):
        repo = make_repo(hub, {"model.safetensors": data, "config.json": b"{}"}, folder=folder)
        blob = (repo / "snapshots" / COMMIT / "model.safetensors").resolve()
        store.parent.mkdir(parents=True, exist_ok=True)
        blob.rename(store)
        blob.symlink_to("../../blobs/ab/abcdef")
    flip_a_bit(store)

    record = quarantine(paths, str(hub), REPO, "model.safetensors")

    assert sorted(user.repo.name for user in record.users) == ["org/tiny", "org/twin"]
    assert (store.exists(), Path(record.aside).exists()) == (False, True)
    assert not [path for path in hub.rglob("*") if path.is_symlink() and not path.exists()]


def test_a_file_outside_the_hub_is_forgotten_and_not_moved(
    hub: Path, paths: CachePaths, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    blob = hub / FOLDER / "blobs" / ("a" * 64)
    theirs.write_bytes(b"not ours")
    blob.symlink_to(theirs)
    (hub / FOLDER / "snapshots" / COMMIT / "extra.bin").symlink_to(f"../../blobs/{'a' * 64}")

    record = quarantine(paths, str(hub), REPO, "extra.bin")

    assert (record.aside, theirs.read_bytes()) == ("", b"not ours")
    assert "extra.bin" not in {file.path for file in read_snapshot(str(hub), REPO).files}
    assert not os.path.lexists(blob)


def test_a_link_out_of_the_repository_is_only_removed(hub: Path, paths: CachePaths) -> None:
    link = hub / FOLDER / "snapshots" / COMMIT / "passwd"
    link.symlink_to("/etc/passwd")

    record = quarantine(paths, str(hub), REPO, "passwd")

    assert (record.aside, os.path.lexists(link), os.path.exists("/etc/passwd")) == ("", False, True)
    assert record.users[0].links == ("/etc/passwd",)


def test_a_hub_on_another_mount_keeps_what_is_set_aside_on_its_own(
    in_memory: Path, paths: CachePaths, tmp_path: Path
) -> None:
    if os.stat(in_memory).st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no second mount here")
    make_repo(in_memory, sharded_model())
    flip_a_bit(in_memory / FOLDER / "snapshots" / COMMIT / SHARD)

    record = quarantine(paths, str(in_memory), REPO, SHARD)

    assert record.aside.startswith(f"{in_memory}/.locks/fleetcraft/quarantine/")
    assert os.path.exists(record.aside)
    assert read_quarantine(paths) == (record,)


def test_another_writer_is_not_disturbed(hub: Path, paths: CachePaths) -> None:
    held = take_turn(str(hub), parse_repo(REPO), purpose="writing")
    assert held is not None
    before = contents(hub)

    with held, pytest.raises(LockHeldError):
        quarantine(paths, str(hub), REPO, SHARD)

    assert contents(hub) == before


@pytest.mark.parametrize("way", ["killed", "read-only", "done but reported as failed"])
def test_whatever_operation_fails_no_link_leads_to_corrupt_bytes_after_a_second_call(
    in_memory: Path, way: str
) -> None:
    def prepared(name: str) -> tuple[CachePaths, Path, bytes]:
        folder = in_memory / name
        make_repo(folder / "hub", {"config.json": b"{}", "model.bin": b"w" * 300})
        shard = folder / "hub" / FOLDER / "snapshots" / COMMIT / "model.bin"
        flip_a_bit(shard)
        return CachePaths(str(folder / "caches")), folder / "hub", shard.read_bytes()

    error, after = WAYS[way]
    paths, hub, _ = prepared("counted")
    fs = StopsAt(0, error)
    quarantine(paths, str(hub), REPO, "model.bin", fs=fs)
    assert fs.count > 10
    for at in range(1, fs.count + 1):
        paths, hub, damaged = prepared(f"at-{at}")
        with contextlib.suppress(Killed, FleetError):
            quarantine(paths, str(hub), REPO, "model.bin", fs=StopsAt(at, error, after=after))
        release(hub)

        with contextlib.suppress(DataError):  # there is no such file any more
            quarantine(paths, str(hub), REPO, "model.bin")

        assert [file.path for file in read_snapshot(str(hub), REPO).files] == ["config.json"], at
        kept = [record.aside for record in read_quarantine(paths) if record.aside]
        assert damaged in [Path(path).read_bytes() for path in kept if Path(path).exists()], at


def test_a_root_that_cannot_be_written_is_said(hub: Path, paths: CachePaths) -> None:
    before = contents(hub)

    class ReadOnly(HubFiles):
        def rename_new(self, source: str, destination: str) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), source)

    with pytest.raises(StorageError, match="Read-only"):
        quarantine(paths, str(hub), REPO, SHARD, fs=ReadOnly())

    assert contents(hub) == before


def test_a_file_that_was_mended_while_the_turn_was_waited_for_stays(
    hub: Path, paths: CachePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = hub / FOLDER / "snapshots" / COMMIT / SHARD

    def mended_meanwhile(*args: Any, **kwargs: Any) -> Any:
        shard.resolve().write_bytes(sharded_model()[SHARD])
        return take_turn(*args, **kwargs)

    monkeypatch.setattr("fleetcraft.caches.quarantine.take_turn", mended_meanwhile)

    with pytest.raises(NotCorruptError, match="is not corrupt"):
        quarantine(paths, str(hub), REPO, SHARD, wait_s=1.0)

    assert shard.read_bytes() == sharded_model()[SHARD]
    assert read_quarantine(paths) == ()


def test_a_file_that_cannot_be_read_just_now_is_moved_only_by_consent(
    hub: Path, paths: CachePaths
) -> None:
    class Away(HubFiles):
        def open_read(self, path: str) -> int:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    before = contents(hub)

    with pytest.raises(NotCorruptError, match="cannot be read here"):
        quarantine(paths, str(hub), REPO, SHARD, fs=Away())

    assert contents(hub) == before
    assert quarantine(paths, str(hub), REPO, SHARD, "bad disk", anyway=True, fs=Away()).aside
