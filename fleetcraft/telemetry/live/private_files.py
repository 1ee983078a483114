"""Opening telemetry folders and files that nobody else could have written, and their clock.

Invariant: a descriptor that is given out belongs to a folder or a regular file of this user that
no one else can write; no symbolic link is followed to it.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ASK_AGAIN_S = 60.0


def open_folder(path: str) -> int:
    """Opens a folder.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be opened, is a link or no folder, or is not private.
    """
    fd = os.open(path, _FLAGS | os.O_DIRECTORY)
    if problem := _problem(os.fstat(fd)):
        os.close(fd)
        raise OSError(0, problem)
    return fd


def open_file(folder_fd: int, name: str) -> tuple[int, os.stat_result]:
    """Opens a file of an open folder.

    Returns:
        Its descriptor, and the facts of exactly that file.

    Raises:
        OSError: Not there, a symbolic link, no regular file, or not private.
    """
    fd = os.open(name, _FLAGS, dir_fd=folder_fd)
    try:
        facts = os.fstat(fd)
        problem = "not a regular file" if not stat.S_ISREG(facts.st_mode) else _problem(facts)
        if problem:
            raise OSError(0, problem)
    except OSError:
        os.close(fd)
        raise
    return fd, facts


def read_small(folder_fd: int, name: str, most_bytes: int) -> bytes:
    """The beginning of a file.

    Raises:
        OSError: As `open_file`, or it cannot be read.
    """
    fd, _ = open_file(folder_fd, name)
    try:
        return os.pread(fd, most_bytes, 0)
    finally:
        os.close(fd)


def _problem(facts: os.stat_result) -> str:
    if facts.st_uid != os.geteuid():
        return f"belongs to user {facts.st_uid}"
    return "others can write it" if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def now_on_mount_s(folder: str) -> float:
    """The time by the clock that dates the files there.

    Raises:
        OSError: Nothing can be made there. This host's own clock may be behind, and would make old
            files fresh.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\n")
        file.flush()
        return os.fstat(file.fileno()).st_mtime


class MountClock:
    """The clock of a mount, asked once a minute and counted on from there.

    Args:
        folder: Where it is asked; a file without a name is made there for a moment.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._asked_s = -_ASK_AGAIN_S
        self._ahead_s = 0.0

    def now_s(self) -> float:
        """Seconds since 1970.

        Raises:
            OSError: It could not be asked.
        """
        here_s = time.monotonic()
        if here_s - self._asked_s >= _ASK_AGAIN_S:
            self._ahead_s = now_on_mount_s(self._folder) - here_s
            self._asked_s = here_s
        return here_s + self._ahead_s
