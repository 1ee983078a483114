"""Manifests: what files there are, with size, digest, kind and producer of each.

A manifest file is text of one form alone, an entry a line, so that two can be compared with diff.
Invariant: equal files under one name and policy have one root digest, whenever and wherever they
were frozen; and a manifest of which any byte was changed is refused, not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence.files.copying import Bytes, ChangedError, Reader
from fleetcraft.evidence.files.policy import (
    Listed,
    Policy,
    Problem,
    Walked,
    collisions_of_paths,
    kind_by_glob,
    name_problem,
    refuse,
    walk,
)
from fleetcraft.evidence.files.producers import Made, find_producers
from fleetcraft.evidence.kinds import LOOK_BYTES, kind_by_looks
from fleetcraft.evidence.records import NAME, Kind, Producer, producer_here
from fleetcraft.files import BulkFileSystem, FileSystem
from fleetcraft.identity import sha256_hex

MANIFEST_SCHEMA = "fleetcraft.manifest/1"
Progress = Callable[[int, int], None]
"""Is told bytes done and bytes in all."""
_NOTHING = "nothing was written"


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file.

    Attributes:
        path: Relative to the folder that was frozen.
        size_bytes: Its size.
        sha256: Of its content.
        kind: What it is.
        producer: Who made it; empty where nothing says so.
    """

    path: str
    size_bytes: int
    sha256: str
    kind: Kind = Kind.OTHER
    producer: Producer = Producer()


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of one folder at one time.

    Attributes:
        schema: `MANIFEST_SCHEMA`.
        name: What it is called.
        policy: The rules it was made by.
        folder: Where the files are, from the folder of this manifest's own file; no part of the
            root digest, since a copy of both is the same evidence. Empty when it was not told.
        bytes: Their sizes together.
        root_sha256: Over the canonical lines: name and policy, then every field of every entry.
        made_at: When, UTC.
        producer: Who froze it.
        version: Of fleetcraft.
        files: In order of their paths.
        document_sha256: Over the manifest's own text, with this field empty.
    """

    schema: str = MANIFEST_SCHEMA
    name: str
    policy: Policy = Policy()
    folder: str = ""
    bytes: int
    root_sha256: str
    made_at: str = ""
    producer: Producer = Producer()
    version: str = ""
    files: tuple[FileEntry, ...] = ()
    document_sha256: str = ""


# -------------------------------------------------------------------------------------- making


def make_manifest(
    folder: str,
    *,
    name: str,
    kinds: Sequence[tuple[str, Kind]] = (),
    producers: Made | None = None,
    records: Sequence[str] = (),
    left_out: Sequence[str] = (),
    fs: BulkFileSystem | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Hashes every file of a folder.

    Args:
        folder: The folder; what it is reached by may be a link, what is in it may not.
        name: What the manifest is called, as `NAME` says.
        kinds: Globs with the kind of what they match; the first that matches counts.
        producers: Who made what, by path and digest; None to look for records.
        records: Files of result records to look in, beside those in the folder.
        left_out: Relative paths to pass over, such as that of the manifest itself.
        fs: The seam.
        progress: Is told bytes done and in all.

    Raises:
        UsageError: The name cannot be one.
        DataError: The folder has something that the policy refuses or that cannot be read, each
            named; or a file changed while it was read, or came or went meanwhile.
    """
    check_name(name)
    fs = fs or BulkFileSystem()
    root = os.path.realpath(folder)
    before = walk(fs, root, left_out)
    refuse(folder, before.refused, _NOTHING)
    made = producers
    if made is None:
        made = find_producers(fs, root, before.files, records=records)
    told = Told(progress, sum(each.size_bytes for each in before.files))
    reader = Reader(fs)
    entries = tuple(
        _entry(each, _hashed(reader, root, each, told), kinds, made) for each in before.files
    )
    _must_be_unchanged(folder, before, walk(fs, root, left_out))
    policy = Policy(left_out=tuple(sorted(left_out)))
    return Manifest(
        name=name,
        policy=policy,
        bytes=sum(entry.size_bytes for entry in entries),
        root_sha256=root_digest(name, policy, entries),
        made_at=timestamp(),
        producer=producer_here(),
        version=fleetcraft_version(),
        files=entries,
    )


def check_name(name: str) -> str:
    """The name itself, if it can be one.

    Raises:
        UsageError: It cannot.
    """
    if NAME.fullmatch(name):
        return name
    raise UsageError(
        f"bad name {name!r} for a manifest; {_NOTHING}",
        hint="names are letters, digits, '.', '_', '-', start with a letter or digit, and have at "
        "most 64 characters",
        name=name,
    )


def _hashed(reader: Reader, root: str, each: Listed, told: Told) -> Bytes:
    try:
        found = reader.hash(f"{root}/{each.path}", keep=LOOK_BYTES, advance=told.advance)
    except OSError as error:
        refuse(root, [(each.path, Problem.UNREADABLE, error.strerror or "")], _NOTHING)
        raise
    if found.size_bytes != each.size_bytes:
        raise ChangedError(each.path, f"{each.size_bytes} bytes, then {found.size_bytes}")
    return found


def _entry(
    listed: Listed, found: Bytes, kinds: Sequence[tuple[str, Kind]], made: Made
) -> FileEntry:
    said, producer = made.get((listed.path, found.sha256), (None, Producer()))
    kind = (
        kind_by_glob(listed.path, kinds)
        or said
        or kind_by_looks(listed.path, found.head, found.tail)
    )
    return FileEntry(
        path=listed.path,
        size_bytes=found.size_bytes,
        sha256=found.sha256,
        kind=kind,
        producer=producer,
    )


def _must_be_unchanged(folder: str, before: Walked, after: Walked) -> None:
    if before == after:
        return
    old, new = {each.path: each for each in before.files}, {each.path: each for each in after.files}
    for path in sorted(old.keys() | new.keys()):
        if path not in new or path not in old:
            raise ChangedError(path, "it is gone" if path in old else "it was not there before")
        if old[path] != new[path]:
            raise ChangedError(path, "it was written to or replaced")
    refuse(folder, after.refused, _NOTHING)


class Told:
    """Adds up what was done and tells somebody.

    Args:
        progress: Whom; None tells nobody.
        total: How much there is.
    """

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def advance(self, more: int) -> None:
        """Takes note of more bytes."""
        self._done += more
        if self._progress is not None:
            self._progress(self._done, max(self._total, self._done))


# ------------------------------------------------------------------------------------- digests


def root_digest(name: str, policy: Policy, entries: Iterable[FileEntry]) -> str:
    """The digest over the canonical lines, each ended by a newline.

    The first line is the JSON array of schema, name and policy; then one array for each entry of
    path, size, sha256, kind and producer. JSON is without spaces, keys are in order, and fields of
    a producer that are empty are left out.
    """
    import hashlib

    digest = hashlib.sha256(_line([MANIFEST_SCHEMA, name, policy]))
    for each in entries:
        digest.update(
            _line([each.path, each.size_bytes, each.sha256, each.kind.value, each.producer])
        )
    return digest.hexdigest()


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted") + b"\n"


# ---------------------------------------------------------------------------------- the file


def write_manifest(manifest: Manifest) -> bytes:
    """The text of a manifest's file, with the digest of the document in it."""
    digest = sha256_hex(_text(manifest, ""))
    return _text(manifest, digest)


def _text(manifest: Manifest, document_sha256: str) -> bytes:
    head = msgspec.structs.asdict(manifest)
    del head["files"], head["document_sha256"]
    lines = [b'"%s":%s' % (key.encode(), msgspec.json.encode(head[key])) for key in head]
    entries = b",\n".join(map(msgspec.json.encode, manifest.files))
    lines.append(b'"files":[\n%s\n]' % entries if entries else b'"files":[]')
    lines.append(b'"document_sha256":"%s"' % document_sha256.encode())
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def read_manifest(path: str, fs: FileSystem | None = None) -> Manifest:
    """Reads a manifest's file, and refuses one that is not exactly what was written.

    Raises:
        DataError: It is not there or cannot be read, is of another schema, breaks the policy, or
            does not have its digests.
    """
    try:
        data = (fs or FileSystem()).read(path)
    except OSError as error:
        raise _bad(path, error.strerror or "it cannot be read", "cannot_be_read") from error
    return parse_manifest(data, path)


def parse_manifest(data: bytes, path: str) -> Manifest:
    """The manifest in some bytes.

    Raises:
        DataError: As `read_manifest` says.
    """
    try:
        schema = msgspec.json.decode(data, type=_OfSchema).schema
        if schema != MANIFEST_SCHEMA:
            raise DataError(
                f"cannot use the manifest {path}: its schema is {schema!r}, expected "
                f"{MANIFEST_SCHEMA!r}; nothing was checked",
                hint="name a manifest's file, or the folder of an archive or bag",
                path=path,
                fault="schema",
                reason=f"its schema is {schema!r}",
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _bad(path, f"it is no manifest, or was changed ({error})", "text") from error
    for fault, what in _faults(manifest, data):
        raise _bad(path, what, fault)
    return manifest


class _OfSchema(msgspec.Struct):
    schema: str = ""


def _faults(manifest: Manifest, data: bytes) -> Iterator[tuple[str, str]]:
    """What is wrong, the most telling first."""
    for entry in manifest.files:
        problem = name_problem(entry.path)
        if problem is not None:
            yield problem.value, f"it names {entry.path!r}, which is no path inside its folder"
    paths = [entry.path for entry in manifest.files]
    if sorted(set(paths)) != paths:
        yield "order", "its entries are out of order or double"
    for path in collisions_of_paths(paths):
        yield (
            Problem.CASE_COLLISION.value,
            f"it names {path!r} and another path that differs only in case",
        )
    if os.path.isabs(manifest.folder):
        yield "absolute", f"it names an absolute folder, {manifest.folder!r}"
    found = root_digest(manifest.name, manifest.policy, manifest.files)
    if found != manifest.root_sha256:
        yield (
            "root_sha256",
            f"its entries have the root digest {found}, and it says {manifest.root_sha256}: an "
            "entry, the name or the policy was changed",
        )
    if sum(entry.size_bytes for entry in manifest.files) != manifest.bytes:
        yield "bytes", "its sizes do not add up to its bytes"
    if write_manifest(manifest) != data:
        yield "document_sha256", "its text is not the one that was written"


def _bad(path: str, reason: str, fault: str) -> DataError:
    return DataError(
        f"cannot use the manifest {path}: {reason}; nothing was checked",
        hint="get the manifest back from where it was archived, or freeze the files again",
        path=path,
        fault=fault,
        reason=reason,
    )


def fleetcraft_version() -> str:
    """The version that is running."""
    from fleetcraft import __version__

    return str(__version__)
