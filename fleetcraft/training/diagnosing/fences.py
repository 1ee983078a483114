"""Where a log stood when an epoch began, and whether a file is still that log.

Size and a digest of the last bytes before it; no times and no inode numbers, which lie on shared
file systems. Invariant: a file that shrank, or whose bytes before the fence differ, does not hold
the fence.
"""

from __future__ import annotations

import hashlib
import os

from fleetcraft.files import FileSystem
from fleetcraft.training.records import LogFence

TAIL_BYTES = 4096


def make_fence(path: str | os.PathLike[str], *, fs: FileSystem | None = None) -> LogFence:
    """The fence at a log's present end; a log that is not there yet has one at 0.

    Raises:
        OSError: It cannot be read.
    """
    fs = fs or FileSystem()
    name = os.path.abspath(path)
    try:
        fd = fs.open_read(name)
    except FileNotFoundError:
        return LogFence(path=name, size_bytes=0, tail_sha256=hashlib.sha256(b"").hexdigest())
    try:
        size = fs.size(fd)
        return LogFence(path=name, size_bytes=size, tail_sha256=_tail_digest(fs, fd, size))
    finally:
        fs.close(fd)


def holds(fs: FileSystem, fd: int, fence: LogFence) -> bool:
    """Whether an open file is the fenced one, perhaps longer.

    Raises:
        OSError: It cannot be read.
    """
    if fs.size(fd) < fence.size_bytes:
        return False
    return _tail_digest(fs, fd, fence.size_bytes) == fence.tail_sha256


def _tail_digest(fs: FileSystem, fd: int, size: int) -> str:
    begin = max(0, size - TAIL_BYTES)
    return hashlib.sha256(fs.read_at(fd, size - begin, begin)).hexdigest()
