"""Where a log stood when an epoch began, and whether a file is still that log.

Size and a digest of the last bytes before it; no times and no inode numbers, which lie on shared
file systems. Invariant: a file that shrank, or whose bytes before the fence differ, does not hold
the fence.
"""

from __future__ import annotations

import hashlib
import os

from fleetcraft.training.records import LogFence

TAIL_BYTES = 4096


def make_fence(path: str | os.PathLike[str]) -> LogFence:
    """The fence at a log's present end; a log that is not there yet has one at 0.

    Raises:
        OSError: It cannot be read.
    """
    name = os.path.abspath(path)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return LogFence(path=name, size_bytes=0, tail_sha256=_digest(b""))
    try:
        size = os.fstat(fd).st_size
        return LogFence(path=name, size_bytes=size, tail_sha256=tail_digest(fd, size))
    finally:
        os.close(fd)


def holds(fd: int, fence: LogFence) -> bool:
    """Whether an open file is the fenced one, perhaps longer.

    Raises:
        OSError: It cannot be read.
    """
    if os.fstat(fd).st_size < fence.size_bytes:
        return False
    return tail_digest(fd, fence.size_bytes) == fence.tail_sha256


def before_fence(path: str | os.PathLike[str], fence: LogFence, byte: int) -> bool | None:
    """Whether a line that begins at a byte lies before the fence, and so never counts.

    Returns:
        None when the file does not hold the fence any more, or cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return byte < fence.size_bytes if holds(fd, fence) else None
    except OSError:
        return None
    finally:
        os.close(fd)


def tail_digest(fd: int, size: int) -> str:
    """SHA-256 of the last bytes before an offset, `TAIL_BYTES` at most.

    Raises:
        OSError: They cannot be read.
    """
    begin = max(0, size - TAIL_BYTES)
    return _digest(os.pread(fd, size - begin, begin))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
