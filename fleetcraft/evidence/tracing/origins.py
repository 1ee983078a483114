"""What a file was made from, written beside it: ``FILE.origin.json``.

Writes origins and reads them back; whether they still hold is `trace`'s to say. Invariant: an
origin holds no absolute path and no time, so the same file made again from the same has the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from fleetcraft import __version__
from fleetcraft.errors import DataError, UsageError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.kinds import LOOK_BYTES, kind_by_looks
from fleetcraft.evidence.records import ORIGIN_SCHEMA, Kind, Origin, Producer, Source, producer_here
from fleetcraft.files import FileSystem
from fleetcraft.layout.evidence import is_origin_file, origin_file

Given = str | tuple[str, Kind | None]
"""A source as a caller names it: its path, and what it is if that is not plain from the path."""
_CHUNK_BYTES = 1 << 20
_MOST_ORIGIN_BYTES = 64 << 20


def stamp(
    path: str,
    sources: Sequence[Given],
    *,
    made_by: str,
    producer: Producer | None = None,
    kind: Kind | None = None,
    fs: FileSystem | None = None,
) -> Origin:
    """Writes beside a file what it was made from, in place of what stood there.

    Every file is hashed as far as it goes now. A source that is still appended to may hold more by
    now than was read of it; its prefix then covers what was read, and somewhat more.

    Args:
        path: The figure, summary or other file.
        sources: What it was made from, each a path, or a path and what it is.
        made_by: The command or program, without paths of this machine.
        producer: Who made it; this process if None.
        kind: What the file is; by its name and first bytes if None.
        fs: The seam; for tests.

    Returns:
        What was written.

    Raises:
        UsageError: The file or a source is an origin itself, a source is the file, or it stands
            twice.
        DataError: Something cannot be read, or the origin cannot be written; none was.
    """
    return stamp_all([path], sources, made_by=made_by, producer=producer, kind=kind, fs=fs)[0]


def stamp_all(
    paths: Sequence[str],
    sources: Sequence[Given],
    *,
    made_by: str,
    producer: Producer | None = None,
    kind: Kind | None = None,
    fs: FileSystem | None = None,
) -> list[Origin]:
    """As `stamp`, for files of one folder that were made from the same, which is hashed once."""
    system = fs or FileSystem()
    named = [(one, None) if isinstance(one, str) else one for one in sources]
    for path in paths:
        _refuse_odd(path, [source for source, _ in named])
    folder = os.path.dirname(os.path.abspath(paths[0]))
    listed = [_source(system, folder, source, given) for source, given in named]
    listed.sort(key=lambda source: source.path)
    made: list[Origin] = []
    for path in paths:
        size_bytes, sha256 = digest_of_prefix(system, path)
        origin = Origin(
            kind=kind or kind_of(path, fs=system),
            size_bytes=size_bytes,
            sha256=sha256,
            sources=tuple(listed),
            made_by=made_by,
            version=__version__,
            producer=producer_here() if producer is None else producer,
        )
        _write(system, origin_file(path), origin)
        made.append(origin)
    return made


def read_origin(path: str, *, fs: FileSystem | None = None) -> Origin | None:
    """What stands beside a file; None where nothing does.

    Args:
        path: The file, not its origin.
        fs: The seam; for tests.

    Raises:
        DataError: It cannot be read, is no origin, or names an absolute path.
    """
    beside = origin_file(path)
    try:
        data = read_prefix(fs or FileSystem(), beside, most_bytes=_MOST_ORIGIN_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(beside, error) from error
    try:
        origin = msgspec.json.decode(data, type=Origin)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_origin(beside, str(error)) from error
    if origin.schema != ORIGIN_SCHEMA:
        raise _no_origin(beside, f"its schema is {origin.schema!r}, expected {ORIGIN_SCHEMA!r}")
    for source in origin.sources:
        if not source.path or os.path.isabs(source.path) or "\0" in source.path:
            raise _no_origin(beside, f"it names a source {source.path!r}, which is not relative")
        if source.size_bytes < 0:
            raise _no_origin(beside, f"it names {source.size_bytes} bytes of {source.path!r}")
    return origin


def kind_of(path: str, *, fs: FileSystem | None = None) -> Kind:
    """What a file is, by its name, its first and its last bytes; ``other`` where none says it."""
    head = tail = b""
    with suppress(OSError):
        head, tail = _ends(fs or FileSystem(), path)
    return kind_by_looks(path, head, tail)


def digest_of_prefix(fs: FileSystem, path: str, size_bytes: int | None = None) -> tuple[int, str]:
    """How many bytes of a file's beginning there are, up to a size, and their SHA-256.

    Args:
        fs: The seam.
        path: A regular file; a link is followed.
        size_bytes: How much to hash; None for all that is there now.

    Raises:
        DataError: It cannot be read.
    """
    try:
        return hash_file(path, size_bytes, fs=fs)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_prefix(
    fs: FileSystem, path: str, *, count: int | None = None, most_bytes: int = 1 << 30
) -> bytes:
    """So many bytes of a file's beginning, or all of it.

    Raises:
        OSError: It is not there, no regular file, cannot be read, or holds more than is read whole.
    """
    fd = fs.open_read(path)
    try:
        end = fs.size(fd) if count is None else count
        if end > most_bytes:
            raise OSError(27, f"more than {most_bytes} bytes, which is never read whole", path)
        parts: list[bytes] = []
        at = 0
        while at < end and (data := fs.read_at(fd, min(_CHUNK_BYTES, end - at), at)):
            parts.append(data)
            at += len(data)
    finally:
        fs.close(fd)
    return b"".join(parts)


def _ends(fs: FileSystem, path: str) -> tuple[bytes, bytes]:
    fd = fs.open_read(path)
    try:
        size = fs.size(fd)
        return fs.read_at(fd, LOOK_BYTES, 0), fs.read_at(fd, LOOK_BYTES, max(0, size - LOOK_BYTES))
    finally:
        fs.close(fd)


def _refuse_odd(path: str, sources: Sequence[str]) -> None:
    itself, seen = os.path.realpath(path), set[str]()
    for source in (path, *sources):
        if is_origin_file(source):
            raise UsageError(
                f"cannot stamp {path}: {source} is an origin itself; nothing was written",
                hint="name the file that it stands beside",
                path=source,
            )
    for source in sources:
        where = os.path.realpath(source)
        if where == itself or where in seen:
            why = "it would be its own source" if where == itself else "it is named twice"
            raise UsageError(
                f"cannot stamp {path}: {source}: {why}; nothing was written", path=path
            )
        seen.add(where)


def _source(fs: FileSystem, folder: str, path: str, kind: Kind | None) -> Source:
    size_bytes, sha256 = digest_of_prefix(fs, path)
    return Source(
        path=os.path.relpath(os.path.abspath(path), folder),
        kind=kind or kind_of(path, fs=fs),
        size_bytes=size_bytes,
        sha256=sha256,
    )


def _write(fs: FileSystem, path: str, origin: Origin) -> None:
    try:
        data = msgspec.json.format(msgspec.json.encode(as_written(origin)), indent=1) + b"\n"
    except UnicodeEncodeError as error:
        raise DataError(
            f"cannot write {path}: a name is no text: {error.object!r:.200}; nothing was written",
            hint="give the file a name in UTF-8",
            path=path,
        ) from error
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    try:
        fs.create(temporary, data, mode=0o644, durable=True)
        fs.replace(temporary, path)
        fs.sync_folder(os.path.dirname(path) or ".")
    except OSError as error:
        with suppress(OSError):
            fs.unlink(temporary)
        if _holds(fs, path, data):  # the server may have done what it reported as failed
            return
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; the file itself was left as it is",
            hint="an origin lies beside its file: free space there, or make the folder writable",
            path=path,
        ) from error


def as_written(origin: Origin) -> dict[str, Any]:
    """An origin as it is written: also with what the record leaves out as a default."""
    sources = [
        {
            "path": source.path,
            "kind": source.kind.value,
            "size_bytes": source.size_bytes,
            "sha256": source.sha256,
        }
        for source in origin.sources
    ]
    return {
        "schema": origin.schema,
        "kind": origin.kind.value,
        **msgspec.to_builtins(origin),
        "sources": sources,
    }


def _holds(fs: FileSystem, path: str, data: bytes) -> bool:
    try:
        return fs.read(path) == data
    except OSError:
        return False


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(
        f"cannot read {path}: {error.strerror or error}; nothing was concluded from it",
        hint="name a regular file that is there",
        path=path,
    )


def _no_origin(path: str, reason: str) -> DataError:
    return DataError(
        f"{path} is no origin: {reason}; nothing was concluded from it",
        hint="fleetcraft evidence stamp writes it again from what is there now",
        path=path,
        reason=reason,
    )
