"""On which file system a path lies, or would lie, and whether this user can write there.

Reads the kernel's table of mounts and asks it about folders; writes nothing. Invariant: what the
kernel does not tell is None, and a type of file system that is not known is neither local nor
shared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from fleetcraft.caches.records import Effective, FileSystemFacts

MOUNTS = "/proc/self/mountinfo"
_NETWORK = frozenset(
    {
        "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "cvmfs", "fuse.beegfs", "fuse.ceph",
        "fuse.glusterfs", "fuse.juicefs", "fuse.sshfs", "fuse.weka", "gfs2", "glusterfs", "gpfs",
        "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "vastnfs",
        "virtiofs", "wekafs",
    }
)  # fmt: skip
_LOCAL = frozenset(
    {
        "bcachefs", "btrfs", "devtmpfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay",
        "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs", "ufs", "vfat", "xfs", "zfs",
    }
)  # fmt: skip
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of the table: where, and of which type."""

    point: str
    type: str


def read_mounts(path: str = MOUNTS) -> tuple[Mount, ...]:
    """The table of mounts, in the kernel's order; empty when it cannot be read.

    Source: proc_pid_mountinfo(5).
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return ()
    mounts = []
    for line in lines:
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if dash and len(fields) >= 5:
            point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
            mounts.append(Mount(point, rest[0]))
    return tuple(mounts)


def is_network(type_: str) -> bool | None:
    """Whether other nodes see a file system of this type too; None where that is not known."""
    if type_ in _NETWORK:
        return True
    return False if type_ in _LOCAL else None


def look_at(
    effective: Iterable[Effective],
    *,
    quota: Sequence[str] = (),
    work: str = "",
    mounts: Sequence[Mount] | None = None,
) -> tuple[Effective, ...]:
    """The same records with what the disk says of each path.

    Args:
        effective: As `resolve` gives them.
        quota: Folders with a small quota; ``~`` is replaced.
        work: The folder of persistent storage; empty if it is not known.
        mounts: The table of mounts; read from the kernel if None.
    """
    mounts = read_mounts() if mounts is None else mounts
    folders = [os.path.realpath(os.path.expanduser(folder)) for folder in quota]
    work = os.path.realpath(os.path.expanduser(work)) if work else ""
    return tuple(_look(one, folders, work, mounts) for one in effective)


def _look(one: Effective, quota: Sequence[str], work: str, mounts: Sequence[Mount]) -> Effective:
    if not os.path.isabs(one.path) or "\0" in one.path:
        return one
    real = os.path.realpath(one.path)
    there = nearest_folder(real)
    mount = _mount_of(there, mounts)
    volume = _volume(there)
    facts = FileSystemFacts(
        type=mount.type,
        mount=mount.point,
        network=is_network(mount.type),
        free_bytes=volume.f_bavail * volume.f_frsize if volume else None,
        free_inodes=volume.f_favail if volume and volume.f_files else None,
        quota=any(is_below(real, folder) for folder in quota) if quota else None,
        work=is_below(real, work) if work else None,
        executable=not volume.f_flag & os.ST_NOEXEC if volume else None,
    )
    return msgspec.structs.replace(
        one, filesystem=facts, exists=_is_folder(real), writable=_writable(there)
    )


def nearest_folder(path: str) -> str:
    """The path, or the deepest folder above it that is there."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it; both absolute."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _mount_of(path: str, mounts: Sequence[Mount]) -> Mount:
    found = Mount("", "")
    for mount in mounts:  # of two at the same place, the later one hides the earlier
        if is_below(path, mount.point) and len(mount.point) >= len(found.point):
            found = mount
    return found


def _volume(folder: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _is_folder(path: str) -> bool | None:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return None
    return os.path.isdir(path)


def _writable(there: str) -> bool | None:
    """Whether files can be made in a folder, or below it the one that is not there yet."""
    try:
        read_only = bool(os.statvfs(there).f_flag & os.ST_RDONLY)
        if not os.path.isdir(there):
            return False
        return not read_only and os.access(there, os.W_OK | os.X_OK)
    except OSError:
        return None
