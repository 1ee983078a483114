"""Removing what one attempt generated on its node: bounded in time, and never through a link.

Not here: which folder that is. Invariants: only what lies in the folder itself is removed; a link
in it is removed as a link; what does not go in time stays and is told.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 32


def clear_folder(path: str, *, limit_s: float = 1.0) -> bool:
    """Removes a folder and what is in it, as far as it gets in time.

    Args:
        path: The folder; that it is not there is well.
        limit_s: Seconds after which the rest is left.

    Returns:
        Whether it is gone.
    """
    try:
        fd = os.open(path, _FOLDER)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        if not _empty(fd, time.monotonic() + limit_s, 0):
            return False
    except OSError:
        return False
    finally:
        os.close(fd)
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def drop_if_empty(path: str) -> None:
    """Removes a folder if there is nothing in it."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _empty(fd: int, deadline: float, depth: int) -> bool:
    with os.scandir(fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if time.monotonic() >= deadline:
            return False
        if is_folder:
            if depth >= _DEEPEST or not _remove_folder(name, fd, deadline, depth):
                return False
        else:
            os.unlink(name, dir_fd=fd)
    return True


def _remove_folder(name: str, fd: int, deadline: float, depth: int) -> bool:
    below = os.open(name, _FOLDER, dir_fd=fd)
    try:
        if not stat.S_ISDIR(os.fstat(below).st_mode) or not _empty(below, deadline, depth + 1):
            return False
    finally:
        os.close(below)
    os.rmdir(name, dir_fd=fd)
    return True
