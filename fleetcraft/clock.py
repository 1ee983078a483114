"""Time: wall time for records, monotonic time for waiting, and the mount's own time for leases.

Nothing here sleeps or decides. Wall clocks of different hosts are never compared with each other;
ages of files are measured against the clock of the file system that holds them.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from functools import lru_cache

LAST_S = 253_402_300_799.0
"""The last whole second of the calendar, 9999-12-31T23:59:59Z, in seconds since 1970."""


def now_at() -> datetime:
    """The wall clock as an aware UTC datetime."""
    return datetime.now(UTC)


def timestamp() -> str:
    """The wall clock as ISO 8601 UTC text with milliseconds, ``2026-11-29T20:33:05.123Z``."""
    now = time.time()
    whole = int(now)
    return f"{_to_the_second(whole)}.{int((now - whole) * 1000):03d}Z"


@lru_cache(maxsize=4)
def _to_the_second(whole: int) -> str:
    # Remembered: a worker asks several times a task, and calendars are slow.
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))


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
