"""Publishing a record: written, bound to its identity, moved into ``pending``.

The link under ``ident`` decides who owns an identity, for ever. Whatever was cut short lies whole
in ``tmp``, and only the holder of its stream completes it. Invariant: a record becomes pending by
exactly one rename, after its identity is its own, and into room that was reserved.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from itertools import chain

import msgspec

from fleetcraft.errors import DataError, UsageError
from fleetcraft.files import NO_HARD_LINKS, FileSystem
from fleetcraft.identity import new_launch_token, sha256_hex
from fleetcraft.layout.rollouts import RolloutName, parse_half, parse_ident
from fleetcraft.locks import put_if_absent
from fleetcraft.rollouts.admission import Admission, Reservation, Throttled
from fleetcraft.rollouts.quarantine import refuse
from fleetcraft.rollouts.queue import RolloutQueue, cannot
from fleetcraft.rollouts.records import (
    MOST_BYTES,
    NO_RECORD,
    Record,
    Refusal,
    digest_of,
    encode,
    seal,
)
from fleetcraft.rollouts.streams import StreamLease
from fleetcraft.rollouts.transaction.moves import Move, discard, move

# What link(2) says where hard links do not exist (some FUSE, SMB and object mounts).


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The record is pending, or was and has been claimed since."""

    record: Record


class Duplicate(msgspec.Struct, frozen=True, kw_only=True):
    """The record is no training data: it was kept in quarantine, with the reason beside it.

    Attributes:
        record: It.
        refusal: Most often `Refusal.DUPLICATE_IDENTITY`.
        why: The same as a sentence.
    """

    record: Record
    refusal: Refusal
    why: str


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the records that earlier holders of a stream had not finished publishing.

    Attributes:
        published: Now pending.
        refused: Now in quarantine: their identity was another's, or they do not verify.
        torn: Never written whole, and removed; nobody had been told of them.
        waiting: Whole and bound to their identity, and there is no room for them yet.
    """

    published: int = 0
    refused: int = 0
    torn: int = 0
    waiting: int = 0


class _Half(msgspec.Struct, frozen=True):
    path: str
    name: RolloutName
    generation: int


def publish(queue: RolloutQueue, record: Record, reservation: Reservation) -> Published | Duplicate:
    """Publishes one record durably, and gives back the room that was reserved for it.

    Calling it again with the very same record after an error is safe and completes it.

    Args:
        queue: The queue.
        record: It; its digest is computed here. Its lease must be the reservation's.
        reservation: Room for its identity.

    Returns:
        `Published`, or `Duplicate` where its identity belongs to another record, or it holds a
        number that is not finite.

    Raises:
        UsageError: It does not belong to this queue, this lease or this reservation.
        DataError: It lacks a value that the queue requires, or is too long.
        LockLostError: The stream has another holder.
        SpoolError: It is not known to be published (exit code 5).
    """
    _require_fit(queue, record, reservation)
    record = seal(record)
    data = _require_length(record, encode(record))
    temporary = queue.paths.half_published(record.name, record.lease_generation, record.digest)
    reservation.lease.check()
    ident = queue.paths.ident_file(record.stream, record.sequence, record.sample)
    try:
        # Bound already: an earlier call came so far. What it wrote may be consumed by now, and must
        # not be written again.
        if not _holds(queue.fs, ident, data):
            _write(queue.fs, temporary, data)
        outcome = _settle(queue, record, data, temporary)
    except OSError as error:
        raise cannot(f"publish record {record.identity}", error) from error
    with contextlib.suppress(OSError):  # the room is counted under the same identity meanwhile
        reservation.release(record.sample)
    return outcome


def finish_half_published(
    queue: RolloutQueue, lease: StreamLease, admission: Admission
) -> Completed:
    """Completes what earlier holders of a stream left in ``tmp``; only its holder may.

    Args:
        queue: The queue.
        lease: The stream, held.
        admission: Room is reserved through it, one record at a time.

    Raises:
        LockLostError: The stream has another holder.
        SpoolError: The queue cannot be read or written.
    """
    counts = dict.fromkeys(("published", "refused", "torn", "waiting"), 0)
    lease.check()
    try:
        for half in _halves(queue, lease):
            counts[_finish(queue, half, admission)] += 1
    except OSError as error:
        raise cannot(f"complete what stream {lease.stream} left in tmp", error) from error
    return Completed(**counts)


def published(queue: RolloutQueue, stream: str) -> dict[int, set[int]]:
    """The identities that a stream has published, ever: sequence to samples.

    Raises:
        OSError: They cannot be listed.
    """
    found: dict[int, set[int]] = {}
    for name in queue.listing(queue.paths.ident_folder(stream)):
        if place := parse_ident(name):
            found.setdefault(place[0], set()).add(place[1])
    return found


# ------------------------------------------------------------------------------ one record


def _write(fs: FileSystem, temporary: str, data: bytes) -> None:
    try:
        fs.create(temporary, data, durable=True)
    except FileExistsError:
        if fs.read(temporary) != data:  # an earlier attempt of this very call was cut short
            discard(fs, temporary)
            fs.create(temporary, data, durable=True)
    # Else a power cut could leave the identity without the record that is bound to it.
    fs.sync_folder(os.path.dirname(temporary))


def _holds(fs: FileSystem, path: str, data: bytes) -> bool:
    try:
        return fs.read(path) == data
    except FileNotFoundError:
        return False


def _settle(
    queue: RolloutQueue, record: Record, data: bytes, temporary: str
) -> Published | Duplicate:
    """Binds the identity, then moves the record to where it belongs."""
    ident = queue.paths.ident_file(record.stream, record.sequence, record.sample)
    if not _bind(queue.fs, temporary, ident, data):
        why = f"identity {record.identity} was published before, with another content"
        return _refused(queue, temporary, record, Refusal.DUPLICATE_IDENTITY, why)
    if fault := _not_finite(record):
        return _refused(queue, temporary, record, Refusal.NOT_FINITE, fault)
    pending = f"{queue.paths.pending}/{record.name}"
    if move(queue.fs, temporary, pending) is Move.TAKEN:
        why = f"another record is called {record.name}, though the identity was free"
        return _refused(queue, temporary, record, Refusal.DUPLICATE_IDENTITY, why)
    # Move.GONE: the holder of the next lease completed it, or a rename that was reported as
    # failed had happened and a trainer was quick. Nobody else takes from tmp.
    queue.fs.sync_folder(queue.paths.pending)
    return Published(record=record)


def _bind(fs: FileSystem, temporary: str, ident: str, data: bytes) -> bool:
    """Links a record to its identity; whether the identity is its own now."""
    try:
        fs.link(temporary, ident)
    except OSError as error:
        linkless = error.errno in NO_HARD_LINKS
        try:
            found = fs.read(ident)
        except FileNotFoundError:
            if not linkless:
                raise error from None
            return put_if_absent(fs, ident, data)
        if linkless and found != data and data.startswith(found):
            # Made by `create`, and cut short by a kill: it binds nothing.
            discard(fs, ident)
            return put_if_absent(fs, ident, data)
        if found != data:
            return False
    fs.sync_folder(os.path.dirname(ident))
    return True


def _refused(
    queue: RolloutQueue, path: str, record: Record, refusal: Refusal, why: str
) -> Duplicate:
    refuse(
        queue,
        path,
        str(record.name),
        refusal,
        why,
        token=new_launch_token(),
        by=f"stream {record.stream}, generation {record.lease_generation}",
        record=record,
    )
    return Duplicate(record=record, refusal=refusal, why=why)


def _require_fit(queue: RolloutQueue, record: Record, reservation: Reservation) -> None:
    lease = reservation.lease
    pairs = (
        ("run", record.run, queue.settings.run),
        ("stream", record.stream, lease.stream),
        ("lease_generation", record.lease_generation, lease.generation),
        ("lease_nonce", record.lease_nonce, lease.nonce),
        ("sequence", record.sequence, reservation.sequence),
    )
    for field, found, expected in pairs:
        if found != expected:
            raise UsageError(
                f"cannot publish record {record.identity}: found {field} {found!r}, "
                f"expected {expected!r}; nothing was published",
                field=field,
            )
    if record.sample not in reservation.samples:
        raise UsageError(
            f"cannot publish record {record.identity}: no room is reserved for sample "
            f"{record.sample} (reserved: {list(reservation.samples)}); nothing was published",
            hint="reserve before you generate, and publish each sample once",
        )
    missing = sorted(set(queue.settings.required_values) - set(record.values))
    if missing:
        raise DataError(
            f"cannot publish record {record.identity}: it lacks {', '.join(missing)}, which this "
            "queue requires of every record; nothing was published",
            missing=missing,
        )


def _require_length(record: Record, data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise DataError(
            f"cannot publish record {record.identity}: it has {len(data)} bytes, at most "
            f"{MOST_BYTES} are allowed; nothing was published",
            hint="put what is long into a file beside the record (Record.files)",
            size_bytes=len(data),
        )
    return data


def _not_finite(record: Record) -> str:
    """Which number of a record is none; empty when all are finite."""
    series = chain(record.values.items(), ((key, [one]) for key, one in record.scalars.items()))
    for key, numbers in chain(series, [("gpu_s", [record.gpu_s])]):
        bad = _first_bad(numbers)
        if bad is not None:
            return f"{key}[{bad}] is not finite"
    return ""


def _first_bad(numbers: Iterable[float]) -> int | None:
    return next((i for i, number in enumerate(numbers) if not math.isfinite(number)), None)


# ------------------------------------------------------------------------------ what was left


def _halves(queue: RolloutQueue, lease: StreamLease) -> list[_Half]:
    """What earlier holders of this stream left in ``tmp``, oldest identity first."""
    found = []
    for file in queue.listing(queue.paths.tmp):
        half = parse_half(file)
        if half and half.name.stream == lease.stream and half.generation < lease.generation:
            found.append(_Half(f"{queue.paths.tmp}/{file}", half.name, half.generation))
    return sorted(found, key=lambda half: (half.name.sequence, half.name.sample, half.generation))


def _finish(queue: RolloutQueue, half: _Half, admission: Admission) -> str:
    try:
        data = queue.fs.read(half.path)
    except FileNotFoundError:  # its writer was only slow
        return "published"
    record = _whole(queue, data, half)
    ident = queue.paths.ident_file(half.name.stream, half.name.sequence, half.name.sample)
    if record is None:
        return _spoiled(queue, half, data, ident)
    if _bind(queue.fs, half.path, ident, data):
        room = admission.reserve(record.sequence, [record.sample])
        if isinstance(room, Throttled):
            return "waiting"
        outcome = _settle(queue, record, data, half.path)
        with contextlib.suppress(OSError):
            room.release()
    else:
        outcome = _settle(queue, record, data, half.path)
    return "published" if isinstance(outcome, Published) else "refused"


def _whole(queue: RolloutQueue, data: bytes, half: _Half) -> Record | None:
    try:
        record = msgspec.json.decode(data, type=Record)
    except NO_RECORD:
        return None
    mine = record.run == queue.settings.run and record.name == half.name
    return record if mine and record.digest == digest_of(record) else None


def _spoiled(queue: RolloutQueue, half: _Half, data: bytes, ident: str) -> str:
    """A record that is not whole: evidence if its identity is bound to it, else half a write."""
    if not _holds(queue.fs, ident, data) and not data.endswith(b"\n"):
        discard(queue.fs, half.path)
        return "torn"
    why = f"found in tmp with SHA-256 {sha256_hex(data)[:12]}: it does not verify"
    refuse(
        queue,
        half.path,
        str(half.name),
        Refusal.WRONG_DIGEST,
        why,
        token=new_launch_token(),
        by=f"stream {half.name.stream}",
    )
    return "refused"
