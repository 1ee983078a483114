"""What a save consists of, and what is said of a checkpoint: records, their bytes, closed sets.

Nothing here touches a disk or decides. Invariant: a path in a manifest is relative, stays below the
checkpoint's folder, and is told with size and SHA-256.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec

from fleetcraft.errors import DataError
from fleetcraft.identity import sha256_hex

MANIFEST_SCHEMA = "fleetcraft.checkpoint/1"
DONE_SCHEMA = "fleetcraft.checkpoint-rank/1"
NOTE_SCHEMA = "fleetcraft.checkpoint-note/1"


class CheckpointError(DataError):
    """A checkpoint is not what is asked for, or cannot be made; facts name it and its folder."""


class CheckpointUnknownError(CheckpointError):
    """What checkpoints there are, or how one stands, cannot be told now. It proves nothing."""


class SaveTakenError(CheckpointError):
    """Another checkpoint of this step was committed; it was kept, and this save was not published.

    Facts: ``step``, and ``folder``, where the unpublished save lies.
    """


class SaveFencedError(CheckpointError):
    """A later launch of the run saves into the same folder, so this process commits no more.

    Facts: ``step``, ``folder``, ``generation`` of this process and ``later``.
    """


class Kind(StrEnum):
    """What can be done from a checkpoint; computed, never claimed."""

    EXACT = "EXACT"
    """Training goes on bit for bit as it would have."""
    WEIGHTS = "WEIGHTS"
    """The weights are there, and something of the state is not."""


class Level(StrEnum):
    """How far a checkpoint is verified, weakest first."""

    MARKER = "marker"
    SIZES = "sizes"
    HASHES = "hashes"
    LOADED = "loaded"
    CONTINUED = "continued"


LEVELS = tuple(Level)


class Part(StrEnum):
    """What an exact continuation needs; the step itself is in every record."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    RNG_PYTHON = "rng_python"
    RNG_NUMPY = "rng_numpy"
    RNG_CPU = "rng_cpu"
    RNG_DEVICE = "rng_device"
    RNG_WORKERS = "rng_workers"
    SAMPLER = "sampler"
    DATASET = "dataset"
    LEDGER = "ledger"
    CRITIC = "critic"
    REWARD_NORM = "reward_norm"
    BRANCH = "branch"
    PROBE = "probe"


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a run is laid out; all ranks of a save declare the same.

    Attributes:
        device: ``cpu`` or the kind of device whose random numbers every rank draws.
        loader_workers: Data loader workers of each rank, which draw random numbers too.
        sharded: Parts of which every rank holds a piece; of others one rank's is enough.
        facts: The user's own, such as the mesh; compared between ranks, not judged.
    """

    device: str = "cpu"
    loader_workers: int = 0
    sharded: tuple[Part, ...] = ()
    facts: dict[str, str] = {}


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: its path below the checkpoint's folder, its size and what is in it."""

    path: str
    size_bytes: int
    sha256: str


class PartEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one rank has one part: in files, as a value, or not at all with the reason.

    Attributes:
        files: Paths below the checkpoint's folder.
        value: For what is one short text, such as the digest of the data set.
        none: Why this run has none of it.
    """

    files: tuple[str, ...] = ()
    value: str = ""
    none: str = ""


class RankDone(msgspec.Struct, frozen=True, kw_only=True):
    """One rank has written and forced to disk all that it has: RANK_DONE.

    Attributes:
        schema: `DONE_SCHEMA`.
        step: Completed optimizer steps.
        generation: Of the lock under which the run was launched.
        nonce: Of the save: ranks of two saves never mix.
        rank: Which rank.
        world_size: Of how many.
        topology: As this rank declares it.
        parts: What it has of each part.
        files: Every file that it wrote.
        facts: Such as ``sampler_frontier`` and ``rng_cpu_sha256``.
        host: Where it ran.
        pid: Its process there.
        at: Wall clock, for people.
    """

    schema: str
    step: int
    generation: int
    nonce: str
    rank: int
    world_size: int
    topology: Topology
    parts: dict[Part, PartEntry]
    files: tuple[FileEntry, ...]
    facts: dict[str, str | int | float] = {}
    host: str = ""
    pid: int = 0
    at: str = ""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint from which a run went on."""

    step: int
    manifest_sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A committed checkpoint: the content of its marker.

    Attributes:
        schema: `MANIFEST_SCHEMA`.
        step: Completed optimizer steps.
        generation: Of the lock under which it was saved.
        nonce: Of the save.
        world_size: Ranks that saved it.
        kind: As computed when it was committed.
        missing: What it lacks to be EXACT.
        topology: As its ranks declared it.
        ranks: What each rank wrote.
        continued_from: The checkpoint before, if one is known.
        at: Wall clock, for people.
        folder: Where it was read; not in the file.
        sha256: Of the file itself; not in the file.
    """

    schema: str
    step: int
    generation: int
    nonce: str
    world_size: int
    kind: Kind
    missing: tuple[str, ...] = ()
    topology: Topology
    ranks: tuple[RankDone, ...]
    continued_from: Origin | None = None
    at: str
    folder: str = ""
    sha256: str = ""

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file of every rank."""
        return tuple(file for rank in self.ranks for file in rank.files)

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(file.size_bytes for file in self.files)


class How(StrEnum):
    """How a later step came after a checkpoint."""

    LOADED = "loaded"
    """A process loaded it and completed further steps."""
    KEPT_TRAINING = "kept_training"
    """The process that saved it completed further steps and saved again."""


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened to a checkpoint later; published once, bound to its manifest by digest.

    Attributes:
        schema: `NOTE_SCHEMA`.
        manifest_sha256: Which checkpoint; a note that was copied elsewhere says nothing.
        by: Who says so.
        at: Wall clock, for people.
        step: The later step, for CONTINUED.
        how: How it came after, for CONTINUED.
        why: Why it was taken out of use, for one that was retired or quarantined.
        folder: Where it lay, for the same.
        anchor: The step that made its deletion safe, for one that was retired.
    """

    schema: str
    manifest_sha256: str
    by: str
    at: str
    step: int | None = None
    how: How | None = None
    why: str = ""
    folder: str = ""
    anchor: int | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification found.

    Attributes:
        level: What was asked for.
        answer: True: proved up to that level. False: not so. None: not known.
        broken: The data contradicts its manifest; False when it merely lacks a proof.
        proved: The levels that hold.
        reasons: Why the answer is not True.
    """

    level: Level
    answer: bool | None
    broken: bool = False
    proved: tuple[Level, ...] = ()
    reasons: tuple[str, ...] = ()


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something in a folder of checkpoints that is none, and why."""

    path: str
    why: str


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A save that is being written, or was left; ``complete`` when its manifest stands."""

    path: str
    step: int
    generation: int
    nonce: str
    complete: bool


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in a folder of checkpoints.

    Attributes:
        committed: Checkpoints by step, oldest first; verified by nothing but their marker.
        faults: What looks like a checkpoint and is none.
        unknown: What could not be looked at.
        pending: Saves that are being written or were left.
        quarantined: Checkpoints that were taken out of use.
        retiring: Deletions that were cut short.
    """

    committed: tuple[Manifest, ...] = ()
    faults: tuple[Fault, ...] = ()
    unknown: tuple[Fault, ...] = ()
    pending: tuple[Pending, ...] = ()
    quarantined: tuple[str, ...] = ()
    retiring: tuple[str, ...] = ()


_T = TypeVar("_T")
_encoder = msgspec.json.Encoder(order="deterministic")
_manifests = msgspec.json.Decoder(Manifest)
_ranks = msgspec.json.Decoder(RankDone)
_notes = msgspec.json.Decoder(Note)


def encode(record: msgspec.Struct) -> bytes:
    """The bytes of a record, with a newline."""
    return _encoder.encode(record) + b"\n"


def read_manifest(data: bytes, folder: str) -> Manifest:
    """Reads a marker.

    Raises:
        ValueError: It is none; the text says why.
    """
    manifest = _decoded(_manifests, data)
    if manifest.schema != MANIFEST_SCHEMA:
        raise ValueError(f"its schema is {manifest.schema!r}, expected {MANIFEST_SCHEMA!r}")
    # Counted first: a number of ranks is only a claim, and may be of any size.
    if len(manifest.ranks) != manifest.world_size or any(
        rank.rank != number for number, rank in enumerate(manifest.ranks)
    ):
        raise ValueError(f"its ranks are not 0 to {manifest.world_size - 1}")
    for rank in manifest.ranks:
        _refuse_odd_files(rank)
    seen: set[str] = set()
    for file in manifest.files:
        if file.path in seen:
            raise ValueError(f"it names {file.path!r} twice")
        seen.add(file.path)
    return msgspec.structs.replace(manifest, folder=folder, sha256=sha256_hex(data))


def write_manifest(manifest: Manifest) -> bytes:
    """The bytes of a marker."""
    return encode(msgspec.structs.replace(manifest, folder="", sha256=""))


def read_rank(data: bytes) -> RankDone:
    """Reads a rank's record.

    Raises:
        ValueError: It is none.
    """
    done = _decoded(_ranks, data)
    if done.schema != DONE_SCHEMA:
        raise ValueError(f"its schema is {done.schema!r}, expected {DONE_SCHEMA!r}")
    _refuse_odd_files(done)
    return done


def _refuse_odd_files(rank: RankDone) -> None:
    """Every file is below the folder, and what a part is in is one of them, with size and hash."""
    paths = {file.path for file in rank.files}
    for path in paths:
        if not is_below(path):
            raise ValueError(f"it names {path!r}, which is not below its folder")
    for part, entry in rank.parts.items():
        if stray := sorted(set(entry.files) - paths):
            raise ValueError(f"its {part.value} is in {stray[0]!r}, of which it has no hash")


def read_note(data: bytes) -> Note:
    """Reads a note.

    Raises:
        ValueError: It is none.
    """
    note = _decoded(_notes, data)
    if note.schema != NOTE_SCHEMA:
        raise ValueError(f"its schema is {note.schema!r}, expected {NOTE_SCHEMA!r}")
    return note


def is_below(path: str) -> bool:
    """Whether a path is relative, plain, and stays below the folder that it is relative to."""
    parts = path.split("/")
    return bool(path) and "\0" not in path and not {"", ".", ".."} & set(parts)


def _decoded(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {error}") from error
