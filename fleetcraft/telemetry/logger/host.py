"""What a node says about itself: memory, the memory of this job's control group, load.

Reads ``/proc`` and ``/sys`` directly, since psutil would cost the logger memory. Invariant: what
cannot be read is None; nothing here raises.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_KIB_PER_MIB = 1024
_BYTES_PER_MIB = 1 << 20
_READ_BYTES = 8192
_TOTAL = re.compile(rb"^MemTotal:\s+(\d+) kB$", re.M)
_AVAILABLE = re.compile(rb"^MemAvailable:\s+(\d+) kB$", re.M)
_JOB_FOLDER = re.compile(r".*/job_\d+(?=/|$)")


class HostReading(NamedTuple):
    """One look at the host.

    Attributes:
        mem_used_mib: Total less what is available without swapping, as the kernel estimates it.
        mem_total_mib: All memory of the machine.
        cgroup_mem_mib: What is charged to the job's control group, its page cache included.
        load: Mean number of runnable or uninterruptible threads over the last minute.
    """

    mem_used_mib: float | None = None
    mem_total_mib: float | None = None
    cgroup_mem_mib: float | None = None
    load: float | None = None


class HostReader:
    """Reads the host again and again from the same descriptors.

    Args:
        root: What stands before ``/proc`` and ``/sys``; tests put a tree of their own there.
    """

    def __init__(self, root: str = "") -> None:
        self._meminfo = _KeptFile(f"{root}/proc/meminfo")
        self._loadavg = _KeptFile(f"{root}/proc/loadavg")
        self.cgroup_file = find_cgroup_file(root)
        self._cgroup = _KeptFile(self.cgroup_file) if self.cgroup_file else None

    def read(self) -> HostReading:
        """One look; what cannot be read is None."""
        total_mib, used_mib = _memory(self._meminfo.read())
        charged = None if self._cgroup is None else _number(self._cgroup.read())
        return HostReading(
            mem_used_mib=used_mib,
            mem_total_mib=total_mib,
            cgroup_mem_mib=None if charged is None else charged / _BYTES_PER_MIB,
            load=_number(self._loadavg.read().partition(b" ")[0]),
        )

    def close(self) -> None:
        """Closes the descriptors."""
        for file in (self._meminfo, self._loadavg, self._cgroup):
            if file is not None:
                file.close()


class _KeptFile:
    """A small file of the kernel that is read from its beginning each time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def read(self) -> bytes:
        """Its content; empty when it cannot be read, and opened anew the next time."""
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._fd, _READ_BYTES, 0)
        except OSError:
            self.close()
            return b""

    def close(self) -> None:
        """Closes it; a further read opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _memory(text: bytes) -> tuple[float | None, float | None]:
    """Total and used MiB."""
    total, available = _TOTAL.search(text), _AVAILABLE.search(text)
    if total is None:
        return None, None
    total_kib = int(total[1])
    used_kib = None if available is None else total_kib - int(available[1])
    used_mib = None if used_kib is None or used_kib < 0 else used_kib / _KIB_PER_MIB
    return total_kib / _KIB_PER_MIB, used_mib


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def find_cgroup_file(root: str = "") -> str:
    """The file that says how much memory this process's control group uses; empty if none does.

    Inside a Slurm job that is the job's own group on this node, whatever the step.

    Source: cgroups(7), "/proc/[pid]/cgroup" and "/proc/[pid]/mountinfo"; kernel documentation,
    "memory.current" and, of version 1, "memory.usage_in_bytes"; slurm's cgroup plugins name the
    folders ``job_<id>/step_<id>``.
    """
    for version, path in _memberships(_text(f"{root}/proc/self/cgroup")):
        place = _where_mounted(_text(f"{root}/proc/self/mountinfo"), version, path)
        if place is not None:
            name = "memory.current" if version == 2 else "memory.usage_in_bytes"
            file = f"{root}{place.rstrip('/')}/{name}"
            if os.path.exists(file):
                return file
    return ""


def _memberships(text: str) -> list[tuple[int, str]]:
    """Version and path of the groups that may count memory, version 1 first where both exist."""
    found: list[tuple[int, str]] = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        of_job = _JOB_FOLDER.match(path)
        path = of_job[0] if of_job else path
        if "memory" in controllers.split(","):
            found.insert(0, (1, path))
        elif number == "0" and not controllers:
            found.append((2, path))
    return found


def _where_mounted(mountinfo: str, version: int, path: str) -> str | None:
    """Where a group of the hierarchy appears in the file tree; None when it does not."""
    for line in mountinfo.splitlines():
        mount, _, filesystem = line.partition(" - ")
        words, of_filesystem = mount.split(), filesystem.split()
        if len(words) < 5 or len(of_filesystem) < 3:
            continue
        mount_root, mount_point = words[3].rstrip("/"), words[4]
        kind, options = of_filesystem[0], of_filesystem[2].split(",")
        fits = kind == "cgroup2" if version == 2 else kind == "cgroup" and "memory" in options
        if fits and (path == mount_root or path.startswith(f"{mount_root}/")):
            return mount_point + path[len(mount_root) :]
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
