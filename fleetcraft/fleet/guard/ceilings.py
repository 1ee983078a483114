"""What the kernel allows this user: ``ulimit -u``, and ``pids.max`` of the cgroup and those above.

Both count threads. Nothing is judged here. Invariant: a ceiling that may exist and cannot be read
raises; None means that there is none.
"""

from __future__ import annotations

import os
import resource

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.fleet.guard.procfs import Mount, read_mounts, read_text

_NO_LIMIT = "max"


class CgroupCeiling(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on the threads of one cgroup.

    Attributes:
        found: Threads in it now, also of other users where it is shared.
        ceiling: How many it may have.
        path: The file that says so.
    """

    found: int
    ceiling: int
    path: str


def thread_ceiling() -> int | None:
    """The soft ``ulimit -u``; None where there is none, as for root, whom the kernel lets pass.

    Source: getrlimit(2), RLIMIT_NPROC: it counts threads of the real user, and binds nobody with
    CAP_SYS_ADMIN or CAP_SYS_RESOURCE.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft == resource.RLIM_INFINITY or os.geteuid() == 0 else soft


def cgroup_ceilings(proc: str = "/proc") -> tuple[CgroupCeiling, ...]:
    """Every limit on this process's cgroup and on those above it, as far as they can be seen.

    Source: cgroups(7); the controller ``pids`` is in one hierarchy only, of version 1 or 2.

    Raises:
        OSError: A file could not be read.
        DataError: The cgroup, or its limit, is not where or what it should be.
    """
    place = _own_cgroup(read_text(f"{proc}/self/cgroup"))
    if place is None:
        return ()
    is_v2, cgroup = place
    mounts = [mount for mount in read_mounts(proc) if _has_pids(mount, is_v2=is_v2)]
    if not mounts:
        raise DataError(f"the cgroup '{cgroup}' may limit threads and is not mounted")
    found = [_ceiling(folder) for folder in _folders(mounts[-1], cgroup)]
    return tuple(ceiling for ceiling in found if ceiling is not None)


def _own_cgroup(text: str) -> tuple[bool, str] | None:
    """Whether version 2 governs, and the path inside the hierarchy; None without any hierarchy."""
    unified = None
    for line in text.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if "pids" in controllers.split(","):
            return False, path
        if not controllers:
            unified = True, path
    return unified


def _has_pids(mount: Mount, *, is_v2: bool) -> bool:
    return mount.kind == "cgroup2" if is_v2 else mount.kind == "cgroup" and "pids" in mount.options


def _folders(mount: Mount, cgroup: str) -> list[str]:
    """The folder of a cgroup and those above it, up to where the hierarchy is mounted."""
    root = mount.root.rstrip("/")
    inside = cgroup.rstrip("/").removeprefix(root)
    names = [name for name in inside.split("/") if name]
    if not f"{cgroup}/".startswith(f"{root}/") or ".." in names:
        raise DataError(
            f"the cgroup '{cgroup}' may limit threads and is outside '{mount.point}', "
            f"where '{mount.root}' is mounted"
        )
    return ["/".join((mount.point, *names[:count])) for count in range(len(names), -1, -1)]


def _ceiling(folder: str) -> CgroupCeiling | None:
    path = f"{folder}/pids.max"
    try:
        text = read_text(path).strip()
    except FileNotFoundError:
        os.stat(folder)  # the topmost cgroup, or one without this controller
        return None
    if text == _NO_LIMIT:
        return None
    try:
        return CgroupCeiling(
            found=int(read_text(f"{folder}/pids.current")), ceiling=int(text), path=path
        )
    except ValueError:
        raise DataError(f"'{path}' or pids.current beside it is no number") from None
