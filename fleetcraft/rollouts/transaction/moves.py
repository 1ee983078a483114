"""Renames that believe what is there, not what was reported of the attempt.

A network file system may report ENOENT, EEXIST or EIO of a rename that it did. Not here: where a
record belongs. Invariant: DONE, GONE and TAKEN are seen with own eyes; all else is an OSError.
"""

from __future__ import annotations

import contextlib
from enum import StrEnum

from fleetcraft.files import FileSystem


class Move(StrEnum):
    """How a rename ended."""

    DONE = "done"
    GONE = "gone"
    TAKEN = "taken"


def move(fs: FileSystem, source: str, destination: str) -> Move:
    """Renames a file or folder to a name that nobody else gives to anything.

    Returns:
        DONE when it lies at the destination and no longer at the source, whatever was reported;
        GONE when it is at neither; TAKEN when something is at both, and both were left.

    Raises:
        OSError: It was not moved (such as no space, or no folder to move to), or the file system
            does not tell.
    """
    try:
        fs.rename_new(source, destination)
    except OSError as error:
        # The destination is looked at first: a source that is gone proves nothing by itself.
        there = fs.exists(destination)
        here = fs.exists(source)
        if here and not there:
            raise error
        if here:
            return Move.TAKEN
        return Move.DONE if there else Move.GONE
    return Move.DONE


def discard(fs: FileSystem, path: str) -> None:
    """Removes one name of a file that is known elsewhere; one that is gone is gone.

    Raises:
        OSError: It is still there, or the file system does not tell.
    """
    try:
        fs.unlink(path)
    except OSError as error:
        if fs.exists(path):
            raise error


def make_folder(fs: FileSystem, path: str) -> None:
    """Makes a folder, or finds it made.

    Raises:
        OSError: It is not there, or the file system does not tell.
    """
    try:
        fs.make_folder(path)
    except OSError as error:
        if not fs.exists(path):
            raise error


def remove_empty(fs: FileSystem, path: str) -> None:
    """Removes a folder if it is empty; one that is not, or cannot be removed, stays."""
    with contextlib.suppress(OSError):
        fs.remove_folder(path)
