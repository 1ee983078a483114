"""What a folder lies on: the type of its mount, its options, and what is free there.

Facts and words; whether a mount keeps its promises is found out by `trials`. Invariant: a number
that the file system does not tell is None, never zero.
"""

from __future__ import annotations

import os

import msgspec

from fleetcraft.caches.mounts import is_network as is_network_type
from fleetcraft.fleet.guard.procfs import Mount, read_mounts

_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_LAYERED = frozenset({"overlay", "aufs", "squashfs"})
_TOLD = ("ro", "noexec", "noatime", "relatime", "soft", "nolock", "noflock", "localflock", "flock")
_TOLD_VALUES = ("vers", "acregmax", "actimeo", "lookupcache", "local_lock")


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What a file system has left for this user.

    Attributes:
        free_bytes: Without what is kept for root.
        total_bytes: Its size.
        free_files: How many more files it can hold; None where it does not count them.
        total_files: How many it can hold; None where it does not count them.
    """

    free_bytes: int
    total_bytes: int
    free_files: int | None
    total_files: int | None


def mount_of(path: str, proc: str = "/proc") -> Mount | None:
    """The mount that holds a path; None when the table does not say.

    Raises:
        OSError: The table or the path cannot be read.
    """
    real = os.path.realpath(path)
    holding = [
        mount
        for mount in read_mounts(proc)
        if real == mount.point or real.startswith(f"{mount.point.rstrip('/')}/")
    ]
    longest = max((len(mount.point) for mount in holding), default=0)
    # Of two at one place the later one counts.
    return next((m for m in reversed(holding) if len(m.point) == longest), None)


def is_network(mount: Mount) -> bool | None:
    """Whether other hosts can have this mount too; None of a type that is not known."""
    return is_network_type(mount.kind)


def is_memory(mount: Mount) -> bool:
    """Whether it is gone after a reboot."""
    return mount.kind in _MEMORY


def is_layered(mount: Mount) -> bool:
    """Whether it is a layer of a container, gone with it."""
    return mount.kind in _LAYERED


def describe(mount: Mount) -> str:
    """Type, place and the options that matter here."""
    told = [option for option in _TOLD if option in mount.options]
    told += [f"{name}={value}" for name in _TOLD_VALUES if (value := mount.option(name))]
    options = f" ({', '.join(told)})" if told else ""
    return f"{mount.kind} at {mount.point}{options}"


def room_on(path: str) -> Room:
    """What is free where a path lies; a quota of the user is not in it.

    Raises:
        OSError: The file system does not say.
    """
    facts = os.statvfs(path)
    counts_files = facts.f_files > 0
    return Room(
        free_bytes=facts.f_bavail * facts.f_frsize,
        total_bytes=facts.f_blocks * facts.f_frsize,
        free_files=facts.f_favail if counts_files else None,
        total_files=facts.f_files if counts_files else None,
    )
