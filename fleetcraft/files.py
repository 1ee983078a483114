"""Atomic file operations: the only place that renames, links, truncates or forces to disk.

`FileSystem` is the seam: everything that touches a spool does it through one instance, one method
per system call or a few, so that a test can stop, fail, delay or explore at every single one.
Nothing here knows what a task is. Invariant: no operation but `FileSystem.open_read` follows a
symbolic link in its last component, and none replaces a file unless its name says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from typing import TypeVar

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
# No record, log or table comes near it; a sparse file that someone made would take all memory.
_MOST_BYTES = 1 << 30
_NAMES_AT_A_TIME = 4096
# EINVAL is what NFS and some FUSE mounts answer to any flag; ENOSYS is an old kernel.
_NO_FLAG_SUPPORT = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
# What link(2) says where hard links do not exist (some FUSE, SMB and object mounts).
NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_STALE_TRIES = 5
_T = TypeVar("_T")
_libc = ctypes.CDLL(None, use_errno=True)


class FileSystem:
    """The operating system's own files.

    Every method raises OSError as the system reports it; a subclass in the tests may report
    something else than what happened, which network file systems do too.
    """

    def __init__(self) -> None:
        self._rename_flags_work = True

    # -- looking

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, unsorted."""
        return os.listdir(path)

    def scan(self, path: str) -> Iterator[list[str]]:
        """Names in a folder, unsorted, some thousand at a time: a million of them need no memory.

        Raises:
            OSError: It cannot be listed; or, while it is gone through, not to its end.
        """
        return _batches(os.scandir(path))

    def exists(self, path: str) -> bool:
        """Whether something is there; only "no such file" counts as no.

        Raises:
            OSError: The answer is unknown (an unreachable mount, no permission).
        """
        try:
            os.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def lstat(self, path: str) -> os.stat_result:
        """Facts of the file itself, not of what a link points to."""
        return os.lstat(path)

    def read(self, path: str) -> bytes:
        """The whole content of one regular file."""
        return self.read_with_facts(path)[0]

    def read_with_facts(self, path: str) -> tuple[bytes, os.stat_result]:
        """The whole content, and the facts of exactly the file that was read.

        Raises:
            OSError: Not there, a symbolic link (ELOOP), not a regular file (EINVAL), or larger
                than anything that is read whole (EFBIG).
        """
        return _again_where_stale(_read_whole, path)

    def peek(self, path: str) -> bytes:
        """The content of a file, without looking at who owns it: a hint, never to be acted on."""
        return _again_where_stale(_read_start, path)

    # -- reading what grows

    def open_read(self, path: str) -> int:
        """Opens a log to be read piece by piece.

        It follows a symbolic link: a person names a log by what it is called.

        Raises:
            OSError: Not there, not to be read, or not a regular file (EINVAL).
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)

    def size(self, fd: int) -> int:
        """Bytes of an open file."""
        return os.fstat(fd).st_size

    def read_at(self, fd: int, count: int, offset: int) -> bytes:
        """At most so many bytes from an offset; none at the end."""
        return os.pread(fd, count, offset)

    # -- making

    def make_folder(self, path: str) -> None:
        """Creates one private folder (mode 0700)."""
        os.mkdir(path, 0o700)

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        """Creates a file that must not exist, with its whole content; forced to disk if durable.

        Raises:
            OSError: Nothing was created, unless the system fails here too: what a full disk took
                of it is removed again. An error of its bytes names the file as well.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
        except OSError as error:
            error.filename = path
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        finally:
            os.close(fd)

    def create_log(self, path: str) -> int:
        """Creates a log that must not exist; returns a descriptor open for appending."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def link(self, source: str, destination: str) -> None:
        """Gives a file a second name; FileExistsError where that name is taken."""
        os.link(source, destination, follow_symlinks=False)

    # -- moving

    def rename_new(self, source: str, destination: str) -> None:
        """Renames; FileExistsError where something is already at the destination.

        Atomic with RENAME_NOREPLACE. Where the mount has no such flag, the destination is looked
        at first; the callers' names are unique, so nobody else can be making that very name.
        """
        if self._rename_flags_work:
            code = _renameat2(source, destination)
            if code == 0:
                return
            if code not in _NO_FLAG_SUPPORT:
                raise OSError(code, os.strerror(code), source, None, destination)
            self._rename_flags_work = False
        if self.exists(destination):
            raise FileExistsError(errno.EEXIST, "destination exists", source, None, destination)
        os.rename(source, destination)

    def replace(self, source: str, destination: str) -> None:
        """Renames over whatever file is at the destination."""
        os.replace(source, destination)

    def unlink(self, path: str) -> None:
        """Removes one name of a file."""
        os.unlink(path)

    def remove_folder(self, path: str) -> None:
        """Removes an empty folder."""
        os.rmdir(path)

    # -- appending to a record

    def open_append(self, path: str) -> int:
        """Opens an existing file to append and read back; never creates one."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def ends_with_newline(self, fd: int) -> bool:
        """Whether the last byte is a newline; an empty file counts as yes."""
        size = os.lseek(fd, 0, os.SEEK_END)
        return size == 0 or os.pread(fd, 1, size - 1) == b"\n"

    def append(self, fd: int, data: bytes) -> None:
        """Appends in one write.

        Raises:
            OSError: The write failed or was short (ENOSPC). What a short write left behind stays:
                cutting it off could cut off a line that another process appended meanwhile.
        """
        written = os.write(fd, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were written")

    def read_from(self, fd: int, offset: int) -> bytes:
        """Everything from an offset to the end, through the same descriptor."""
        chunk = os.pread(fd, 1 << 16, offset)
        if len(chunk) < 1 << 16:
            return chunk
        parts = [chunk]
        while chunk:
            offset += len(chunk)
            chunk = os.pread(fd, 1 << 16, offset)
            parts.append(chunk)
        return b"".join(parts)

    def datasync(self, fd: int) -> None:
        """Forces a file's data to disk."""
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        """Closes a descriptor."""
        os.close(fd)

    # -- durability of names

    def sync_folder(self, path: str) -> None:
        """Forces a folder's entries to disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_mount(self, path: str) -> None:
        """Forces everything on the mount that holds this folder to disk, in one call."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(fd)


class BulkFileSystem(FileSystem):
    """What copying of large files needs besides: streams, durability, and the disk's own bytes."""

    def open_source(self, path: str, *, direct: bool = False) -> int:
        """Opens a regular file, no link; past the page cache if direct (EINVAL: not here)."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(path, flags | (os.O_DIRECT if direct else 0))
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)

    def read_into(self, fd: int, buffer: memoryview) -> int:
        """Reads on into a buffer, which is aligned to a page if direct; 0 at the end."""
        return os.readv(fd, [buffer])

    def open_new(self, path: str) -> int:
        """Creates a private file that must not exist; returns a descriptor to write it."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        """Writes all of it."""
        _write_all(fd, data)

    def seal(self, fd: int, mode: int = 0o444) -> None:
        """Gives an open file its last mode, read-only unless told, and forces it to disk."""
        os.fchmod(fd, mode)
        os.fsync(fd)

    def forget_cached(self, fd: int) -> None:
        """Advises the page cache to forget an open file; what is not on disk yet stays there."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def replace_atomically(temporary: str, final: str) -> None:
    """Publishes a finished temporary file under its final name, forced to disk first.

    Args:
        temporary: A complete file in the same folder as the final name.
        final: The name to publish; an existing file there is replaced.
    """
    fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, final)


def append_report(path: str, data: bytes, *, begin_anew: bool = False) -> bool:
    """Appends what a task reports of itself in one write, and never raises or waits for it.

    Args:
        path: Made if it is not there; a link or a pipe without a reader is not written to.
        data: Whole lines: in one write, lines of several processes do not mix.
        begin_anew: Begins on a line of its own, since whoever wrote before may have been cut short.

    Returns:
        Whether all of it was written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        fd = os.open(path, flags, 0o600)
    except OSError:
        return False
    try:
        if begin_anew and os.fstat(fd).st_size:
            data = b"\n" + data
        return os.write(fd, data) == len(data)
    except OSError:
        return False
    finally:
        os.close(fd)


def _renameat2(source: str, destination: str) -> int:
    result = _libc.renameat2(
        _AT_FDCWD,
        source.encode("utf-8", "surrogateescape"),
        _AT_FDCWD,
        destination.encode("utf-8", "surrogateescape"),
        _RENAME_NOREPLACE,
    )
    return 0 if result == 0 else ctypes.get_errno()


def _batches(entries: os._ScandirIterator[str]) -> Iterator[list[str]]:
    with entries:
        while names := [entry.name for entry in itertools.islice(entries, _NAMES_AT_A_TIME)]:
            yield names


def _again_where_stale(read: Callable[[str], _T], path: str) -> _T:
    """Reads a file anew if it was replaced at that very moment.

    NFS and FUSE answer ESTALE for what another host has replaced, also after it was opened.
    """
    tries = _STALE_TRIES
    while True:
        tries -= 1
        try:
            return read(path)
        except OSError as error:
            if error.errno != errno.ESTALE or not tries:
                error.filename = path  # what failed after the file was opened does not name it
                raise


def _read_whole(path: str) -> tuple[bytes, os.stat_result]:
    fd = _open_to_read(path)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if facts.st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        data = os.read(fd, facts.st_size + 1)
        if len(data) > facts.st_size or len(data) < facts.st_size:
            data = _read_rest(fd, data)
        return data, facts
    finally:
        os.close(fd)


def _read_start(path: str) -> bytes:
    fd = _open_to_read(path)
    try:
        data = os.read(fd, 8192)
        if len(data) < 8192:
            return data
        facts = os.fstat(fd)  # asked only of what is longer than records are
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return _read_rest(fd, data)
    finally:
        os.close(fd)


def _open_to_read(path: str) -> int:
    # O_NONBLOCK so that a FIFO put there by someone cannot hold the caller for ever.
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


def _read_rest(fd: int, data: bytes) -> bytes:
    parts = [data]
    while chunk := os.read(fd, 1 << 16):
        parts.append(chunk)
    return b"".join(parts)
