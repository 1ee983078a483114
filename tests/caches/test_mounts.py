"""Which file system a path lies on, read from real and from written tables of mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.caches.mounts import Mount, is_below, is_network, look_at, read_mounts
from fleetcraft.caches.records import Effective, FileSystemFacts, Role

TABLE = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /scratch rw,noatime - lustre 10.0.0.1@o2ib:/scratch rw,flock
31 22 0:41 / /scratch/with\040space rw - nfs4 server:/x rw
32 22 0:42 / /odd rw - fuse.strange strange rw
33 22 0:43 / /scratch/local rw - xfs /dev/nvme0 rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> tuple[Mount, ...]:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    return read_mounts(str(table))


def facts_of(path: str, **more: object) -> FileSystemFacts:
    [one] = look_at([Effective(role=Role.HUB, path=path)], **more)  # type: ignore[arg-type]
    assert one.filesystem is not None
    return one.filesystem


@pytest.mark.parametrize(
    ("path", "type_", "network"),
    [
        ("/nowhere/at/all", "ext4", False),
        ("/odd/x", "ext4", False),  # it is not there, so it would lie where / is
    ],
)
def test_a_path_that_is_not_there_lies_where_its_nearest_folder_does(
    mounts: tuple[Mount, ...], path: str, type_: str, network: bool
) -> None:
    found = facts_of(path, mounts=mounts)
    assert (found.type, found.network) == (type_, network)


def test_the_deepest_mount_counts(tmp_path: Path) -> None:
    deep = tmp_path / "a b" / "c"
    deep.mkdir(parents=True)
    mounts = (Mount("/", "ext4"), Mount(str(tmp_path), "lustre"), Mount(str(deep), "tmpfs"))
    assert facts_of(str(deep / "hub"), mounts=mounts).type == "tmpfs"
    beside = facts_of(str(tmp_path / "hub"), mounts=mounts)
    assert (beside.type, beside.network, beside.mount) == ("lustre", True, str(tmp_path))


def test_a_mount_over_another_hides_it(tmp_path: Path) -> None:
    mounts = (Mount(str(tmp_path), "ext4"), Mount(str(tmp_path), "nfs4"))
    assert facts_of(str(tmp_path), mounts=mounts).network is True


def test_spaces_in_mounts_are_read(mounts: tuple[Mount, ...]) -> None:
    assert Mount("/scratch/with space", "nfs4") in mounts


def test_a_type_that_is_not_known_is_neither_local_nor_shared() -> None:
    assert is_network("fuse.strange") is None
    assert is_network("") is None


def test_the_kernels_own_table_is_read_and_knows_proc() -> None:
    assert Mount("/proc", "proc") in read_mounts()


def test_no_table_leaves_everything_unknown(tmp_path: Path) -> None:
    found = facts_of(str(tmp_path), mounts=read_mounts(str(tmp_path / "missing")))
    assert (found.type, found.network) == ("", None)
    assert found.free_bytes is not None


def test_a_quota_holds_for_where_a_link_leads_and_not_for_where_it_stands(tmp_path: Path) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    (home / "hf").mkdir(parents=True)
    (scratch / "hf").mkdir(parents=True)
    (home / "moved").symlink_to(scratch / "hf")
    quota = [str(home)]
    assert facts_of(str(home / "hf" / "hub"), quota=quota).quota is True
    assert facts_of(str(home / "moved" / "hub"), quota=quota).quota is False
    assert facts_of(str(tmp_path / "homeless"), quota=quota).quota is False
    assert facts_of(str(home), quota=[]).quota is None
    assert facts_of(str(home / "hf"), work=str(home)).work is True


def test_what_is_there_and_can_be_written_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    paths = [tmp_path, tmp_path / "new" / "hub", file / "below", file]
    found = look_at([Effective(role=Role.HUB, path=str(path)) for path in paths])
    assert [(one.exists, one.writable) for one in found] == [
        (True, True),
        (False, True),
        (False, False),
        (False, False),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_without_permission_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    [one] = look_at([Effective(role=Role.HUB, path=str(tmp_path))])
    assert one.writable is False


def test_a_read_only_mount_cannot_be_written_even_by_root() -> None:
    """Every Linux has one: sysfs or proc do not count, so a real read-only mount is looked for."""
    for mount in read_mounts():
        if os.path.isdir(mount.point) and os.statvfs(mount.point).f_flag & os.ST_RDONLY:
            [one] = look_at([Effective(role=Role.HUB, path=mount.point)])
            assert one.writable is False
            return
    pytest.skip("nothing is mounted read-only here")


def test_a_relative_path_is_not_looked_at() -> None:
    [one] = look_at([Effective(role=Role.HUB, path="hub")])
    assert (one.filesystem, one.exists) == (None, None)


@pytest.mark.parametrize(
    ("path", "folder", "answer"),
    [("/a/b", "/a", True), ("/a", "/a", True), ("/ab", "/a", False), ("/a", "/", True)],
)
def test_below_means_in_the_folder(path: str, folder: str, answer: bool) -> None:
    assert is_below(path, folder) is answer
