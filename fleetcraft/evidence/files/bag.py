"""BagIt bags: what a manifest names in the layout that archives and libraries exchange.

Written here after RFC 8493 and judged by the bagit library before it is published. Invariant: a
name that BagIt's readers do not agree on is refused, not rewritten.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from fleetcraft.clock import now_at
from fleetcraft.errors import ConfigError, DataError, UsageError
from fleetcraft.evidence.files.archive import amended, beside
from fleetcraft.evidence.files.building import (
    build,
    copy_payload,
    left_over,
    prove_payload,
    refuse_inside,
    unverifiable,
    write_record,
)
from fleetcraft.evidence.files.foreign_bag import ForeignBag
from fleetcraft.evidence.files.manifest import (
    Manifest,
    Progress,
    Told,
    fleetcraft_version,
    read_manifest,
    write_manifest,
)
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
from fleetcraft.identity import sha256_hex

DECLARATION = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"
DATA = "data"
OUR_MANIFEST = "fleetcraft-manifest.json"
_BAGIT, _INFO = "bagit.txt", "bag-info.txt"
_PAYLOAD, _TAGS = "manifest-sha256.txt", "tagmanifest-sha256.txt"
_TWICE = (TypeError, LookupError, AttributeError)
_ALL = frozenset({_BAGIT, _INFO, _PAYLOAD, _TAGS, OUR_MANIFEST, DATA})


class Bagged(msgspec.Struct, frozen=True, kw_only=True):
    """What `export` did.

    Attributes:
        folder: The bag.
        verification: What was found of it, reread from the disk.
        already: Whether it was there before, and was only verified again.
        left_over: Temporary folders beside it, of calls that still run or were cut short.
    """

    folder: str
    verification: Verification
    already: bool = False
    left_over: tuple[str, ...] = ()


class _Proof(msgspec.Struct, frozen=True, kw_only=True):
    tags: bytes
    found: Verification


def export(
    manifest: Manifest,
    source: str,
    destination: str,
    *,
    fs: BulkFileSystem | None = None,
    progress: Progress | None = None,
) -> Bagged:
    """Writes a BagIt 1.0 bag of what a manifest names.

    Args:
        manifest: What to copy; it goes into the bag as a tag file.
        source: The folder that has the files.
        destination: The bag's new name; missing folders above it are made.
        fs: The seam.
        progress: Is told bytes done and in all; each byte counts twice, copied and read again.

    Returns:
        The bag. One of the same manifest that was there is verified again instead.

    Raises:
        ConfigError: The bagit library is not installed.
        DataError: A name cannot stand in a bag, or something could not be read.
        FleetError: As `fleetcraft.evidence.files.archive.archive`.

    Source: RFC 8493, "The BagIt File Packaging Format (V1.0)", sections 2.1 and 2.2.
    """
    library = _library()
    fs = fs or BulkFileSystem()
    final = os.path.abspath(destination)
    _refuse_names(manifest)
    refuse_inside(source, final)
    found = _already(fs, manifest, final, progress)
    if found is not None:
        return found
    told = Told(progress, 2 * manifest.bytes)

    def fill(temporary: str) -> _Proof:
        copy_payload(manifest, source, f"{temporary}/{DATA}", fs=fs, told=told)
        proof = prove_payload(manifest, f"{temporary}/{DATA}", fs, told)
        tags = _write_tags(fs, manifest, temporary)
        _must_be_valid(library, temporary)
        return _Proof(tags=tags, found=proof)

    def is_ours(folder: str, proof: _Proof) -> bool:
        return fs.read(f"{folder}/{_TAGS}") == proof.tags

    proof = build(final, fill, manifest, source, fs=fs, is_ours=is_ours)
    if proof is None:  # another call has published it meanwhile
        there = _already(fs, manifest, final, progress)
        if there is not None:
            return there
        raise _something_else(final)
    return Bagged(folder=final, verification=proof.found, left_over=left_over(fs, final))


# -------------------------------------------------------------------------------------- writing


def _write_tags(fs: BulkFileSystem, manifest: Manifest, folder: str) -> bytes:
    tags = {
        _BAGIT: DECLARATION,
        _INFO: _info(manifest),
        _PAYLOAD: _payload(manifest),
        OUR_MANIFEST: write_manifest(msgspec.structs.replace(manifest, folder=DATA)),
    }
    for name, data in tags.items():
        write_record(fs, f"{folder}/{name}", data)
    lines = "".join(f"{sha256_hex(tags[name])}  {name}\n" for name in sorted(tags)).encode()
    write_record(fs, f"{folder}/{_TAGS}", lines)
    return lines


def _info(manifest: Manifest) -> bytes:
    return (
        f"Bag-Software-Agent: fleetcraft {fleetcraft_version()}\n"
        f"Bagging-Date: {now_at().date().isoformat()}\n"
        f"External-Identifier: {manifest.name}\n"
        f"Internal-Sender-Identifier: {manifest.schema} sha256:{manifest.root_sha256}\n"
        f"Payload-Oxum: {manifest.bytes}.{len(manifest.files)}\n"
    ).encode()


def _payload(manifest: Manifest) -> bytes:
    return "".join(f"{each.sha256}  {DATA}/{each.path}\n" for each in manifest.files).encode()


def _refuse_names(manifest: Manifest) -> None:
    # RFC 8493 writes a percent sign as %25, which the bagit library does not read back; and that
    # strips white space at the end of a line.
    bad = [
        each.path for each in manifest.files if "%" in each.path or each.path != each.path.rstrip()
    ]
    if bad:
        raise DataError(
            f"cannot export {manifest.name!r}: {len(bad)} names hold a percent sign or end in "
            f"white space, which readers of bags take differently: "
            f"{', '.join(map(repr, bad[:5]))}; nothing was written",
            hint="rename them and freeze again, or use fleetcraft evidence archive",
            paths=bad[:1000],
        )


def _library() -> Any:
    try:
        import bagit
    except ImportError as error:
        raise ConfigError(
            "bags need the bagit library, which is not installed; nothing was written",
            hint="pip install 'fleetcraft[evidence]'",
        ) from error
    # It tells its findings to a logger as well, and without a handler they would go to stderr.
    logging.getLogger("bagit").addHandler(logging.NullHandler())
    return bagit


def _must_be_valid(library: Any, folder: str) -> None:
    try:
        library.Bag(folder).validate()
    except library.BagError as error:
        raise DataError(
            f"the bag is not valid by the bagit library: {error}; nothing was published",
            hint="fleetcraft evidence archive keeps the same files",
        ) from error


def _already(
    fs: BulkFileSystem, manifest: Manifest, final: str, progress: Progress | None
) -> Bagged | None:
    if not fs.exists(final):
        return None
    if not is_bag(final) or not os.path.isfile(f"{final}/{OUR_MANIFEST}"):
        raise _something_else(final)
    if read_manifest(f"{final}/{OUR_MANIFEST}", fs).root_sha256 != manifest.root_sha256:
        raise _something_else(final)
    found = verify_bag(final, Level.REREAD, fs=fs, progress=progress)
    if found.verdict is Verdict.REFUTED:
        raise RefutedError(f"the bag {final} is damaged", found, hint="export to another name")
    if found.verdict is Verdict.UNVERIFIABLE:
        raise unverifiable(final, found)
    fs.sync_folder(os.path.dirname(final))
    return Bagged(folder=final, verification=found, already=True, left_over=left_over(fs, final))


def _something_else(final: str) -> UsageError:
    return UsageError(
        f"something else is already at {final}; nothing was written",
        hint=f"name a new folder, such as {os.path.join(final, 'NAME')}",
        path=final,
    )


# ------------------------------------------------------------------------------------ verifying


def is_bag(folder: str) -> bool:
    """Whether a folder looks like a bag."""
    return os.path.isfile(os.path.join(folder, _BAGIT))


def verify_bag(
    folder: str,
    level: Level,
    *,
    fs: BulkFileSystem | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verifies a bag: one of ours by the manifest in it, another by the bagit library.

    A bag of another program holds no sizes, so ``sized`` is no more than ``listed`` there, and the
    result says so.

    Raises:
        DataError: It is no bag that can be read.
        ConfigError: It is another program's, and the bagit library is not installed.
    """
    fs = fs or BulkFileSystem()
    if not os.path.isfile(f"{folder}/{OUR_MANIFEST}"):
        return _verify_foreign(folder, level, fs)
    manifest = read_manifest(f"{folder}/{OUR_MANIFEST}", fs)
    found = verify(manifest, f"{folder}/{DATA}", level, everything=True, fs=fs, progress=progress)
    tags = _Tags(fs, folder)
    tags.compare(manifest)
    added, blind = beside(fs, folder, _ALL)
    return amended(found, tags.differences + added, [*found.unread, *tags.unread, *blind])


class _Tags:
    """The tag files of one of our own bags against what was written."""

    def __init__(self, fs: BulkFileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self.differences: list[Difference] = []
        self.unread: list[Unread] = []

    def compare(self, manifest: Manifest) -> None:
        """Each against its digest, and where its text is known, against that."""
        lines = self._read(_TAGS)
        if lines is None:
            return
        pairs = (line.partition("  ") for line in lines.decode("utf-8", "replace").splitlines())
        digests = {name: digest for digest, _, name in pairs}
        known = {_BAGIT: DECLARATION, _PAYLOAD: _payload(manifest)}
        for name in (_BAGIT, _INFO, _PAYLOAD, OUR_MANIFEST):
            data = self._read(name)
            if data is not None and (
                data != known.get(name, data) or sha256_hex(data) != digests.get(name)
            ):
                self._differ(name, "it is not what was written")

    def _read(self, name: str) -> bytes | None:
        try:
            return self._fs.read(f"{self._folder}/{name}")
        except FileNotFoundError:
            self._differ(name, "it is missing")
        except OSError as error:
            self.unread.append(Unread(path=f"../{name}", reason=error.strerror or str(error)))
        return None

    def _differ(self, name: str, found: str) -> None:
        self.differences.append(Difference(change=Change.RECORD, path=f"../{name}", found=found))


def _verify_foreign(folder: str, level: Level, fs: BulkFileSystem) -> Verification:
    library = _library()
    level = Level.LISTED if level is Level.SIZED else level
    try:
        foreign = ForeignBag(library, folder, level, fs)
        foreign.compare()
    except (library.BagError, OSError, ValueError, *_TWICE) as error:
        # The last ones are what the library meets in tag files that say a thing twice, or oddly.
        raise DataError(
            f"cannot verify the bag {folder}: {error}; nothing was concluded",
            hint="see RFC 8493 for what a bag must hold",
            path=folder,
        ) from error
    return foreign.concluded()
