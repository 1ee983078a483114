"""Records that are no training data: kept, under a name that says why, with the reason beside them.

``<what it was called>.<refusal>.<token>.json`` and the same with ``.reason``. Not here: what makes
a record bad (`transaction.judging`). Invariant: a record that is refused exists afterwards, and
its name alone says the refusal.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import NamedTuple

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.layout.rollouts import RefusedName, parse_refused_name
from fleetcraft.rollouts.lag import bucket_of
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import NO_RECORD, Identity, Record, Refusal, encode
from fleetcraft.rollouts.transaction.moves import Move, move

REASON_SCHEMA = "fleetcraft.rollout-refusal/1"


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why one record was refused: the file beside it.

    Attributes:
        schema: `REASON_SCHEMA`.
        refusal: Its class, as in the name.
        why: One sentence, found against expected.
        file: What the record was called before.
        by: The transaction, stream or person that refused it.
        at_version: The policy's version then; None when it was not known.
        identity: Of the record; None when that could not be read.
        digest: As the record says it.
        version: The policy's version when its generation started.
        lag: Versions that it was behind; None when one of the two is not known.
        prompt_tokens: Its prompt's length; None when that is not known.
        bucket: The bucket of that length.
        gpu_s: GPU-seconds that it cost; None when that could not be read.
        at: Wall clock, for people.
    """

    schema: str = REASON_SCHEMA
    refusal: Refusal
    why: str
    file: str
    by: str = ""
    at_version: int | None = None
    identity: Identity | None = None
    digest: str = ""
    version: int | None = None
    lag: int | None = None
    prompt_tokens: int | None = None
    bucket: str = ""
    gpu_s: float | None = None
    at: str = ""


class Refused(NamedTuple):
    """What the name of a refused record says."""

    file: str
    refusal: Refusal
    token: str

    @property
    def name(self) -> str:
        """The refused record's file name."""
        return str(self._spelled)

    @property
    def reason_name(self) -> str:
        """The name of the reason beside it."""
        return self._spelled.reason

    def requeued_reason_name(self, token: str) -> str:
        """The reason's name once the record is back in pending."""
        return self._spelled.requeued_reason(token)

    @property
    def _spelled(self) -> RefusedName:
        return RefusedName(self.file, self.refusal.value, self.token)


def parse_refused(file_name: str) -> Refused | None:
    """Reads the name of a refused record; None for anything else, reasons among it."""
    name = parse_refused_name(file_name)
    if name is None or name.refusal not in Refusal.__members__.values():
        return None
    return Refused(name.file, Refusal(name.refusal), name.token)


def refuse(
    queue: RolloutQueue,
    source: str,
    file: str,
    refusal: Refusal,
    why: str,
    *,
    token: str,
    by: str = "",
    record: Record | None = None,
    at_version: int | None = None,
) -> Refused | None:
    """Moves one record to quarantine, and writes the reason beside it.

    The move comes first: it works on a full disk too, and the name says enough. A reason that
    could not be written is completed by `complete_reasons`.

    Args:
        queue: The queue.
        source: Where the record lies.
        file: What it is called, or was to be called.
        refusal: Why, as a class.
        why: Why, as a sentence with found against expected.
        token: Never used for this file name before; the claim's or launch's own.
        by: Who refuses it.
        record: The record, if it could be read.
        at_version: The policy's version now.

    Returns:
        What it is called now; None when it is not there any more.

    Raises:
        OSError: It was not moved, or the file system does not tell.
    """
    refused = Refused(file, refusal, token)
    moved = move(queue.fs, source, queue.paths.refused(refused.name))
    if moved is Move.GONE:
        return None
    if moved is Move.TAKEN:
        raise FileExistsError(f"{refused.name} is in quarantine already; {source} was left")
    with contextlib.suppress(OSError):
        _write_reason(queue, refused, _reason(refused, why, by, record, at_version))
    return refused


def _reason(
    refused: Refused, why: str, by: str, record: Record | None, at_version: int | None
) -> Reason:
    reason = Reason(
        refusal=refused.refusal,
        why=why,
        file=refused.file,
        by=by,
        at_version=at_version,
        at=timestamp(),
    )
    if record is None:
        return reason
    return msgspec.structs.replace(
        reason,
        identity=record.identity,
        digest=record.digest,
        version=record.version,
        lag=None if at_version is None else at_version - record.version,
        prompt_tokens=record.prompt_tokens,
        bucket=bucket_of(record.prompt_tokens),
        gpu_s=record.gpu_s,
    )


def _write_reason(queue: RolloutQueue, refused: Refused, reason: Reason) -> None:
    path = queue.paths.refused(refused.reason_name)
    with contextlib.suppress(FileExistsError):
        queue.fs.create(path, encode(reason))


def complete_reasons(queue: RolloutQueue) -> int:
    """Writes the reasons that a crash or a full disk left out; returns how many.

    Raises:
        OSError: The quarantine cannot be listed or written.
    """
    names = set(queue.listing(queue.paths.quarantine))
    written = 0
    for name in sorted(names):
        refused = parse_refused(name)
        if refused is None or refused.reason_name in names:
            continue
        record = None
        with contextlib.suppress(OSError, *NO_RECORD):
            data = queue.fs.read(queue.paths.refused(name))
            record = msgspec.json.decode(data, type=Record)
        why = "the name says the refusal; the sentence was lost when the record was moved"
        _write_reason(queue, refused, _reason(refused, why, "", record, None))
        written += 1
    return written


def read_reason(queue: RolloutQueue, refused: Refused) -> Reason | None:
    """The reason of one refused record; None when there is none that can be understood.

    Raises:
        OSError: It is there and cannot be read.
    """
    try:
        data = queue.fs.read(queue.paths.refused(refused.reason_name))
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=Reason)
    except NO_RECORD:
        return None


def list_refused(queue: RolloutQueue) -> list[Refused]:
    """Every refused record, in the order of names.

    Raises:
        OSError: The quarantine cannot be listed.
    """
    found = (parse_refused(name) for name in sorted(queue.listing(queue.paths.quarantine)))
    return [refused for refused in found if refused is not None]


def count_refused(queue: RolloutQueue) -> dict[Refusal, int]:
    """How many records were refused for which reason, by their names alone.

    Raises:
        OSError: The quarantine cannot be listed.
    """
    return dict(Counter(refused.refusal for refused in list_refused(queue)))
