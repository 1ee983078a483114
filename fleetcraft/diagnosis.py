"""How an attempt died: what its log's tail and the memory cgroup say.

Evidence in, a word out; nothing is signalled or moved. Invariant: a kill counts as out of memory
only when the kernel's own counter rose meanwhile.
"""

from __future__ import annotations

import os
import re

_TAIL_BYTES = 64 * 1024
# torch, JAX and the CUDA runtime in their own words.
_DEVICE_OOM = re.compile(
    rb"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory"
    rb"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory"
    rb"|RESOURCE_EXHAUSTED: Out of memory"
)


def device_ran_out(log: str) -> bool:
    """Whether the tail of a log (64 KiB) holds a device's out-of-memory error."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return _DEVICE_OOM.search(file.read(_TAIL_BYTES)) is not None
    except OSError:
        return False


class OomCounter:
    """The kernel's count of processes it killed for memory in this process's cgroup.

    Reads cgroup v2 ``memory.events`` or v1 ``memory.oom_control``, whichever governs; where
    neither can be read the count is None, and no kill is blamed on memory.
    """

    def __init__(self) -> None:
        self._path = _find_counter()

    def read(self) -> int | None:
        """The count now; None when it cannot be known."""
        if not self._path:
            return None
        try:
            with open(self._path, encoding="ascii", errors="replace") as file:
                for line in file:
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            return None
        return None


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
        if os.path.exists(candidate):
            return candidate
    return ""
