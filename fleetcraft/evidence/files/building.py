"""New folders of evidence: filled under a temporary name, proved, and published by one rename.

Not here: what an archive or a bag has besides its files. Invariant: the final name is whole, or it
is absent; what a failure leaves under a temporary name is removed, or named.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from fleetcraft.errors import DataError, FleetError, SpoolError, UsageError
from fleetcraft.evidence.files.copying import Bytes, NoRoomError, Reader, copy, no_room
from fleetcraft.evidence.files.manifest import FileEntry, Manifest, Told
from fleetcraft.evidence.files.verifying import (
    Change,
    Difference,
    RefutedError,
    Verdict,
    Verification,
    verify,
)
from fleetcraft.evidence.records import Level
from fleetcraft.files import BulkFileSystem
from fleetcraft.identity import new_launch_token

_NOTHING = "nothing was published"
_NOT_AS_FROZEN = "{} is not what the manifest {!r} says"
_NAME_ALL = "fleetcraft evidence verify names every difference"
_BESIDE = frozenset({Change.ADDED, Change.SYMLINK, Change.SPECIAL_FILE, Change.BAD_NAME})
Proof = TypeVar("Proof")


def build(
    final: str,
    fill: Callable[[str], Proof],
    manifest: Manifest,
    source: str,
    *,
    fs: BulkFileSystem,
    is_ours: Callable[[str, Proof], bool],
) -> Proof | None:
    """Fills a temporary folder and gives it its final name once all is on disk.

    Args:
        final: The name to publish.
        fill: Makes the content of a folder that is there, and proves it.
        manifest: What is going to be copied.
        source: From where.
        fs: The seam.
        is_ours: Whether a published folder is the one that was filled.

    Returns:
        What ``fill`` returned, or None when somebody else has published under that name.

    Raises:
        FleetError: As `archive` says. The temporary folder is gone, or named.
    """
    parent = os.path.dirname(final)
    temporary = f"{final}.{new_launch_token()}.partial"
    try:
        _require_source(manifest, source, fs)
        _make_folders(fs, parent)
        _require_room(parent, manifest.bytes)
        fs.make_folder(temporary)
        proof = fill(temporary)
        fs.sync_folder(temporary)
        published = _publish(fs, temporary, final, lambda: is_ours(final, proof))
        fs.sync_folder(parent)
    except KeyboardInterrupt:
        _remove(fs, temporary)
        raise
    except (OSError, FleetError) as error:
        left = _remove(fs, temporary)
        raise _with_what_is_left(_as_ours(error, parent, manifest.bytes), left) from error
    if not published:
        _remove(fs, temporary)
    return proof if published else None


def _publish(fs: BulkFileSystem, temporary: str, final: str, is_ours: Callable[[], bool]) -> bool:
    try:
        fs.rename_new(temporary, final)
    except OSError as error:
        # A server may have renamed what it reports as failed.
        with contextlib.suppress(OSError, DataError):
            if is_ours():
                return True
        # ENOTEMPTY where the mount has no RENAME_NOREPLACE and somebody came in between.
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise
    return True


def copy_payload(
    manifest: Manifest, source: str, folder: str, *, fs: BulkFileSystem, told: Told
) -> None:
    """Copies every file of a manifest into a new folder, read-only and forced to disk.

    Raises:
        RefutedError: A source is not what the manifest says.
        ChangedError: One changed while it was copied.
        DataError: One cannot be read.
        OSError: Something was not copied.
    """
    reader = Reader(fs)
    fs.make_folder(folder)
    for below in _folders(entry.path for entry in manifest.files):
        fs.make_folder(f"{folder}/{below}")
    for entry in manifest.files:
        path = os.path.join(source, entry.path)
        try:
            found = copy(reader, fs, path, f"{folder}/{entry.path}", advance=told.advance)
        except OSError as error:
            if error.filename != path:
                raise
            raise DataError(
                f"cannot read {path}: {error.strerror}; {_NOTHING}",
                hint="see that the files can be read, and give the command again",
                path=path,
            ) from error
        if (found.size_bytes, found.sha256) != (entry.size_bytes, entry.sha256):
            raise _refuted_source(manifest, source, entry, found)
    sync_tree(fs, folder, _folders(entry.path for entry in manifest.files))


def _refuted_source(
    manifest: Manifest, source: str, entry: FileEntry, found: Bytes
) -> RefutedError:
    sized = found.size_bytes != entry.size_bytes
    difference = Difference(
        change=Change.SIZED if sized else Change.CHANGED,
        path=entry.path,
        found=str(found.size_bytes) if sized else found.sha256,
        expected=str(entry.size_bytes) if sized else entry.sha256,
    )
    return RefutedError(
        _NOT_AS_FROZEN.format(source, manifest.name),
        Verification(verdict=Verdict.REFUTED, level=Level.HASHED, differences=(difference,)),
        hint=_NAME_ALL,
    )


def prove_payload(manifest: Manifest, folder: str, fs: BulkFileSystem, told: Told) -> Verification:
    """Reads a copy again from the disk, and accepts nothing but full agreement.

    Raises:
        RefutedError: The destination does not hold what was written.
        DataError: Something could not be read.
    """
    last = 0

    def advance(done: int, total: int) -> None:
        nonlocal last
        told.advance(done - last)
        last = done

    found = verify(manifest, folder, Level.REREAD, everything=True, fs=fs, progress=advance)
    if found.verdict is Verdict.REFUTED:
        raise RefutedError(
            f"the destination {os.path.dirname(folder)} does not give back what was written",
            found,
            hint="do not trust that disk: choose another destination, and tell who runs it",
        )
    if found.verdict is Verdict.UNVERIFIABLE:
        raise unverifiable(f"the copy at {os.path.dirname(folder)}", found)
    return found


def unverifiable(what: str, found: Verification) -> DataError:
    """An error that says what could not be read."""
    first = found.unread[0]
    more = f", and {len(found.unread) - 1} more" if len(found.unread) > 1 else ""
    return DataError(
        f"cannot verify {what}: {first.path!r}: {first.reason}{more}; {_NOTHING}",
        hint="see that the files can be read, and give the command again",
        unread=[msgspec.to_builtins(each) for each in found.unread[:1000]],
    )


def write_record(fs: BulkFileSystem, path: str, data: bytes) -> None:
    """Writes a small read-only file durably, and reads it back.

    Raises:
        DataError: It reads differently.
        OSError: It was not written.
    """
    fs.create(path, data, mode=0o444, durable=True)
    if fs.read(path) != data:
        raise DataError(f"{path} does not read as it was written; {_NOTHING}", path=path)


def sync_tree(fs: BulkFileSystem, folder: str, below: Iterable[str]) -> None:
    """Forces the entries of a folder and of folders below it to disk, the deepest first."""
    for each in sorted(below, reverse=True):
        fs.sync_folder(f"{folder}/{each}")
    fs.sync_folder(folder)


def _folders(paths: Iterable[str]) -> list[str]:
    """Every folder that these paths need, parents before children."""
    found: set[str] = set()
    for path in paths:
        while path := os.path.dirname(path):
            if path in found:
                break
            found.add(path)
    return sorted(found)


def _make_folders(fs: BulkFileSystem, folder: str) -> None:
    missing = []
    while not fs.exists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            fs.make_folder(each)
        fs.sync_folder(os.path.dirname(each))


def _remove(fs: BulkFileSystem, folder: str) -> str:
    """Removes a temporary folder as well as it can; its path if something is left."""
    with contextlib.suppress(OSError):
        for name in fs.listdir(folder):
            path = f"{folder}/{name}"
            if stat.S_ISDIR(fs.lstat(path).st_mode):
                _remove(fs, path)
            else:
                fs.unlink(path)
        fs.remove_folder(folder)
    try:
        return folder if fs.exists(folder) else ""
    except OSError:
        return folder


def left_over(fs: BulkFileSystem, final: str) -> tuple[str, ...]:
    """Temporary folders beside a name, of calls that still run or were cut short."""
    pattern = re.compile(rf"{re.escape(os.path.basename(final))}\.[a-z0-9]{{8}}\.partial")
    parent = os.path.dirname(final)
    with contextlib.suppress(OSError):
        return tuple(
            f"{parent}/{name}" for name in sorted(fs.listdir(parent)) if pattern.fullmatch(name)
        )
    return ()


# ------------------------------------------------------------------------------- refusing early


def refuse_inside(source: str, final: str) -> None:
    """Raises UsageError if a destination lies inside what is copied."""
    inside, outside = os.path.realpath(final), os.path.realpath(source)
    if f"{inside}/".startswith(f"{outside}/"):
        raise UsageError(
            f"{final} lies inside {source}, so it would change what it copies; nothing was copied",
            hint="name a destination outside of it",
        )


def _require_source(manifest: Manifest, source: str, fs: BulkFileSystem) -> None:
    """Looks at sizes first, so that what cannot end well does not begin; files beside are none."""
    found = verify(manifest, source, Level.SIZED, fs=fs)
    known = {entry.path for entry in manifest.files}
    differing = tuple(
        each
        for each in found.differences
        if each.change is not Change.CASE_COLLISION
        and (each.path in known or each.change not in _BESIDE)
    )
    if differing:
        raise RefutedError(
            _NOT_AS_FROZEN.format(source, manifest.name),
            msgspec.structs.replace(found, differences=differing),
            hint=_NAME_ALL,
        )
    unread = tuple(each for each in found.unread if each.path in known or not known)
    if unread or (found.unread and not found.counts.get(Level.LISTED.value, 0)):
        raise unverifiable(source, msgspec.structs.replace(found, unread=unread or found.unread))


def _require_room(folder: str, needed: int) -> None:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return
    free = facts.f_bavail * facts.f_frsize
    if facts.f_blocks and free < needed:  # some mounts do not say how large they are
        raise NoRoomError(folder, needed=needed, free=free)


def _as_ours(error: OSError | FleetError, parent: str, needed: int) -> FleetError:
    if isinstance(error, FleetError):
        return error
    if no_room(error):
        return NoRoomError(parent, needed=needed)
    what = f"cannot use {error.filename}" if error.filename else f"cannot write below {parent}"
    return SpoolError(
        f"{what}: {error.strerror or error}; {_NOTHING} that is not whole",
        hint="check permissions, quota and the mount, and give the command again",
        errno=error.errno,
        path=str(error.filename or parent),
    )


def _with_what_is_left(error: FleetError, left: str) -> FleetError:
    error.facts["temporary"] = left
    if left:
        error.message += f"; a temporary folder is left: {left}"
        error.args = (error.message,)
    return error
