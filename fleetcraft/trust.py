"""What of a shared machine can be relied on: whose files and folders are, which program runs.

Not here: the spool's and the queue's own checks, which ask for more. Invariant: nothing here
repairs what it refuses, and every answer is about the very file that was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat

from fleetcraft.errors import UnsafeSpoolError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def stranger(facts: os.stat_result) -> str:
    """Why somebody else could have written an open file.

    This user, root, and whoever installed this package may have: the last could change the code
    that reads it.

    Args:
        facts: Of the open file, from ``fstat``.

    Returns:
        The reason; empty if nobody else could.
    """
    if facts.st_uid not in (os.geteuid(), 0) and facts.st_uid != os.stat(__file__).st_uid:
        return f"it belongs to user {facts.st_uid}, and this is user {os.geteuid()}"
    if facts.st_mode & _WRITABLE_BY_OTHERS:
        return f"others can write it (mode {stat.filemode(facts.st_mode)})"
    return ""


def make_folders(path: str, mode: int = 0o700) -> None:
    """Makes a folder and those above it that are missing, all with one mode.

    ``os.makedirs`` gives its mode to the last one only; with a lenient umask anybody could then put
    another folder in the place of the private one.

    Args:
        path: The folder; it may be there.
        mode: Of every folder that is made, less what the umask takes away.

    Raises:
        FileExistsError: A file has its name.
        OSError: It cannot be made.
    """
    missing = []
    folder = os.path.abspath(path)
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process has just made it
            os.mkdir(folder, mode)
    if not os.path.isdir(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def find_program(name: str) -> str | None:
    """The path of a program on PATH, as ``shutil.which`` finds it, but never in the current folder.

    Relative and empty entries of PATH are passed over: in a shared folder anybody could have put a
    program of that name there.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    absolute = os.pathsep.join(folder for folder in folders if os.path.isabs(folder))
    return shutil.which(name, path=absolute)


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
