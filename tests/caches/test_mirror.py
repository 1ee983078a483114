"""Mirroring a model: complete or nothing, proved from what was read back, and only once."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.caches.hub import HubFiles, StorageError, parse_repo
from fleetcraft.caches.mirror import mirror
from fleetcraft.caches.snapshots import read_snapshot
from fleetcraft.caches.writing import take_turn
from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.layout.caches import HubPaths
from fleetcraft.locks import LockHeldError
from tests.caches.hub_caches import (
    COMMIT,
    INDEX,
    OTHER_COMMIT,
    SHARDS,
    contents,
    flip_a_bit,
    make_repo,
    sharded_model,
)
from tests.caches.stopping import WAYS, Killed, StopsAt, release

REPO = "org/tiny"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    hub = tmp_path / "from"
    make_repo(hub, sharded_model(), listed=sharded_model())
    return hub


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "to" / "hub"


def test_a_mirror_is_what_the_library_finds_offline(source: Path, target: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")

    report = mirror(str(source), str(target), REPO)

    assert report.published is not None
    assert (report.files, report.published.copied, report.published.proved) == (6, 6, 6)
    found = hub.snapshot_download(REPO, cache_dir=str(target), local_files_only=True)
    assert found == report.folder
    (scanned,) = hub.scan_cache_dir(target).repos
    assert not hub.scan_cache_dir(target).warnings
    assert (scanned.repo_id, scanned.nb_files, {r for v in scanned.revisions for r in v.refs}) == (
        REPO, 6, {"main"},
    )  # fmt: skip
    shard = hub.try_to_load_from_cache(REPO, SHARDS[1], cache_dir=str(target))
    assert Path(shard).read_bytes() == sharded_model()[SHARDS[1]]
    assert contents(target) == contents(source)


def test_files_of_a_mirror_are_read_only(source: Path, target: Path) -> None:
    mirror(str(source), str(target), REPO)

    modes = {
        stat.S_IMODE(path.stat().st_mode) for path in (target / "models--org--tiny/blobs").iterdir()
    }

    assert {mode & 0o222 for mode in modes} == {0}


def test_a_second_mirror_copies_nothing(source: Path, target: Path) -> None:
    mirror(str(source), str(target), REPO)
    before = {p: p.stat().st_ino for p in (target / "models--org--tiny/blobs").iterdir()}

    again = mirror(str(source), str(target), REPO)

    assert again.published is not None
    assert (again.published.copied, again.published.already, again.published.proved) == (0, 6, 6)
    assert {p: p.stat().st_ino for p in before} == before


def test_a_destination_that_has_everything_is_proved_without_writing(
    source: Path, target: Path
) -> None:
    mirror(str(source), str(target), REPO)

    again = mirror(str(source), str(target), REPO, fs=StopsAt(1, errno.EROFS))

    assert again.published is not None
    assert (again.published.already, again.published.proved) == (6, 6)


def test_a_second_commit_shares_the_blobs_of_the_first(source: Path, target: Path) -> None:
    mirror(str(source), str(target), REPO)
    newer = sharded_model() | {"config.json": b'{"model_type": "newer"}'}
    make_repo(source, newer, commit=OTHER_COMMIT)

    report = mirror(str(source), str(target), REPO)

    assert report.commit == OTHER_COMMIT
    assert report.published is not None
    assert (report.published.copied, report.published.already) == (1, 5)
    assert read_snapshot(str(target), REPO).commit == OTHER_COMMIT
    assert read_snapshot(str(target), REPO, COMMIT).complete


def test_a_partial_snapshot_in_the_destination_is_completed(source: Path, target: Path) -> None:
    files = sharded_model()
    make_repo(target, {"config.json": files["config.json"], INDEX: files[INDEX]})
    assert not read_snapshot(str(target), REPO).complete

    mirror(str(source), str(target), REPO)

    assert read_snapshot(str(target), REPO).complete
    assert contents(target) == contents(source)


def without_shard(source: Path) -> str:
    (source / f"models--org--tiny/snapshots/{COMMIT}/{SHARDS[2]}").unlink()
    return SHARDS[2]


def without_blob(source: Path) -> str:
    (source / f"models--org--tiny/snapshots/{COMMIT}/{SHARDS[0]}").resolve().unlink()
    return SHARDS[0]


def with_flipped_bit(source: Path) -> str:
    flip_a_bit(source / f"models--org--tiny/snapshots/{COMMIT}/{SHARDS[1]}")
    return SHARDS[1]


def with_truncated_shard(source: Path) -> str:
    path = (source / f"models--org--tiny/snapshots/{COMMIT}/{SHARDS[1]}").resolve()
    path.write_bytes(path.read_bytes()[:-1])
    return SHARDS[1]


def with_link_outside(source: Path) -> str:
    link = source / f"models--org--tiny/snapshots/{COMMIT}/config.json"
    link.unlink()
    link.symlink_to("/etc/hostname")
    return "config.json"


def with_swapped_links(source: Path) -> str:
    folder = source / f"models--org--tiny/snapshots/{COMMIT}"
    other = os.readlink(folder / SHARDS[1])
    (folder / SHARDS[0]).unlink()
    (folder / SHARDS[0]).symlink_to(other)
    return SHARDS[0]


def with_an_index_that_leads_out(source: Path) -> str:
    data = b'{"weight_map": {"a": "../../../../etc/hostname"}}'
    make_repo(source, {"evil.index.json": data})
    return "evil.index.json"


@pytest.mark.parametrize(
    "damage",
    [
        without_shard, without_blob, with_flipped_bit, with_truncated_shard, with_link_outside,
        with_swapped_links, with_an_index_that_leads_out,
    ],
)  # fmt: skip
def test_a_source_that_is_not_whole_is_named_and_nothing_is_published(
    source: Path, target: Path, damage: Callable[[Path], str]
) -> None:
    name = damage(source)

    with pytest.raises(DataError, match="nothing was") as caught:
        mirror(str(source), str(target), REPO)

    assert name in caught.value.message
    assert contents(target) == {}


def test_files_that_were_never_fetched_are_accepted_only_by_consent(
    source: Path, target: Path
) -> None:
    everything = sharded_model() | {"README.md": b"read me"}
    make_repo(source, {}, listed=everything, refs=())
    with pytest.raises(DataError, match=r"1 files of the commit are not here: README\.md"):
        mirror(str(source), str(target), REPO)

    report = mirror(str(source), str(target), REPO, allow_partial=True)

    assert report.absent == ("README.md",)


def test_a_dry_run_writes_nothing(source: Path, target: Path) -> None:
    report = mirror(str(source), str(target), REPO, dry_run=True)

    assert (report.published, report.to_copy, target.exists()) == (None, 6, False)


def test_one_hub_is_no_source_and_destination(source: Path) -> None:
    with pytest.raises(UsageError, match="one hub cache"):
        mirror(str(source), f"{source}/../from", REPO)


def test_a_corrupt_blob_in_the_destination_is_told_and_kept(source: Path, target: Path) -> None:
    mirror(str(source), str(target), REPO)
    shard = target / f"models--org--tiny/snapshots/{COMMIT}/{SHARDS[0]}"
    flip_a_bit(shard)
    damaged = shard.read_bytes()

    with pytest.raises(DataError, match="is corrupt in") as caught:
        mirror(str(source), str(target), REPO)

    assert "caches quarantine org/tiny" in caught.value.hint
    assert shard.read_bytes() == damaged


def test_a_blob_without_a_digest_as_its_name_is_compared(tmp_path: Path, target: Path) -> None:
    repo = make_repo(tmp_path / "from", {"config.json": b"{}"})
    snapshot = repo / f"snapshots/{COMMIT}"
    (repo / "blobs/odd-etag-2").write_bytes(b"from a proxy")
    (snapshot / "odd.bin").symlink_to("../../blobs/odd-etag-2")
    (snapshot / "plain.txt").write_bytes(b"where links do not work")

    report = mirror(str(tmp_path / "from"), str(target), REPO)

    assert report.published is not None
    assert (report.published.proved, report.published.compared) == (1, 2)
    there = Path(report.folder)
    assert (there / "odd.bin").read_bytes() == b"from a proxy"
    assert (there / "plain.txt").read_bytes() == b"where links do not work"


class FlipsABit(HubFiles):
    """A disk that writes another bit than it was told to."""

    def write(self, fd: int, data: bytes | memoryview) -> None:
        super().write(fd, bytes([data[0] ^ 1]) + bytes(data[1:]))


def test_a_destination_that_writes_other_bits_is_found_by_reading_back(
    source: Path, target: Path
) -> None:
    with pytest.raises(DataError, match="gave back other bytes"):
        mirror(str(source), str(target), REPO, fs=FlipsABit())

    assert contents(target) == {}


def operations(source: Path, target: Path) -> int:
    fs = StopsAt(0, None)
    mirror(str(source), str(target), REPO, fs=fs)
    return fs.count


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("there", ["nothing", "another commit", "a part of it"])
def test_whatever_operation_fails_the_hub_is_whole_or_as_it_was_and_a_second_call_completes(
    in_memory: Path, way: str, there: str
) -> None:
    tmp_path = in_memory
    source = tmp_path / "from"
    files = {"config.json": b"{}", "m/model.safetensors": b"w" * 50}
    make_repo(source, files, listed=files)

    def prepared(name: str) -> Path:
        hub = tmp_path / name
        if there == "another commit":
            old = {"config.json": b"{}", "old.bin": b"o"}
            make_repo(hub, old, commit=OTHER_COMMIT)
        if there == "a part of it":
            make_repo(hub, {"config.json": b"{}"})
        return hub

    count = operations(source, prepared("counted"))
    wanted = contents(tmp_path / "counted")
    assert count > 15
    error, after = WAYS[way]
    for at in range(1, count + 1):
        target = prepared(f"to-{at}")
        before = snapshots_of(target)
        code = 0
        try:
            mirror(str(source), str(target), REPO, fs=StopsAt(at, error, after=after))
        except FleetError as failed:
            code = failed.exit_code
        except Killed:
            code = 5
        assert code in (0, 5, 75)
        assert_sound(target, before)
        release(target)
        mirror(str(source), str(target), REPO)
        assert contents(target) == wanted, at


def snapshots_of(hub: Path) -> set[str]:
    return {path.name for path in (hub / "models--org--tiny/snapshots").glob("*")}


def assert_sound(hub: Path, before: set[str]) -> None:
    """A snapshot is as it was, or whole; no link leads nowhere; a ref leads to a snapshot."""
    for path in hub.glob("models--*/snapshots/**/*"):
        assert path.exists(), path
    new = snapshots_of(hub) - before
    for commit in new:
        assert read_snapshot(str(hub), REPO, commit).complete
        assert len(read_snapshot(str(hub), REPO, commit).files) == 2
    for ref in hub.glob("models--*/refs/*"):
        assert ref.read_text() in snapshots_of(hub)


def test_a_full_disk_is_said_before_anything_is_copied(source: Path, target: Path) -> None:
    class Small(HubFiles):
        def free_bytes(self, folder: str) -> int | None:
            return 100

    with pytest.raises(StorageError, match=r"9\.0 KiB are needed, 100 B free") as caught:
        mirror(str(source), str(target), REPO, fs=Small())

    assert caught.value.exit_code == 5
    assert contents(target) == {}


def test_a_read_only_root_is_said(source: Path, tmp_path: Path) -> None:
    class ReadOnly(HubFiles):
        def make_shared_folder(self, path: str) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with pytest.raises(StorageError, match="Read-only file system"):
        mirror(str(source), str(tmp_path / "to"), REPO, fs=ReadOnly())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_disk_that_is_really_full_or_read_only_keeps_what_it_had(
    source: Path, tmp_path: Path
) -> None:
    class Unsuspecting(HubFiles):
        def free_bytes(self, folder: str) -> int | None:
            return None

    target = tmp_path / "small"
    target.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(target)],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount")
    try:
        make_repo(source, {"model.bin": b"w" * 60_000}, folder="models--org--big")
        with pytest.raises(StorageError, match="No space left") as full:
            mirror(str(source), str(target), "org/big", fs=Unsuspecting())
        assert (full.value.exit_code, contents(target)) == (5, {})
        subprocess.run(["mount", "-o", "remount,ro", str(target)], check=True)
        with pytest.raises(FleetError, match="Read-only file system"):
            mirror(str(source), str(target), REPO)
        assert contents(target) == {}
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_another_writer_is_not_disturbed(source: Path, target: Path) -> None:
    held = take_turn(str(target), parse_repo(REPO), purpose="writing")
    assert held is not None

    with held, pytest.raises(LockHeldError) as caught:
        mirror(str(source), str(target), REPO)

    assert caught.value.exit_code == 75
    assert contents(target) == {}


def test_what_an_earlier_call_has_staged_is_proved_and_taken_or_copied_again(
    source: Path, target: Path
) -> None:
    staging = Path(HubPaths(str(target)).staging(parse_repo(REPO).folder).blobs)
    staging.mkdir(parents=True)
    for shard in SHARDS[:2]:
        blob = (source / "models--org--tiny/snapshots" / COMMIT / shard).resolve()
        (staging / blob.name).write_bytes(blob.read_bytes())
    flip_a_bit(staging / blob.name)
    (staging / "left.123.incomplete").write_bytes(b"half")

    mirror(str(source), str(target), REPO)

    assert contents(target) == contents(source)


def test_two_processes_at_once_both_end_well_and_copy_each_blob_once(
    source: Path, target: Path
) -> None:
    code = (
        "import sys; from fleetcraft.caches.mirror import mirror;"
        "r = mirror(sys.argv[1], sys.argv[2], 'org/tiny', wait_s=60);"
        "print(r.published.copied, r.published.already)"
    )
    words = [sys.executable, "-c", code, str(source), str(target)]

    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].split() for process in both]

    assert [process.returncode for process in both] == [0, 0]
    assert sorted(map(tuple, said)) == [("0", "6"), ("6", "0")]


def test_nothing_is_left_in_the_staging_room(source: Path, target: Path) -> None:
    mirror(str(source), str(target), REPO)

    assert not os.path.exists(HubPaths(str(target)).staging(parse_repo(REPO).folder).folder)
