"""The host side of a phase: the highest resident size since its start, and a heap given back.

Reads and writes `/proc` of this process and its children; no torch. Invariant: what the kernel
refuses or does not tell is False or None, never 0.
"""

from __future__ import annotations

import ctypes
import re

import psutil

_RESET_PEAK = b"5"
"""What clears the high-water mark. Source: proc(5), `/proc/pid/clear_refs`; since Linux 4.0."""
_PEAK = re.compile(rb"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def reset_rss_peak() -> bool:
    """Lets `rss_peak_bytes` of this process begin again at what is resident now.

    Returns:
        False where the kernel refuses; the peak then stands for the whole life of the process.
    """
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as refs:
            refs.write(_RESET_PEAK)
    except OSError:
        return False
    return True


def rss_peak_bytes(pid: int | None = None) -> int | None:
    """The highest resident size since the last reset, or since the process began.

    Args:
        pid: This process when None.

    Returns:
        Bytes; None when the process is gone or the kernel does not tell.
    """
    try:
        with open(f"/proc/{'self' if pid is None else pid}/status", "rb") as status:
            found = _PEAK.search(status.read())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None  # a zombie has no such line


def trim_heap() -> bool:
    """Gives freed memory of the C heap back, so that resident size means something.

    Without it glibc keeps what an earlier phase freed, and the next phase's own use does not show.

    Returns:
        False where the C library has no such call, or had nothing to give back.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(trim(0)) if trim is not None else False


def tree_rss_bytes(pid: int) -> int | None:
    """Resident size of a process and all that descend from it, now.

    Pages that they share are counted once for each.

    Returns:
        Bytes; None when the process is gone.
    """
    try:
        root = psutil.Process(pid)
        total: int = root.memory_info().rss
        children = root.children(recursive=True)
    except psutil.Error:
        return None
    for child in children:
        try:
            total += child.memory_info().rss
        except psutil.Error:
            continue  # it ended meanwhile, and holds nothing
    return total
