"""Bytes: hashing a file, copying it, and reading it again from the disk itself.

Bounded memory whatever the size. Not here: which files, and what a verdict is. Invariant: a file
that changed while it was read is an error that names it, never a digest.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import re
from collections.abc import Callable, Iterator
from enum import StrEnum

import msgspec

from fleetcraft.errors import DataError, SpoolError
from fleetcraft.files import BulkFileSystem

BUFFER_BYTES = 1 << 20
Advance = Callable[[int], None]
"""Is told how many more bytes were read or written."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_ESCAPE = re.compile(r"\\([0-7]{3})")
_NO_DIRECT = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


class How(StrEnum):
    """Past what the bytes were read."""

    CACHED = "cached"
    """Through the page cache: perhaps never from the disk."""
    ADVISED = "advised"
    """After the page cache was advised to forget the file, which it may not have done."""
    DIRECT = "direct"
    """With O_DIRECT, past the page cache."""


class Bytes(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of one file."""

    size_bytes: int
    sha256: str
    how: How
    head: bytes = b""
    tail: bytes = b""
    mode: int = 0


class Place(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The file system that holds something; an empty type is one that the system did not name.

    Attributes:
        type: As the kernel names it, such as ``ext4``, ``lustre``, ``nfs4``, ``tmpfs``.
    """

    type: str = ""

    @property
    def caveat(self) -> str:
        """What reading past this machine's page cache does not prove here; empty on a disk."""
        if self.type in ("tmpfs", "ramfs"):
            return "this file system is memory: there is no disk to read from"
        if self.type in _LOCAL:
            return ""
        return "this machine's cache was passed; a server may still answer from its own memory"


_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "overlay"})


class ChangedError(DataError):
    """A file that was being read changed meanwhile."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"{path} changed while it was read: {what}; nothing was published",
            hint="wait until nothing writes there, and give the command again",
            path=path,
            changed=what,
        )


class NoRoomError(SpoolError):
    """The destination's disk or quota is full."""

    def __init__(self, path: str, *, needed: int, free: int | None = None) -> None:
        room = "" if free is None else f", {free} are free"
        super().__init__(
            f"no room at {path}: {needed} bytes are to be written{room}; nothing was published",
            hint="free some space or quota, or choose another destination, and call it again",
            path=path,
            needed_bytes=needed,
            free_bytes=free,
        )


def no_room(error: OSError) -> bool:
    """Whether an error says that a disk or a quota is full."""
    return error.errno in _NO_ROOM


class Reader:
    """Hashes files one after another through one buffer, which is aligned for direct reads.

    Args:
        fs: The seam.
    """

    def __init__(self, fs: BulkFileSystem) -> None:
        self._fs = fs
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))

    def hash(
        self,
        path: str,
        *,
        reread: bool = False,
        keep: int = 0,
        write: Callable[[memoryview], None] | None = None,
        advance: Advance | None = None,
    ) -> Bytes:
        """Hashes one file.

        Args:
            path: A regular file; a link is not followed.
            reread: From the disk, past the page cache, as well as the mount allows.
            keep: How many first and last bytes to return.
            write: Takes every piece that was read.
            advance: Progress.

        Raises:
            ChangedError: It is not the same file after the reading as before.
            OSError: It cannot be read.
        """
        with _naming(path):
            if not reread:
                return self._read(path, How.CACHED, keep, write, advance)
            try:
                return self._read(path, How.DIRECT, keep, write, advance)
            except OSError as error:
                if error.errno not in _NO_DIRECT:
                    raise
            return self._read(path, How.ADVISED, keep, write, advance)

    def _read(
        self,
        path: str,
        how: How,
        keep: int,
        write: Callable[[memoryview], None] | None,
        advance: Advance | None,
    ) -> Bytes:
        fd = self._fs.open_source(path, direct=how is How.DIRECT)
        try:
            before = os.fstat(fd)
            if how is How.ADVISED:
                self._fs.forget_cached(fd)
            digest, head, tail, size = hashlib.sha256(), b"", b"", 0
            while piece := self._next(fd, size, before.st_size):
                head += bytes(piece[: max(0, keep - len(head))])
                tail = (tail + bytes(piece[-keep:]))[-keep:] if keep else b""
                digest.update(piece)
                if write is not None:
                    write(piece)
                size += len(piece)
                if advance is not None:
                    advance(len(piece))
            _must_be_same(path, before, os.fstat(fd), size)
        finally:
            self._fs.close(fd)
        return Bytes(
            size_bytes=size,
            sha256=digest.hexdigest(),
            how=how,
            head=head,
            tail=tail,
            mode=before.st_mode,
        )

    def _next(self, fd: int, done: int, size: int) -> memoryview:
        # A direct read at the unaligned end of a file is refused by some mounts, so none is made
        # once everything was read that the file had at the start.
        if done and done == size:
            return self._buffer[:0]
        return self._buffer[: self._fs.read_into(fd, self._buffer)]


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Names a file in errors of the system, which know only its descriptor."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or path
        raise


def _must_be_same(path: str, before: os.stat_result, after: os.stat_result, size: int) -> None:
    if size != after.st_size or before.st_size != after.st_size:
        raise ChangedError(path, f"{before.st_size} bytes before, {after.st_size} after")
    if before.st_mtime_ns != after.st_mtime_ns:
        raise ChangedError(path, "it was written to")


def copy(
    reader: Reader,
    fs: BulkFileSystem,
    source: str,
    destination: str,
    *,
    advance: Advance | None = None,
) -> Bytes:
    """Copies one file to a new name, read-only, forced to disk and out of the page cache.

    Group and others may read the copy only if they may read the source.

    Returns:
        What was read of the source. What the destination holds is for another reading to say.

    Raises:
        ChangedError: The source changed meanwhile.
        OSError: It was not copied; ``filename`` says which of the two is to blame, and a part may
            be left under the new name.
    """
    fd = fs.open_new(destination)

    def write(piece: memoryview) -> None:
        with _naming(destination):
            fs.write(fd, piece)

    try:
        found = reader.hash(source, write=write, advance=advance)
        with _naming(destination):
            fs.seal(fd, 0o400 | (found.mode & 0o555))
            fs.forget_cached(fd)
    finally:
        fs.close(fd)
    return found


def place_of(path: str) -> Place:
    """The file system that holds a path.

    Source: proc_pid_mountinfo(5): the mount point is the fifth field, the type the first after
    the lone dash; the longest mount point that leads to the path holds it, the latest of equals.
    """
    real = os.path.realpath(path)
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return Place()
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields.split(" ")[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, rest.split(" ")[0]
    return Place(type=kind)
