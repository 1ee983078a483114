"""Whether a telemetry file can have rows of a window, from its ends and its date alone.

Invariant: a file is passed over only when everything that tells its time agrees that it lies more
than a day away; a node's clock may be wrong, and be set while it writes.
"""

from __future__ import annotations

import os
import stat

from fleetcraft.clock import parse_timestamp
from fleetcraft.telemetry.reading.sources import Source
from fleetcraft.telemetry.reading.times import SECOND_US, parse_time_us
from fleetcraft.telemetry.windows.span import Window

CLOCK_STEP_S = 86400.0
_END_BYTES = 1 << 16


def passed_over(source: Source, window: Window) -> bool:
    """Whether a file need not be read.

    It lies before the window if its last row does and it was last written before it, by the clock
    of the file system; behind it if its first row does and its name's start. Archives are always
    read: neither their names nor their dates say when their rows were written.
    """
    if not source.job:
        return False
    try:
        fd = os.open(source.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        facts = os.fstat(fd)
        return stat.S_ISREG(facts.st_mode) and _lies_far(source, window, fd, facts)
    except OSError:
        return False
    finally:
        os.close(fd)


def _lies_far(source: Source, window: Window, fd: int, facts: os.stat_result) -> bool:
    start_s, end_s = window.bounds_s(zoned=True)
    before_s, behind_s = start_s - CLOCK_STEP_S, end_s + CLOCK_STEP_S
    if facts.st_mtime < before_s:
        last_s = _time_of(os.pread(fd, _END_BYTES, max(0, facts.st_size - _END_BYTES)), -2)
        return last_s is not None and last_s < before_s
    started = parse_timestamp(source.started)
    if started is not None and started.timestamp() > behind_s:
        first_s = _time_of(os.pread(fd, _END_BYTES, 0), 1)
        return first_s is not None and first_s > behind_s
    return False


def _time_of(data: bytes, place: int) -> float | None:
    """The time of a whole line; None if it has none, or no zone."""
    lines = data.split(b"\n")
    if len(lines) < 3:  # the header, a row, and what stands behind its newline
        return None
    found = parse_time_us(lines[place].partition(b",")[0].decode("ascii", "replace"))
    return found[0] / SECOND_US if found and found[1] else None
