"""Time: wall time for records, monotonic time for waiting, and the mount's own time for leases.

Nothing here sleeps or decides. Wall clocks of different hosts are never compared with each other;
ages of files are measured against the clock of the file system that holds them.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime


def now_at() -> datetime:
    """The wall clock as an aware UTC datetime."""
    return datetime.now(UTC)


def timestamp() -> str:
    """The wall clock as ISO 8601 UTC text with milliseconds, ``2026-11-29T20:33:05.123Z``."""
    # Written by hand: called three times a task, and datetime.isoformat costs three times this.
    now = time.time()
    whole = int(now)
    fields = time.gmtime(whole)
    return (
        f"{fields.tm_year:04d}-{fields.tm_mon:02d}-{fields.tm_mday:02d}"
        f"T{fields.tm_hour:02d}:{fields.tm_min:02d}:{fields.tm_sec:02d}.{int((now - whole) * 1000):03d}Z"
    )


def parse_timestamp(text: str) -> datetime | None:
    """Reads what `timestamp` wrote; None when the text is something else."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def age_on_mount_s(path: str, probe: str) -> float:
    """How old a file is by the clock of the file system that holds it.

    Args:
        path: The file whose age is wanted.
        probe: A file on the same mount that this caller has written just now.

    Returns:
        Seconds between the two modification times; may be slightly negative.

    Raises:
        OSError: One of the two cannot be seen.
    """
    return os.stat(probe).st_mtime - os.stat(path).st_mtime
