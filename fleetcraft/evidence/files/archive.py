"""Archives: a copy of what a manifest names, proved from the destination's own bytes.

An archive is a folder with ``manifest.json``, ``receipt.json`` and the files below ``data/``.
Invariant: the final name is whole and proved, or absent; everything before that happens under a
temporary name beside it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence, Set

import msgspec

from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence.files.building import (
    build,
    copy_payload,
    left_over,
    prove_payload,
    refuse_inside,
    unverifiable,
    write_record,
)
from fleetcraft.evidence.files.manifest import (
    Manifest,
    Progress,
    Told,
    read_manifest,
    write_manifest,
)
from fleetcraft.evidence.files.receipts import Receipt, make_receipt, read_receipt, write_receipt
from fleetcraft.evidence.files.verifying import (
    Change,
    Difference,
    RefutedError,
    Unread,
    Verdict,
    Verification,
    verify,
)
from fleetcraft.evidence.records import Level
from fleetcraft.files import BulkFileSystem

MANIFEST_FILE = "manifest.json"
RECEIPT_FILE = "receipt.json"
DATA = "data"


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What `archive` did.

    Attributes:
        folder: The archive.
        receipt: Its receipt.
        already: Whether it was there before, and was only verified again.
        left_over: Temporary folders beside it, of calls that still run or were cut short.
    """

    folder: str
    receipt: Receipt
    already: bool = False
    left_over: tuple[str, ...] = ()


def archive(
    manifest: Manifest,
    source: str,
    destination: str,
    *,
    fs: BulkFileSystem | None = None,
    progress: Progress | None = None,
) -> Archived:
    """Copies what a manifest names, reads the copy again from the disk, and publishes it.

    Args:
        manifest: What to copy.
        source: The folder that has the files.
        destination: The archive's new name; missing folders above it are made.
        fs: The seam.
        progress: Is told bytes done and in all; each byte counts twice, copied and read again.

    Returns:
        The archive. One of the same manifest that was there is verified again instead.

    Raises:
        UsageError: Something else has that name, or it lies inside the source.
        RefutedError: The source or the copy is not what the manifest says.
        ChangedError: The source changed while it was copied.
        DataError: Something could not be read, so nothing is proved.
        NoRoomError: The disk or quota is full.
        SpoolError: The system refused something else.
    """
    fs = fs or BulkFileSystem()
    final = os.path.abspath(destination)
    refuse_inside(source, final)
    found = _already(fs, manifest, final, progress)
    if found is not None:
        return found
    told = Told(progress, 2 * manifest.bytes)

    def fill(temporary: str) -> Receipt:
        copy_payload(manifest, source, f"{temporary}/{DATA}", fs=fs, told=told)
        receipt = make_receipt(manifest, prove_payload(manifest, f"{temporary}/{DATA}", fs, told))
        placed = msgspec.structs.replace(manifest, folder=DATA)
        write_record(fs, f"{temporary}/{MANIFEST_FILE}", write_manifest(placed))
        write_record(fs, f"{temporary}/{RECEIPT_FILE}", write_receipt(receipt))
        return receipt

    receipt = build(final, fill, manifest, source, fs=fs, is_ours=_is_ours(fs))
    if receipt is None:  # another call has published it meanwhile
        there = _already(fs, manifest, final, progress)
        if there is not None:
            return there
        raise _something_else(final)
    return Archived(folder=final, receipt=receipt, left_over=left_over(fs, final))


# ------------------------------------------------------------------------ what is already there


def _something_else(final: str) -> UsageError:
    return UsageError(
        f"something else is already at {final}; nothing was copied",
        hint=f"name a new folder, such as {os.path.join(final, 'NAME')}",
        path=final,
    )


def is_archive(folder: str) -> bool:
    """Whether a folder looks like an archive."""
    return os.path.isfile(os.path.join(folder, MANIFEST_FILE)) and os.path.isdir(
        os.path.join(folder, DATA)
    )


def _already(
    fs: BulkFileSystem, manifest: Manifest, final: str, progress: Progress | None
) -> Archived | None:
    if not fs.exists(final):
        return None
    if not is_archive(final):
        raise _something_else(final)
    there = read_manifest(f"{final}/{MANIFEST_FILE}", fs)
    if there.root_sha256 != manifest.root_sha256:
        raise _something_else(final)
    found = verify_archive(final, Level.REREAD, fs=fs, progress=progress)
    if found.verdict is Verdict.REFUTED:
        raise RefutedError(
            f"the archive {final} is damaged",
            found,
            hint="archive to another name, and set this one aside",
        )
    if found.verdict is Verdict.UNVERIFIABLE:
        raise unverifiable(final, found)
    fs.sync_folder(os.path.dirname(final))
    receipt = read_receipt(f"{final}/{RECEIPT_FILE}", fs)
    return Archived(folder=final, receipt=receipt, already=True, left_over=left_over(fs, final))


def _is_ours(fs: BulkFileSystem) -> Callable[[str, Receipt], bool]:
    return lambda final, receipt: read_receipt(f"{final}/{RECEIPT_FILE}", fs).nonce == receipt.nonce


def verify_archive(
    folder: str,
    level: Level,
    *,
    fs: BulkFileSystem | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verifies an archive: its files, its receipt, and that nothing else is in it.

    Raises:
        DataError: Its manifest cannot be used.
    """
    fs = fs or BulkFileSystem()
    manifest = read_manifest(f"{folder}/{MANIFEST_FILE}", fs)
    found = verify(manifest, f"{folder}/{DATA}", level, everything=True, fs=fs, progress=progress)
    records: list[Difference] = []
    unread = list(found.unread)
    try:
        receipt = read_receipt(f"{folder}/{RECEIPT_FILE}", fs)
        if receipt.root_sha256 != manifest.root_sha256:
            records.append(_of_record(RECEIPT_FILE, "it is the receipt of another manifest"))
    except DataError as error:
        reason = str(error.facts.get("reason", error.message))
        if cannot_be_read(error.__cause__):
            unread.append(Unread(path=RECEIPT_FILE, reason=reason))
        else:
            records.append(_of_record(RECEIPT_FILE, reason))
    added, blind = beside(fs, folder, {MANIFEST_FILE, RECEIPT_FILE, DATA})
    return amended(found, records + added, unread + blind)


def cannot_be_read(error: BaseException | None) -> bool:
    """Whether an error says nothing of what is there: a missing file is an answer, others not."""
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def beside(
    fs: BulkFileSystem, folder: str, expected: Set[str]
) -> tuple[list[Difference], list[Unread]]:
    """What lies beside the payload and is none of what was written there."""
    try:
        there = set(fs.listdir(folder))
        # Through a link it would be the content of another place that is verified.
        away = DATA in there and stat.S_ISLNK(fs.lstat(f"{folder}/{DATA}").st_mode)
    except OSError as error:
        return [], [Unread(path="..", reason=error.strerror or str(error))]
    added = [Difference(change=Change.ADDED, path=f"../{n}") for n in sorted(there - expected)]
    return added + [Difference(change=Change.SYMLINK, path=f"../{DATA}")] * away, []


def amended(
    found: Verification, records: Sequence[Difference], unread: Sequence[Unread]
) -> Verification:
    """A verification with more differences."""
    differences = (*found.differences, *records)
    verdict = Verdict.UNVERIFIABLE if unread else Verdict.VERIFIED
    return msgspec.structs.replace(
        found,
        verdict=Verdict.REFUTED if differences else verdict,
        differences=differences,
        unread=tuple(unread),
    )


def _of_record(path: str, reason: str) -> Difference:
    return Difference(change=Change.RECORD, path=path, found=reason)
