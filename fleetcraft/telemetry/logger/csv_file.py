"""One logger's file on disk: its lock, its rows, and the sidecar that says what rows cannot.

Nothing here knows what a row means. Invariant: all rows of a sample are one write to a file that
nobody else writes, and every row that did not get there whole is counted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Sequence

import msgspec

from fleetcraft.errors import SpoolError, TryAgainLaterError
from fleetcraft.files import FileSystem, replace_atomically
from fleetcraft.identity import sha256_hex
from fleetcraft.layout import sidecar, telemetry_file
from fleetcraft.telemetry.columns import COLUMNS
from fleetcraft.trust import make_folders, node_local_folder, require_private_folder

HEADER = ",".join(COLUMNS) + "\n"
_NOT_IN_A_NODE_NAME = re.compile(r"[^A-Za-z0-9._-]")
_NOT_IN_A_JOB_ID = re.compile(r"[^A-Za-z0-9-]")
_NAME_MAX = 120
_NAMES_TRIED = 10  # loggers that are started anew within the same second
_LOCK_PAUSE_S = 0.05


class Holder(msgspec.Struct, frozen=True):
    """Who holds the place of the logger of one node and job."""

    pid: int = 0
    file: str = ""


# ---------------------------------------------------------------------------------- the place


class Place:
    """The right to be the only logger of one node and job in one folder: a lock on this machine.

    The lock ends with the process, whatever ends it. Use: `take`, then `tell`, and `leave`.

    Args:
        folder: Where the telemetry files are.
        node: The node's name.
        job: The job.
    """

    def __init__(self, folder: str, node: str, job: str) -> None:
        key = sha256_hex("\n".join([os.path.realpath(folder), node, job]).encode(errors="replace"))
        self.path = f"{node_local_folder()}/{key[:24]}.logger"
        self._who = f"node {node}, job {job}"
        self._fd: int | None = None

    def take(self, patience_s: float = 0.0, pause: Callable[[float], bool] | None = None) -> bool:
        """Takes the lock.

        Args:
            patience_s: How long to wait for another logger to end.
            pause: Waits so many seconds; False when there is no point in waiting any longer.

        Returns:
            False when ``pause`` has said so.

        Raises:
            TryAgainLaterError: Another logger has it; the message names its pid and file.
        """
        deadline_s = time.monotonic() + patience_s
        while not self._try_to_take():
            if time.monotonic() >= deadline_s:
                raise self._refusal()
            if pause is None:
                time.sleep(_LOCK_PAUSE_S)
            elif not pause(_LOCK_PAUSE_S):
                return False
        return True

    def tell(self, file: str) -> None:
        """Writes down who has it, for whoever is refused."""
        assert self._fd is not None
        text = msgspec.json.encode(Holder(pid=os.getpid(), file=file))
        with contextlib.suppress(OSError):  # the lock holds without it
            os.pwrite(self._fd, text + b"\n", 0)

    def leave(self) -> None:
        """Gives the lock back and removes its file, which is no one else's while it is held."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self._fd)
        self._fd = None

    def _try_to_take(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            fd = os.open(self.path, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return False
            if _is_same_file(fd, self.path):
                self._fd = fd
                return True
            os.close(fd)  # the one before removed the file after we had opened it

    def _refusal(self) -> TryAgainLaterError:
        holder = Holder()
        with contextlib.suppress(OSError, msgspec.DecodeError):
            # Behind the first line may stand the rest of a longer one, of a logger that was killed.
            first, _, _ = FileSystem().read(self.path).partition(b"\n")
            holder = msgspec.json.decode(first, type=Holder)
        who = f"pid {holder.pid} writes {holder.file}" if holder.pid else "it is just beginning"
        return TryAgainLaterError(
            f"{self._who} has a logger already: {who}; nothing was logged by this one",
            hint=f"kill -TERM {holder.pid} ends it in order" if holder.pid else "look again",
            pid=holder.pid,
            file=holder.file,
        )


def _is_same_file(fd: int, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    ours = os.fstat(fd)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def prepare_folder(folder: str) -> None:
    """Makes the folder private to this user, or checks that nobody else can write it.

    Raises:
        SpoolError: It is a link, or somebody else owns it or can write it.
        OSError: It cannot be made or looked at.
    """
    make_folders(os.path.dirname(folder))
    try:
        require_private_folder(folder)
    except SpoolError as error:
        raise SpoolError(
            f"refusing {folder}: it is a link, or somebody else owns it or can write it; "
            "nothing was logged",
            hint=f"a folder that only you can write: chmod go-w {folder}, or name another one",
            path=folder,
        ) from error


# ----------------------------------------------------------------------------------- the file


class CsvFile:
    """A telemetry file that is appended to.

    A disk that is full or gone is borne: rows are counted as lost, and later ones are written
    again, on a new line, or in a new file where this one has vanished.

    Args:
        folder: Where it is made; see `prepare_folder`.
        node: The node's name, any text.
        job: The job's id, any text.
        wall_s: The wall clock, which names the file.
        fs: The seam.
        write: ``os.write``, or what a test has in its place.

    Attributes:
        path: Of the file; empty while there is none.
        rows_written: Rows that reached it whole, over all files of this logger.
        rows_lost: Rows that did not.
        trouble: Why the last write failed; empty when it did not.
    """

    def __init__(
        self,
        folder: str,
        node: str,
        job: str,
        *,
        wall_s: Callable[[], float] = time.time,
        fs: FileSystem | None = None,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self._folder = folder
        self._node = safe_name(node, _NOT_IN_A_NODE_NAME)
        self._job = safe_name(job, _NOT_IN_A_JOB_ID)
        self._wall_s = wall_s
        self._fs = fs or FileSystem()
        self._write = write
        self._fd: int | None = None
        self._torn = False
        self.path = ""
        self.rows_written = 0
        self.rows_lost = 0
        self.trouble = ""

    @property
    def is_open(self) -> bool:
        """Whether there is a file that others can see."""
        if self._fd is None:
            return False
        try:
            gone = os.fstat(self._fd).st_nlink == 0
        except OSError as error:
            gone = error.errno == errno.ESTALE
        if gone:
            self.close()
            self.path = ""
        return not gone

    def open(self) -> None:
        """Creates the file with its header, under a name that nobody has.

        Raises:
            OSError: It could not be made, or its header not be written; then nothing is left.
        """
        self.close()
        path, fd = self._create()
        try:
            if self._write(fd, HEADER.encode()) != len(HEADER):
                raise OSError(errno.ENOSPC, "its header could not be written", path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                self._fs.unlink(path)
            raise
        self.path, self._fd, self._torn = path, fd, False

    def _create(self) -> tuple[str, int]:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for tried in range(_NAMES_TRIED):
            # The name tells the second; a logger that follows another within it takes the next.
            started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._wall_s() + tried))
            path = f"{self._folder}/{telemetry_file(self._node, self._job, started)}"
            with contextlib.suppress(FileExistsError):
                return path, os.open(path, flags, 0o600)
        raise FileExistsError(errno.EEXIST, "files of this node, job and second are there", path)

    def append(self, lines: Sequence[str]) -> bool:
        """Appends the rows of one sample in one write.

        Args:
            lines: Each ends with a newline and has no other.

        Returns:
            Whether all got there. Those that did not are counted and not tried again.
        """
        fd = self._fd
        if fd is None:
            self.rows_lost += len(lines)
            return False
        data = "".join(lines).encode(errors="replace")
        try:
            begin = b"\n" if self._torn and not self._fs.ends_with_newline(fd) else b""
            written = self._write(fd, begin + data) - len(begin)
        except OSError as error:
            self._fail(len(lines), error.strerror or type(error).__name__)
            return False
        if written < len(data):
            whole = data[: max(0, written)].count(b"\n")
            self.rows_written += whole
            self._fail(len(lines) - whole, os.strerror(errno.ENOSPC))
            return False
        self._torn = False
        self.rows_written += len(lines)
        self.trouble = ""
        return True

    def _fail(self, rows: int, why: str) -> None:
        self.rows_lost += rows
        self._torn = True
        self.trouble = why

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            with contextlib.suppress(OSError):  # NFS reports here what it could not write earlier
                os.close(self._fd)
            self._fd = None

    def write_sidecar(self, facts: object) -> None:
        """Puts the sidecar beside the file, whole, in place of the one before.

        Args:
            facts: A record that becomes its JSON.

        Raises:
            OSError: It could not be written; the one before stands.
        """
        final = sidecar(self.path)
        temporary = f"{final}.{os.urandom(6).hex()}.tmp"
        try:
            self._fs.create(temporary, msgspec.json.encode(facts) + b"\n")
            replace_atomically(temporary, final)
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.unlink(temporary)
            raise


def safe_name(text: str, unsafe: re.Pattern[str] = _NOT_IN_A_NODE_NAME) -> str:
    """A part of a file name from any text: what does not belong in one becomes a dash."""
    name = unsafe.sub("-", text)[:_NAME_MAX].lstrip(".-")
    return name or "unnamed"
