"""The records of a trajectory queue: what producers publish and trainers commit.

Plain frozen records, their bytes and their digests; no folder is touched here. Invariant: a
record's digest covers every other field of it, and its identity is (run, stream, sequence, sample).
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fleetcraft.identity import sha256_hex
from fleetcraft.layout.rollouts import RolloutName

RECORD_SCHEMA = "fleetcraft.rollout/1"
SETTINGS_SCHEMA = "fleetcraft.rollout-queue/1"
INTENT_SCHEMA = "fleetcraft.rollout-intent/1"
COMMIT_SCHEMA = "fleetcraft.rollout-commit/1"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue was made with; never changed afterwards.

    Source of the numbers: the first seed document (batch, water marks, lag, freshness); ROLLOUTS.md
    has the rules.

    Attributes:
        schema: `SETTINGS_SCHEMA`.
        run: The run whose policy is trained.
        batch: Records of one transaction, exactly.
        group: Records of one group; ``batch`` is a multiple of it.
        high_water: pending and reserved together never exceed it.
        low_water: Refill is admitted again below it.
        max_lag: Versions that a record may be behind at commit start.
        beat_s: Seconds between a producer's beats.
        fresh_s: A beat that did not change for so long, by the reader's clock, is not fresh.
        lock_interval_s: Seconds between beats of the generation locks.
        required_values: Names that every record's ``values`` must have.
    """

    schema: str = SETTINGS_SCHEMA
    run: str
    batch: int = 64
    group: int = 1
    high_water: int = 160
    low_water: int = 80
    max_lag: int = 8
    beat_s: float = 30.0
    fresh_s: float = 180.0
    lock_interval_s: float = 5.0
    required_values: tuple[str, ...] = ()


class PhysicalSlot(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker ran; two workers of one node differ here whatever they call ``cuda:0``."""

    host: str
    device_uuid: str = ""
    bus_id: str = ""


class FileRef(msgspec.Struct, frozen=True, kw_only=True):
    """A file that belongs to a record, such as a video; its path as the producer wrote it."""

    path: str
    size_bytes: int
    sha256: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One trajectory.

    Attributes:
        schema: `RECORD_SCHEMA`.
        run: The run that it was sampled for.
        stream: The stream that seeded its prompt.
        sequence: Its place in the stream, from 0.
        sample: Its place among the samples of that place, from 0.
        group: Records of one group are compared with one another, and consumed together.
        version: The policy's version when its generation started.
        shape: What must fit to be compared, such as ``81x480x832``.
        slot: Where it was made.
        logical_device: What the producer called its device, such as ``cuda:0``.
        lease_generation: Of the stream's lease.
        lease_nonce: Of the stream's lease.
        prompt: The prompt, or what names it.
        prompt_tokens: Its length; discards are counted by its bucket.
        values: Numbers by name, such as ``log_probs`` (one a step).
        scalars: Single numbers by name, such as ``reward``.
        files: What lies beside it.
        started_at: Wall clock of the producer, for people.
        ended_at: The same.
        gpu_s: GPU-seconds that it cost.
        facts: The user's own.
        digest: SHA-256 of all the above; see `seal`.
    """

    schema: str = RECORD_SCHEMA
    run: str
    stream: str
    sequence: int
    sample: int = 0
    group: str
    version: int
    shape: str = ""
    slot: PhysicalSlot
    logical_device: str = ""
    lease_generation: int
    lease_nonce: str
    prompt: str = ""
    prompt_tokens: int = 0
    values: dict[str, list[float]] = {}
    scalars: dict[str, float] = {}
    files: tuple[FileRef, ...] = ()
    started_at: str = ""
    ended_at: str = ""
    gpu_s: float = 0.0
    facts: dict[str, str] = {}
    digest: str = ""

    @property
    def name(self) -> RolloutName:
        """Its file name."""
        return RolloutName(self.version, self.stream, self.sequence, self.sample)

    @property
    def identity(self) -> Identity:
        """What may be trained on once."""
        return Identity(self.run, self.stream, self.sequence, self.sample)


class Identity(msgspec.Struct, frozen=True, order=True, array_like=True):
    """(run, stream, sequence, sample): deterministic, so a second one of it is a duplicate."""

    run: str
    stream: str
    sequence: int
    sample: int

    def __str__(self) -> str:
        return f"{self.stream}.{self.sequence}.{self.sample}"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a transaction: identity, digest, and the file's name."""

    identity: Identity
    digest: str
    name: str
    group: str


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What a transaction means to consume: durable before anything is moved.

    Attributes:
        schema: `INTENT_SCHEMA`.
        transaction: Its name: ``v<version>-<generation>-<nonce>``.
        version: The version that its commit would make.
        generation: Of the trainer's lock.
        nonce: Tells it from any other.
        members: Exactly the batch.
        at: Wall clock, for people.
    """

    schema: str = INTENT_SCHEMA
    transaction: str
    version: int
    generation: int
    nonce: str
    members: tuple[Member, ...]
    at: str


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A policy version came to be: published once under the version's own name.

    Attributes:
        schema: `COMMIT_SCHEMA`.
        version: The version that it makes.
        parent: The version before; 0 before the first.
        transaction: The transaction's name.
        generation: Of the trainer's lock.
        nonce: Of the transaction.
        members: The records that it was trained on.
        checkpoint: Where the checkpoint lies, as the trainer names it.
        checkpoint_sha256: Of the checkpoint's manifest.
        gpu_s: GPU-seconds that this transaction adds to the accounts, generation and update.
        scalars: The trainer's own numbers, such as the loss.
        at: Wall clock, for people.
    """

    schema: str = COMMIT_SCHEMA
    version: int
    parent: int
    transaction: str
    generation: int
    nonce: str
    members: tuple[Member, ...]
    checkpoint: str
    checkpoint_sha256: str
    gpu_s: float = 0.0
    scalars: dict[str, float] = {}
    at: str


class Refusal(StrEnum):
    """Why a record is no training data."""

    UNREADABLE = "unreadable"
    FUTURE_SCHEMA = "future_schema"
    WRONG_RUN = "wrong_run"
    WRONG_DIGEST = "wrong_digest"
    WRONG_NAME = "wrong_name"
    NOT_FINITE = "not_finite"
    MISSING_VALUES = "missing_values"
    FUTURE_VERSION = "future_version"
    LAG = "lag"
    DUPLICATE_IN_BATCH = "duplicate_in_batch"
    DUPLICATE_OF_CONSUMED = "duplicate_of_consumed"
    DUPLICATE_IDENTITY = "duplicate_identity"
    SHAPE = "shape"
    INCOMPLETE_GROUP = "incomplete_group"
    FILE_MISSING = "file_missing"
    FILE_CHANGED = "file_changed"
    REQUESTED = "requested"


class ProducerState(StrEnum):
    """What a producer does. THROTTLED is healthy."""

    STARTING = "starting"
    RUNNING = "running"
    THROTTLED = "throttled"
    DRAINING = "draining"
    EXITED = "exited"


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer says of itself every `Settings.beat_s`; fresh is decided by its counter."""

    run: str
    stream: str
    state: ProducerState
    counter: int
    shape: str
    slot: PhysicalSlot
    lease_generation: int
    lease_nonce: str
    published: int = 0
    version: int | None = None
    at: str = ""


NO_RECORD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises of bytes that are none of these records; the last for deeply nested ones."""
MOST_BYTES = 64 << 20
"""A record is at most so long. Source: own choice; a batch of 64 then still fits in memory."""

_encoder = msgspec.json.Encoder(order="deterministic")


def seal(record: Record) -> Record:
    """The record with its digest: SHA-256 of its canonical JSON with an empty digest.

    Whole numbers become floats first, as they are when the record is read again.
    """
    plain = msgspec.structs.replace(
        record,
        values={name: [float(number) for number in row] for name, row in record.values.items()},
        scalars={name: float(number) for name, number in record.scalars.items()},
        gpu_s=float(record.gpu_s),
    )
    return msgspec.structs.replace(plain, digest=digest_of(plain))


def digest_of(record: Record) -> str:
    """What `Record.digest` must be."""
    return sha256_hex(_encoder.encode(msgspec.structs.replace(record, digest="")))


def encode(thing: msgspec.Struct) -> bytes:
    """The canonical bytes of a record, intent, commit, beat or settings, with a newline."""
    return _encoder.encode(thing) + b"\n"
