"""Where fuzzed files lie: one folder in memory a process, removed at its end.

Not here: what is written. Invariant: a file is written anew for each trial, so that none is read
that an earlier trial has left.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_made: dict[int, str] = {}


def folder() -> str:
    """This process's own folder."""
    pid = os.getpid()
    if pid not in _made:
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        _made[pid] = tempfile.mkdtemp(prefix="fleet-fuzz-", dir=base)
        atexit.register(remove)
    return _made[pid]


def remove() -> None:
    """Removes this process's folder, also where it ends without its exit handlers."""
    made = _made.pop(os.getpid(), None)
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)


def fresh(name: str = "tree") -> str:
    """An empty folder of this name in it."""
    path = os.path.join(folder(), name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path, mode=0o700)
    return path


def write(name: str, data: bytes) -> str:
    """A file of this name in it, with these bytes; returns its path."""
    path = os.path.join(folder(), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    return path
