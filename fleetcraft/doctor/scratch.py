"""The scratch tree: whose it is and who else can write it, its mount, its room, its clock.

What its mount does is `trials`' to find out. Invariant: a tree that is not there is told once, and
the other checks of it then say nothing.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from shlex import quote

import msgspec

from fleetcraft.doctor.case import Case
from fleetcraft.doctor.findings import Finding, advice, ok, unknown, wrong
from fleetcraft.doctor.mounts import (
    describe,
    is_layered,
    is_memory,
    is_network,
    mount_of,
    room_on,
)
from fleetcraft.doctor.trials import PREFIX, try_mount
from fleetcraft.files import FileSystem
from fleetcraft.fleet.guard.procfs import Mount
from fleetcraft.identity import new_record_id
from fleetcraft.units import format_bytes

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_READABLE_BY_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_FEW_BYTES = 10 << 30
_FEW_FILES = 10_000
_OLD_TRIAL_S = 3600.0
SKEW_ADVICE_S = 2.0
"""From here on times of this host and of files on the mount are worth a word."""
SKEW_WRONG_S = 60.0
"""From here on rows of telemetry and lines of journals of different hosts do not fit together."""
_CLOCK_LOOKS = 3


def check_place(case: Case) -> Iterator[Finding]:
    """Whether the tree is there, this user's own, and safe from others."""
    if case.problem is not None:
        yield unknown("place", "the settings cannot be read, see project: settings")
        return
    if not case.root:
        yield advice(
            "place",
            "nothing says where the scratch tree is, so nothing of it was checked",
            "a root in fleet.yaml, PROJECT_SCRATCH or --root",
            "fleetcraft --root DIR init, then fleetcraft --root DIR doctor",
        )
        return
    try:
        facts = os.stat(case.root)
    except FileNotFoundError:
        source = case.config.values["root"].source
        yield wrong(
            "place",
            f"{case.root} is not there ({source})",
            "a folder of this user",
            f"fleetcraft --root {quote(case.root)} init",
        )
        return
    yield judge_place(case.root, facts)
    if not stat.S_ISDIR(facts.st_mode):
        return
    yield from _parent(case.root)
    yield from _leftovers(case.root)


def judge_place(root: str, facts: os.stat_result, uid: int | None = None) -> Finding:
    """Whether a folder is private to a user.

    Args:
        root: Its path, for the words.
        facts: What stat says of it.
        uid: The user; this process's if None.
    """
    uid = os.geteuid() if uid is None else uid
    mode = stat.filemode(facts.st_mode)
    expected = "a folder of this user, mode 0700"
    if not stat.S_ISDIR(facts.st_mode):
        return wrong("place", f"{root} is no folder", expected, "name another one with --root")
    if facts.st_uid != uid:
        found = f"{root} belongs to user {facts.st_uid}, and this is user {uid}"
        return wrong("place", found, expected, "name a tree of your own with --root")
    if facts.st_mode & _WRITABLE_BY_OTHERS:
        found = f"others can write {root} ({mode}), and so run commands as this user"
        return wrong("place", found, expected, f"chmod go-w {quote(root)}")
    if facts.st_mode & _READABLE_BY_OTHERS:
        found = f"others can look into {root} ({mode})"
        return advice(
            "place", found, expected, f"chmod 700 {quote(root)}, unless they are meant to"
        )
    return ok("place", f"{root}, {mode}, of this user", expected)


def _parent(root: str) -> Iterator[Finding]:
    parent = os.path.dirname(os.path.realpath(root))
    mode = os.stat(parent).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield wrong(
            "parent",
            f"everybody can write {parent} ({stat.filemode(mode)}) and so put another tree there",
            "a parent that only its owner can write",
            f"chmod o-w {quote(parent)}, or choose another place",
        )


def _leftovers(root: str) -> Iterator[Finding]:
    """Trial folders of an examination that was cut off; young ones may be in use."""
    left = []
    for name in sorted(name for name in os.listdir(root) if name.startswith(PREFIX)):
        age_s = time.time() - os.lstat(f"{root}/{name}").st_mtime
        if age_s > _OLD_TRIAL_S:
            left.append(f"{root}/{name}")
    if left:
        found = f"{len(left)} trial folders of cut-off examinations are left"
        yield advice("leftovers", found, "none", f"look into them, then rm -r {quote(left[0])}")


# ---------------------------------------------------------------------------------- the mount


def check_mount(case: Case) -> Iterator[Finding]:
    """The type and the options of the mount."""
    if not case.has_root:
        return
    mount = mount_of(case.root)
    if mount is None:
        yield unknown("mount", f"the mount table does not say what {case.root} lies on")
        return
    yield judge_mount(mount, in_cluster=_is_cluster(case))
    purge_days = case.config.values["storage.purge_days"].value
    if purge_days is not None and "noatime" in mount.options:
        yield advice(
            "access times",
            f"noatime, and files idle for {purge_days} days are removed (storage.purge_days)",
            "known access times, or a purge by change",
            "ask the operators which time counts; fleetcraft caches check lists what is near",
        )


def _is_cluster(case: Case) -> bool:
    from fleetcraft.slurm import commands

    return commands.is_here() or "SLURM_JOB_ID" in case.environ


def judge_mount(mount: Mount, *, in_cluster: bool) -> Finding:
    """Whether a mount can hold a tree that the nodes of a cluster share.

    Args:
        mount: The mount.
        in_cluster: Whether Slurm is here, so that other nodes have to see it.
    """
    found = describe(mount)
    if "ro" in mount.options:
        return wrong("mount", found, "a mount that can be written", "choose another scratch tree")
    if is_memory(mount) or is_layered(mount):
        where = "in this machine's memory" if is_memory(mount) else "in a container's layer"
        return advice(
            "mount",
            f"{found}: {where}, gone after a restart, and seen by this machine alone",
            "storage that stays",
            "good for a trial; for a fleet choose storage that all nodes share",
        )
    if in_cluster and is_network(mount) is False:
        return advice(
            "mount",
            f"{found}: a local file system, and Slurm is here",
            "a file system that all nodes share",
            "choose a scratch tree on the parallel file system, unless there is one node",
        )
    return ok("mount", found)


def check_semantics(case: Case) -> Iterator[Finding]:
    """What each mount of the tree does, by trial."""
    if not case.has_root:
        return
    for folder, what in _mounts(case).items():
        for finding in try_mount(case.fs, folder):
            name = f"{finding.name} ({what})" if what else finding.name
            yield msgspec.structs.replace(finding, name=name)


def _mounts(case: Case) -> dict[str, str]:
    """One folder on each mount that holds a part of the tree, with what the part is called."""
    config = case.config
    parts = {
        case.root: "",
        config.spool_dir("outer"): "outer spool",
        config.spool_dir("gpu"): "gpu spool",
    }
    found: dict[int, str] = {}
    for folder in parts:
        if os.path.isdir(folder):
            found.setdefault(os.stat(folder).st_dev, folder)
    return {folder: parts[folder] for folder in found.values()}


# ----------------------------------------------------------------------------------- its room


def check_room(case: Case) -> Iterator[Finding]:
    """Free bytes and files."""
    if not case.has_root:
        return
    room = room_on(case.root)
    yield judge_bytes(room.free_bytes, room.total_bytes)
    yield judge_files(room.free_files, room.total_files)


def judge_bytes(free: int, total: int) -> Finding:
    """Whether the free bytes of a file system are many."""
    found = f"{format_bytes(free)} of {format_bytes(total)} are free, quotas aside"
    hint = "fleetcraft caches check lists what is large or near its purge"
    if free == 0:
        return wrong("free space", found, "room for logs and records", hint)
    if free < _FEW_BYTES:
        return advice("free space", found, f"{format_bytes(_FEW_BYTES)} or more", hint)
    return ok("free space", found)


def judge_files(free: int | None, total: int | None) -> Finding:
    """Whether a file system can hold many more files."""
    if free is None or total is None:
        return ok("free files", "this file system does not count files")
    found = f"{free:,} of {total:,} files are free"
    hint = "each task takes a few files: remove old trees, or ask for a larger inode quota"
    if free == 0:
        return wrong("free files", found, "room for records", hint)
    if free < _FEW_FILES:
        return advice("free files", found, f"{_FEW_FILES:,} or more", hint)
    return ok("free files", found)


# ---------------------------------------------------------------------------------- its clock


def check_clock(case: Case) -> Iterator[Finding]:
    """This host's clock against that of the file system."""
    if case.has_root:
        yield judge_skew(measure_skew_s(case.fs, case.root))


def measure_skew_s(fs: FileSystem, folder: str, now_s: Callable[[], float] = time.time) -> float:
    """How far the clock that stamps files is ahead of this host's; negative if behind.

    A file's time lies between the moments before and after it was made, if both clocks agree.

    Args:
        fs: The seam.
        folder: Where a file is made and removed again.
        now_s: This host's clock.

    Raises:
        OSError: Nothing can be made there.
    """
    skews = []
    for _ in range(_CLOCK_LOOKS):
        path = f"{folder}/{PREFIX}{new_record_id()}"
        before_s = now_s()
        fs.create(path, b"clock\n")
        after_s = now_s()
        try:
            stamped_s = fs.lstat(path).st_mtime
        finally:
            fs.unlink(path)
        skews.append(min(0.0, stamped_s - before_s) or max(0.0, stamped_s - after_s))
    return min(skews, key=abs)


def judge_skew(skew_s: float) -> Finding:
    """Whether two clocks are near enough to be compared by people."""
    way = "ahead of" if skew_s > 0 else "behind"
    expected = f"within {SKEW_ADVICE_S:g} s of this host's clock"
    found = f"the file system's clock is {abs(skew_s):.2f} s {way} this host's"
    hint = "tell the operators; on your own machine chronyc tracking or timedatectl says more"
    if abs(skew_s) > SKEW_WRONG_S:
        return wrong("file system's clock", found, expected, hint)
    if abs(skew_s) > SKEW_ADVICE_S:
        return advice("file system's clock", found, expected, hint)
    return ok("file system's clock", found, expected)
