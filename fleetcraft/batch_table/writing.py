"""Writing a batch table in place of the one before, which is kept beside it under its own hash.

What stands in the rows is decided elsewhere. Invariant: at every moment a reader finds a whole
table under the table's name, the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

import yaml

from fleetcraft.batch_table.reading import read_table
from fleetcraft.batch_table.records import SCHEMA, Table, content, hash_of
from fleetcraft.errors import DataError, TryAgainLaterError
from fleetcraft.files import NO_HARD_LINKS, FileSystem, replace_atomically
from fleetcraft.trust import make_folders

_HEAD = "# The batch table. An edited one is refused; fleetcraft calibrate freeze writes it.\n"
_HASH_DIGITS = 12


def write_table(path: str, table: Table, *, replaces: str | None = None) -> str:
    """Writes a table atomically; the one that was there stays beside it as its history.

    Args:
        path: Its file; a link is followed. Its folder is made, private, where there is none.
        table: As `make_table` makes it.
        replaces: Hash of the table that it was made from; empty when there was none. When given,
            another table that is there by now is left as it is.

    Returns:
        The path under which the table before is kept; empty when there was none, or the same.

    Raises:
        DataError: The hash is not that of the rows, or the table that is there cannot be read:
            it was edited, and is not written over.
        TryAgainLaterError: Another table was written meanwhile.
        OSError: It cannot be written.
    """
    if hash_of(content(table.families)) != table.hash:
        raise DataError("the batch table's hash is not that of its rows; nothing was written")
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    make_folders(folder)
    with _alone(folder):
        before = _hash_before(path) if os.path.lexists(path) else ""
        if replaces is not None and before != replaces:
            raise TryAgainLaterError(
                f"the batch table {path} was written by somebody else meanwhile; "
                "it was left as it is",
                hint="fleetcraft calibrate freeze once more",
                path=path,
            )
        if before == table.hash:
            return ""
        kept = _keep(path, before) if before else ""
        _replace(path, to_yaml(table).encode())
    return kept


def to_yaml(table: Table) -> str:
    """The text of a table's file."""
    document = {"schema": SCHEMA, "hash": table.hash, **content(table.families)}
    return _HEAD + yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False
    )


def history_path(path: str, table_hash: str) -> str:
    """Where a table that was replaced is kept: ``batch-table.<12 digits of its hash>.yaml``."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}.{table_hash.removeprefix('sha256:')[:_HASH_DIGITS]}{suffix}"


def _hash_before(path: str) -> str:
    try:
        return read_table(path).hash
    except DataError as error:
        raise DataError(
            f"{error.message}; nothing was written over it",
            hint=f"mv {path} {path}.edited; fleetcraft calibrate freeze",
            **error.facts,
        ) from error


def _keep(path: str, table_hash: str) -> str:
    kept = history_path(path, table_hash)
    fs = FileSystem()
    try:
        fs.link(path, kept)
    except FileExistsError:
        pass  # the same table was there once before
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        _replace(kept, fs.read(path))  # the hash in its name says what must be in it
    return kept


def _replace(path: str, data: bytes) -> None:
    fs = FileSystem()
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        fs.create(temporary, data)
        replace_atomically(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            fs.unlink(temporary)
        raise
    fs.sync_folder(os.path.dirname(path))


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Holds off another writer, where the mount has locks; ``replaces`` is what must be right."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
