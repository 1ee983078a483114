"""The books of an adoption: logs of gone writers are moved away, living ones get a fence.

Not here: whether a writer lives. Invariant: a fence stands exactly where the copy of the beginning
ends, so every byte of a living log is either in the archive or after the fence.
"""

from __future__ import annotations

import errno
import hashlib
import os

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths, RunPaths
from fleetcraft.training.diagnosing.fences import TAIL_BYTES
from fleetcraft.training.launching.sights import Archived, Fenced
from fleetcraft.training.records import LogFence

_CHUNK_BYTES = 1 << 20
_DEAD = "dead"


def move_logs(paths: RunPaths, attempt: AttemptPaths, fs: FileSystem) -> tuple[Archived, ...]:
    """Moves every log of an attempt whose writers are gone into the archive.

    A log that was moved before, by a pass that was cut short, is told too.

    Raises:
        OSError: One could not be moved; those before it were.
    """
    moved = []
    for log in _logs(attempt, fs):
        archive = _archive_path(paths, attempt, log, _DEAD)
        try:
            fs.rename_new(log, archive)
        except FileNotFoundError:
            if not fs.exists(archive):  # it may be there although that was reported
                raise
        moved.append(Archived(log=log, archive=archive, moved=True))
    return tuple(moved)


def moved_logs(paths: RunPaths, attempt: AttemptPaths, fs: FileSystem) -> tuple[Archived, ...]:
    """The logs of an attempt that `move_logs` has moved into the archive, by name.

    Raises:
        OSError: The archive cannot be listed.
    """
    beginning = os.path.basename(_archive_path(paths, attempt, "", _DEAD))
    return tuple(
        Archived(
            log=f"{attempt.logs}/{name.removeprefix(beginning)}",
            archive=f"{paths.archive}/{name}",
            moved=True,
        )
        for name in sorted(fs.listdir(paths.archive))
        if name.startswith(beginning)
    )


def fence_logs(paths: RunPaths, attempt: AttemptPaths, mark: str, fs: FileSystem) -> Fenced:
    """Copies the beginning of every log of a living attempt, and fences the log there.

    Args:
        paths: The run.
        attempt: The attempt that lives.
        mark: Tells this adoption from others, such as its generation and a nonce.
        fs: The seam.

    Raises:
        OSError: A log could not be read or copied.
    """
    fences, archived = [], []
    for log in _logs(attempt, fs):
        archive = _archive_path(paths, attempt, log, mark)
        fences.append(_copy_prefix(log, archive, fs))
        archived.append(Archived(log=log, archive=archive, moved=False))
    return Fenced(fences=tuple(fences), archived=tuple(archived))


def _copy_prefix(log: str, archive: str, fs: FileSystem) -> LogFence:
    source = fs.open_read(log)
    try:
        size_bytes = fs.size(source)
        target = fs.create_log(archive)
        try:
            tail = _copy(source, target, size_bytes, fs)
        finally:
            fs.close(target)
    finally:
        fs.close(source)
    return LogFence(path=log, size_bytes=size_bytes, tail_sha256=hashlib.sha256(tail).hexdigest())


def _copy(source: int, target: int, size_bytes: int, fs: FileSystem) -> bytes:
    """Copies so many bytes; returns the last of them."""
    tail, done = b"", 0
    while done < size_bytes:
        chunk = fs.read_at(source, min(_CHUNK_BYTES, size_bytes - done), done)
        if not chunk:
            raise OSError(errno.ESTALE, "the log became shorter while it was copied")
        fs.append(target, chunk)
        done += len(chunk)
        tail = (tail + chunk)[-TAIL_BYTES:]
    return tail


def _logs(attempt: AttemptPaths, fs: FileSystem) -> list[str]:
    try:
        names = fs.listdir(attempt.logs)
    except FileNotFoundError:
        return []  # it was closed before it began
    return [f"{attempt.logs}/{name}" for name in sorted(names)]


def _archive_path(paths: RunPaths, attempt: AttemptPaths, log: str, mark: str) -> str:
    return f"{paths.archive}/{os.path.basename(attempt.folder)}.{mark}.{os.path.basename(log)}"
