"""The kernel's count of processes that it killed for memory in this process's own cgroup.

Reads one number; whom a kill is blamed on is decided elsewhere. Invariant: a count that cannot be
read is None, never 0.
"""

from __future__ import annotations

import os
import re
import time

_RECENT_S = 1.0
_OOM_KILL = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class OomCounter:
    """The kernel's count of processes it killed for memory in this process's cgroup.

    Reads cgroup v2 ``memory.events`` or v1 ``memory.oom_control``, whichever governs; where
    neither can be read the count is None, and no kill is blamed on memory.
    """

    def __init__(self) -> None:
        path = _find_counter()
        # Kept open: opening it anew would cost more than all else that starts a task.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
        self._last: int | None = None
        self._read_at = -_RECENT_S

    def recent(self) -> int | None:
        """The count at most a second ago: what a task compares with that starts now.

        Reading it at each start costs as much as claiming the task.
        """
        if time.monotonic() - self._read_at > _RECENT_S:
            self.read()
        return self._last

    def read(self) -> int | None:
        """The count now; None when it cannot be known."""
        # Remembered: a kill that one task was blamed for is not held against the next one.
        self._last = self._count()
        self._read_at = time.monotonic()
        return self._last

    def _count(self) -> int | None:
        if self._fd < 0:
            return None
        try:
            found = _OOM_KILL.search(os.pread(self._fd, 4096, 0))
        except OSError:
            return None
        return int(found[1]) if found else None

    def close(self) -> None:
        """Closes the counter."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _find_counter() -> str:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return ""
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if "memory" in controllers.split(","):
            candidate = f"/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control"
        elif not controllers:
            candidate = f"/sys/fs/cgroup{path.rstrip('/')}/memory.events"
        else:
            continue
        if os.access(candidate, os.R_OK):
            return candidate
    return ""
