"""What lies in a folder of checkpoints: commits, what looks like one, and saves without a commit.

A look reads names and markers, no other file. Invariant: the newest is computed from commits each
time, never from a link, and what could not be looked at is told as unknown, never left out.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from fleetcraft.files import FileSystem
from fleetcraft.layout.checkpoints import (
    MANIFEST,
    StorePaths,
    parse_step,
    parse_unfinished,
)
from fleetcraft.training.checkpoint.records import (
    CheckpointUnknownError,
    Fault,
    Manifest,
    Pending,
    Sight,
    read_manifest,
)

_MOST_BYTES = 256 << 20  # some 20,000 ranks with 50 files each


@dataclass
class _Found:
    committed: list[Manifest] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unknown: list[Fault] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)


def look(fs: FileSystem, paths: StorePaths) -> Sight:
    """Everything in a folder of checkpoints; a folder that is not there has nothing in it.

    Raises:
        CheckpointUnknownError: The folder itself cannot be listed.
    """
    found = _Found()
    for name in sorted(_names(fs, paths.folder)):
        step = parse_step(name)
        if step is not None:
            _look_at_step(fs, f"{paths.folder}/{name}", step, found)
        elif parse_unfinished(name) is not None:
            _look_at_unfinished(fs, f"{paths.folder}/{name}", name, found)
    return Sight(
        committed=tuple(sorted(found.committed, key=lambda manifest: manifest.step)),
        faults=tuple(found.faults),
        unknown=tuple(found.unknown),
        pending=tuple(found.pending),
        quarantined=_folders(fs, paths.quarantine),
        retiring=_folders(fs, paths.retired),
    )


def read_step(fs: FileSystem, folder: str, step: int) -> Manifest:
    """The manifest of a committed checkpoint.

    Raises:
        ValueError: It is none; the text says why.
        OSError: It cannot be looked at; FileNotFoundError when it has no marker.
    """
    if not stat.S_ISDIR(fs.lstat(folder).st_mode):
        raise ValueError("it is a link or a file, no folder")
    manifest = read_manifest(read_record(fs, f"{folder}/{MANIFEST}"), folder)
    if manifest.step != step:
        raise ValueError(f"its marker is that of step {manifest.step}")
    return manifest


def read_record(fs: FileSystem, path: str) -> bytes:
    """The content of a marker, a note or a rank's record.

    Raises:
        ValueError: It is a link, no file, or larger than any of them.
        OSError: It cannot be looked at; FileNotFoundError when it is not there.
    """
    facts = fs.lstat(path)
    name = os.path.basename(path)
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{name} is no regular file")
    if facts.st_size > _MOST_BYTES:
        raise ValueError(f"{name} has {facts.st_size} bytes, and no record has that many")
    return fs.read(path)


def _look_at_step(fs: FileSystem, folder: str, step: int, found: _Found) -> None:
    try:
        found.committed.append(read_step(fs, folder, step))
    except (FileNotFoundError, NotADirectoryError) as error:
        if _is_gone(fs, folder):
            return  # retired or quarantined since it was listed
        found.faults.append(Fault(path=folder, why=f"it has no marker ({error.strerror})"))
    except ValueError as error:
        found.faults.append(Fault(path=folder, why=str(error)))
    except OSError as error:
        found.unknown.append(Fault(path=folder, why=error.strerror or str(error)))


def _is_gone(fs: FileSystem, folder: str) -> bool:
    try:
        return not fs.exists(folder)
    except OSError:
        return False


def _look_at_unfinished(fs: FileSystem, folder: str, name: str, found: _Found) -> None:
    named = parse_unfinished(name)
    assert named is not None
    try:
        complete = fs.exists(f"{folder}/{MANIFEST}")
    except OSError as error:
        found.unknown.append(Fault(path=folder, why=error.strerror or str(error)))
        return
    found.pending.append(
        Pending(
            path=folder,
            step=named.step,
            generation=named.generation,
            nonce=named.nonce,
            complete=complete,
        )
    )


def _names(fs: FileSystem, folder: str) -> list[str]:
    try:
        return fs.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unknown(folder, error) from error


def _folders(fs: FileSystem, folder: str) -> tuple[str, ...]:
    names = (name for name in _names(fs, folder) if not name.endswith((".json", ".tmp")))
    return tuple(f"{folder}/{name}" for name in sorted(names))


def unknown(folder: str, error: OSError) -> CheckpointUnknownError:
    """The error for a folder of checkpoints that cannot be looked at."""
    return CheckpointUnknownError(
        f"cannot tell what checkpoints are in {folder}: {error.strerror or error}; "
        "nothing was concluded",
        hint="check the mount and the folder's permissions, then ask again",
        folder=folder,
    )
