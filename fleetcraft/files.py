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
import os
import stat

from fleetcraft.errors import UnsafeSpoolError

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
# No record, log or table comes near it; a sparse file that someone made would take all memory.
_MOST_BYTES = 1 << 30
# EINVAL is what NFS and some FUSE mounts answer to any flag; ENOSYS is an old kernel.
_NO_FLAG_SUPPORT = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
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
        # O_NONBLOCK so that a FIFO put there by someone cannot hold the caller for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
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

    def peek(self, path: str) -> bytes:
        """The content of a file, without looking at who owns it: a hint, never to be acted on."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(fd, 8192)
            return _read_rest(fd, data) if len(data) == 8192 else data
        finally:
            os.close(fd)

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
        """Creates a file that must not exist, with its whole content; forced to disk if durable."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            _write_all(fd, data)
            if durable:
                os.fsync(fd)
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
        if os.path.lexists(destination):
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


def publish_new(fs: FileSystem, path: str, data: bytes) -> bool:
    """Publishes a whole file under a name that nobody has taken, durably: put-if-absent.

    A file that is already there with exactly this content counts as published: a link that was
    reported as failed may have happened. Content that carries a nonce so tells its own from that
    of another.

    Args:
        fs: The seam.
        path: The new name; its folder must be there.
        data: The whole content.

    Returns:
        True when this call published it or found it published with this very content; False when
        another content has the name.

    Raises:
        OSError: It is not known to be published; a temporary file may be left beside it.
    """
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    fs.create(temporary, data, durable=True)
    try:
        try:
            fs.link(temporary, path)
        except FileExistsError:
            if fs.read(path) != data:
                return False
        fs.sync_folder(os.path.dirname(path))
    finally:
        fs.unlink(temporary)
    return True


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


def node_local_folder() -> str:
    """A private folder in this machine's memory, made if it is not there.

    It is the same for all processes of this user here, and gone after a reboot: for locks and
    caches that mean something on one machine only.

    Raises:
        UnsafeSpoolError: Somebody else owns it or can write it.
        OSError: It cannot be made.
    """
    base = "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp"
    folder = f"{base}/fleetcraft-{os.geteuid()}"
    require_private_folder(folder)
    return folder


def require_private_folder(folder: str) -> None:
    """Makes a folder that only this user can write, or checks that it is one.

    Raises:
        UnsafeSpoolError: It is a link or no folder, or somebody else owns it or can write it.
        OSError: It cannot be made or looked at.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise UnsafeSpoolError(folder, "it is not a private folder of this user")


def _renameat2(source: str, destination: str) -> int:
    result = _libc.renameat2(
        _AT_FDCWD,
        source.encode("utf-8", "surrogateescape"),
        _AT_FDCWD,
        destination.encode("utf-8", "surrogateescape"),
        _RENAME_NOREPLACE,
    )
    return 0 if result == 0 else ctypes.get_errno()


def _write_all(fd: int, data: bytes | memoryview) -> None:
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


def _read_rest(fd: int, data: bytes) -> bytes:
    parts = [data]
    while chunk := os.read(fd, 1 << 16):
        parts.append(chunk)
    return b"".join(parts)
