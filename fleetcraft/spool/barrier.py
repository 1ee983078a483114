"""Barriers: a record that says that something is ready, and lets anybody verify that it is.

The record names its payload with sizes and SHA-256, computed from bytes that were read again. A
consumer goes by `check`, which verifies, and never by the mere presence of a file. A record without
payload says only that its producer is done. Invariant: a barrier is published once, whole, and
never changed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Sequence

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import DataError, SpoolError, UsageError
from fleetcraft.files import FileSystem
from fleetcraft.identity import new_record_id, this_host
from fleetcraft.locks import put_if_absent

SCHEMA = "fleetcraft.barrier/1"
_CHUNK_BYTES = 1 << 20
_MAX_BYTES = 16 << 20
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class PayloadFile(msgspec.Struct, kw_only=True, frozen=True):
    """One file of a payload: where it is, how long, and what is in it.

    ``path`` is relative to the barrier's folder where the file lies below it, else absolute.
    """

    path: str
    bytes: int
    sha256: str


class Barrier(msgspec.Struct, kw_only=True, frozen=True):
    """The record at a barrier."""

    schema: str
    id: str
    made_at: str
    made_by: str
    payload: tuple[PayloadFile, ...] = ()
    note: str = ""


class BarrierState(msgspec.Struct, kw_only=True, frozen=True):
    """What is known of a barrier.

    ``ready`` is None when it could not be found out; ``reason`` says why it is not True.
    """

    ready: bool | None
    reason: str = ""
    barrier: Barrier | None = None


def write(path: str, payload: Sequence[str], *, note: str = "") -> Barrier:
    """Publishes a barrier over the files of a payload.

    Args:
        path: Where the record goes; its folder must be there.
        payload: Files; a folder stands for every file below it.
        note: A line for people.

    Raises:
        UsageError: A payload is missing, empty, or no file.
        SpoolError: A barrier with another payload is there already; nothing was changed.
        OSError: A file cannot be read, or the record cannot be written.
    """
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    found = [file for given in payload for file in _files_of(given) if file != path]
    files = [_measure(file, folder) for file in dict.fromkeys(found)]
    barrier = Barrier(
        schema=SCHEMA,
        id=new_record_id(),
        made_at=timestamp(),
        made_by=f"{this_host().host}, pid {os.getpid()}",
        payload=tuple(files),
        note=note,
    )
    if put_if_absent(FileSystem(), path, msgspec.json.encode(barrier) + b"\n"):
        return barrier
    there = check(path)
    if there.barrier is not None and there.barrier.payload == barrier.payload:
        return there.barrier
    raise SpoolError(
        f"a barrier with another payload stands at {path}; it was not changed",
        hint="choose another name: a barrier says the same for ever",
        path=path,
    )


def check(path: str) -> BarrierState:
    """Whether a barrier stands and its whole payload is as it says.

    Costs one read of every payload file. Never raises: what cannot be read is not known.
    """
    try:
        facts = os.stat(path)
        if not stat.S_ISREG(facts.st_mode):
            return BarrierState(ready=False, reason=f"{path} is no regular file")
        if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & _WRITABLE_BY_OTHERS:
            return BarrierState(ready=False, reason=f"another user owns or can write {path}")
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return BarrierState(ready=False, reason=f"{path} is not there yet")
    except OSError as error:
        return BarrierState(ready=None, reason=f"{path} cannot be read: {error.strerror or error}")
    try:
        barrier = _parse(path, data)
    except DataError as error:
        return BarrierState(ready=False, reason=error.message)
    return _verify(os.path.dirname(os.path.abspath(path)), barrier)


def is_ready(path: str) -> bool:
    """Whether a barrier stands and verifies; what is not known is not ready."""
    return check(path).ready is True


def _parse(path: str, data: bytes) -> Barrier:
    try:
        barrier = msgspec.json.decode(data, type=Barrier)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{path} is no barrier record: {error}") from error
    if barrier.schema != SCHEMA:
        raise DataError(f"{path} is no barrier record: its schema is {barrier.schema!r}")
    return barrier


def _verify(folder: str, barrier: Barrier) -> BarrierState:
    for item in barrier.payload:
        path = os.path.join(folder, item.path)
        try:
            size, digest = _digest(path, expected_bytes=item.bytes)
        except FileNotFoundError:
            return _not_ready(barrier, f"its payload {path} is missing")
        except ValueError:  # of a NUL, which no file's name holds
            return _not_ready(barrier, f"it names a payload that cannot be: {item.path!r}")
        except OSError as error:
            why = f"its payload {path} cannot be read: {error.strerror or error}"
            return BarrierState(ready=None, reason=why, barrier=barrier)
        if size != item.bytes:
            why = f"its payload {path} has {size} bytes, and the barrier says {item.bytes}"
            return _not_ready(barrier, why)
        if digest != item.sha256:
            return _not_ready(barrier, f"its payload {path} has other content than it says")
    return BarrierState(ready=True, barrier=barrier)


def _not_ready(barrier: Barrier, reason: str) -> BarrierState:
    return BarrierState(ready=False, reason=reason, barrier=barrier)


def _files_of(given: str) -> list[str]:
    path = os.path.abspath(given)
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise UsageError(
            f"no payload at {given!r}; the barrier was not written",
            hint="name files or folders that are there",
            path=path,
        )
    found = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(path, onerror=_fail)
        for name in names
    )
    if not found:
        raise UsageError(f"the payload {given!r} is an empty folder", path=path)
    return found


def _fail(error: OSError) -> None:
    """A folder that cannot be listed may hold a part of the payload."""
    raise error


def _measure(path: str, folder: str) -> PayloadFile:
    size, digest = _digest(path)
    below = path.startswith(folder.rstrip("/") + "/")
    shown = os.path.relpath(path, folder) if below else path
    return PayloadFile(path=shown, bytes=size, sha256=digest)


def _digest(path: str, *, expected_bytes: int | None = None) -> tuple[int, str]:
    """Size and SHA-256 of a file; one that has not the size that is expected is not read."""
    # O_NONBLOCK so that a FIFO cannot hold the caller for ever.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb", buffering=0) as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if expected_bytes not in (None, facts.st_size):
            return facts.st_size, ""
        digest = hashlib.sha256()
        size = 0
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()
