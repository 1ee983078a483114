"""The paths of a trajectory queue, and every name that a file of it can have.

Pure text, as all of the layout. Invariant: a record's name says its version and identity, so
counting needs no look into it; each kind of name is read here by what writes it.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import NamedTuple

_ROLLOUT = re.compile(r"v([0-9]{6,})\.([A-Za-z0-9_-]+)\.([0-9]{8,})\.([0-9]{3,})\.json")
_HALF = re.compile(r"(v.+\.json)\.([0-9]+)\.([0-9a-f]{12})")
_RESERVATION = re.compile(r"([A-Za-z0-9_-]+)\.([0-9]{8,})\.([0-9]{3,})\.([0-9]+)(\.asked)?")
_IDENT = re.compile(r"([0-9]{8,})\.([0-9]{3,})")
_TRANSACTION = re.compile(r"v([0-9]{6,})-([0-9]+)-([A-Za-z0-9]+)")
_COMMIT = re.compile(r"v([0-9]{6,})\.json")
_JSON = ".json"
_ASKED = ".asked"
_REASON = ".reason"
_TEMPORARY = ".tmp"

Place = tuple[str, int, int]
"""Stream, sequence, sample: an identity within one queue."""


class RolloutPaths:
    """The paths of one trajectory queue; folders are the states, names carry what is counted.

    A stream has no dot in its name. ``v000012.seed6.00000031.002.json`` is sample 2 of sequence
    number 31 of stream ``seed6``, begun under policy version 12.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.settings = f"{self.folder}/queue.json"
        self.tmp = f"{self.folder}/tmp"
        self.pending = f"{self.folder}/pending"
        self.reserved = f"{self.folder}/reserved"
        self.claimed = f"{self.folder}/claimed"
        self.consumed = f"{self.folder}/consumed"
        self.quarantine = f"{self.folder}/quarantine"
        self.ident = f"{self.folder}/ident"
        self.streams = f"{self.folder}/streams"
        self.beats = f"{self.folder}/hb"
        self.transactions = f"{self.folder}/txn"
        self.commits = f"{self.folder}/commits"
        self.control = f"{self.folder}/control"
        self.trainer_lock = f"{self.folder}/lock"
        self.abort_marker = f"{self.control}/ABORT"

    def folders(self) -> tuple[str, ...]:
        """Every folder of a queue, parents before children."""
        return (
            self.folder, self.tmp, self.pending, self.reserved, self.claimed, self.consumed,
            self.quarantine, self.ident, self.streams, self.beats, self.transactions, self.commits,
            self.control, self.trainer_lock,
        )  # fmt: skip

    def ident_folder(self, stream: str) -> str:
        """The identities that one stream has published, for ever."""
        return f"{self.ident}/{stream}"

    def ident_file(self, stream: str, sequence: int, sample: int) -> str:
        """One identity: the record's second name, which stays when the record is consumed."""
        return f"{self.ident}/{stream}/{sequence:08d}.{sample:03d}"

    def stream(self, stream: str) -> str:
        """The lease of one stream: a generation lock's folder."""
        return f"{self.streams}/{stream}"

    def half_published(self, name: RolloutName, generation: int, digest: str) -> str:
        """A record on its way to ``pending``, by one holder of its stream and one content."""
        return f"{self.tmp}/{HalfName(name, generation, digest[:12])}"

    def reservation(self, name: ReservationName) -> str:
        """The empty file that is room for one record, or asks for it."""
        return f"{self.reserved}/{name}"

    def beat(self, stream: str) -> str:
        """The heartbeat of the worker that holds a stream."""
        return f"{self.beats}/{stream}{_JSON}"

    def beat_temporary(self, stream: str, token: str) -> str:
        """A heartbeat while it is written; the token is used once."""
        return f"{self.beats}/{stream}.{token}{_TEMPORARY}"

    def cleared_abort(self, date: str, token: str) -> str:
        """What an ABORT marker is called once it does not stand any more."""
        return f"{self.abort_marker}.cleared.{date}.{token}"

    def refused(self, name: str) -> str:
        """A refused record, or the reason beside it, by its name."""
        return f"{self.quarantine}/{name}"

    def claim_folder(self, transaction: str) -> str:
        """Where the records of one transaction lie until it is committed or undone."""
        return f"{self.claimed}/{transaction}"

    def intent(self, transaction: str) -> str:
        """What a transaction means to consume, before it moves anything."""
        return f"{self.transactions}/{transaction}{_JSON}"

    def prepared(self, transaction: str) -> str:
        """The checkpoint that a transaction has written and not yet committed."""
        return f"{self.transactions}/{transaction}.{Paper.PREPARED}{_JSON}"

    def rolled_back(self, transaction: str) -> str:
        """What became of a transaction that committed nothing."""
        return f"{self.transactions}/{transaction}.{Paper.ROLLED_BACK}{_JSON}"

    def fenced_folder(self, transaction: str, generation: int, token: str) -> str:
        """What a claim folder is renamed to before it is decided what becomes of it."""
        return f"{self.claimed}/{transaction}.{generation}-{token}"

    def commit(self, version: int) -> str:
        """The one commit that made a policy version."""
        return f"{self.commits}/v{version:06d}{_JSON}"

    def consumed_folder(self, version: int) -> str:
        """The records that a version was trained on."""
        return f"{self.consumed}/v{version:06d}"


class RolloutName(NamedTuple):
    """What a rollout record's file name says."""

    version: int
    stream: str
    sequence: int
    sample: int

    def __str__(self) -> str:
        return f"v{self.version:06d}.{self.stream}.{self.sequence:08d}.{self.sample:03d}{_JSON}"

    @property
    def place(self) -> Place:
        """The identity within its queue."""
        return self.stream, self.sequence, self.sample


def parse_rollout(file_name: str) -> RolloutName | None:
    """Reads the name of a rollout record; None for anything else."""
    found = _ROLLOUT.fullmatch(file_name)
    if found is None:
        return None
    name = RolloutName(int(found[1]), found[2], int(found[3]), int(found[4]))
    # Another spelling of the same numbers would be counted and never found.
    return name if str(name) == file_name else None


class HalfName(NamedTuple):
    """What the name of a record in ``tmp`` says.

    Attributes:
        name: What it will be called.
        generation: Of the lease under which it was written.
        digest: The first 12 digits of its own.
    """

    name: RolloutName
    generation: int
    digest: str

    def __str__(self) -> str:
        return f"{self.name}.{self.generation}.{self.digest}"


def parse_half(file_name: str) -> HalfName | None:
    """Reads the name of a record in ``tmp``; None for anything else."""
    found = _HALF.fullmatch(file_name)
    name = parse_rollout(found[1]) if found else None
    return HalfName(name, int(found[2]), found[3]) if found and name else None


class ReservationName(NamedTuple):
    """What the name of a reservation says.

    Attributes:
        stream: With ``sequence`` and ``sample``, the identity.
        sequence: See ``stream``.
        sample: See ``stream``.
        generation: Of the lease.
        asked: Whether it is only asked for, and may be withdrawn.
    """

    stream: str
    sequence: int
    sample: int
    generation: int
    asked: bool = False

    def __str__(self) -> str:
        name = f"{self.stream}.{self.sequence:08d}.{self.sample:03d}.{self.generation}"
        return name + _ASKED if self.asked else name

    @property
    def place(self) -> Place:
        """The identity within its queue."""
        return self.stream, self.sequence, self.sample


def parse_reservation(file_name: str) -> ReservationName | None:
    """Reads the name of a reservation; None for anything else."""
    found = _RESERVATION.fullmatch(file_name)
    if found is None:
        return None
    return ReservationName(found[1], int(found[2]), int(found[3]), int(found[4]), bool(found[5]))


def parse_ident(file_name: str) -> tuple[int, int] | None:
    """Sequence and sample of an identity; None for anything else."""
    found = _IDENT.fullmatch(file_name)
    return (int(found[1]), int(found[2])) if found else None


def parse_beat(file_name: str) -> str | None:
    """The stream whose beat this is; None for anything else."""
    return file_name.removesuffix(_JSON) if file_name.endswith(_JSON) else None


def is_beat_temporary(file_name: str, stream: str) -> bool:
    """Whether this is a beat of a stream that was not written whole."""
    return file_name.startswith(f"{stream}.") and file_name.endswith(_TEMPORARY)


class TransactionName(NamedTuple):
    """What a transaction's name says."""

    version: int
    generation: int
    nonce: str

    def __str__(self) -> str:
        return f"v{self.version:06d}-{self.generation}-{self.nonce}"


def parse_transaction(text: str) -> TransactionName | None:
    """Reads the name of a transaction; None for anything else."""
    found = _TRANSACTION.fullmatch(text)
    return TransactionName(int(found[1]), int(found[2]), found[3]) if found else None


def transaction_of_folder(entry: str) -> TransactionName | None:
    """The transaction to which a folder among the claims belongs, fenced or not."""
    return parse_transaction(entry.partition(".")[0])


def fenced_by(folder: str) -> int | None:
    """The generation under which a claim folder was fenced; None for one that was not."""
    fence = folder.rpartition("/")[2].partition(".")[2].partition("-")[0]
    return int(fence) if fence.isdecimal() else None


def commit_source(folder: str) -> str:
    """Where a claim folder, fenced or not, holds the commit that was about to be published."""
    return f"{folder}/commit{_JSON}"


class Paper(StrEnum):
    """What a file among the transactions is."""

    INTENT = ""
    PREPARED = "prepared"
    ROLLED_BACK = "rolled-back"


def parse_paper(file_name: str) -> tuple[TransactionName, Paper] | None:
    """Reads the name of a file among the transactions; None for anything else."""
    if not file_name.endswith(_JSON):
        return None
    text, _, kind = file_name.removesuffix(_JSON).partition(".")
    name = parse_transaction(text)
    if name is None or kind not in Paper.__members__.values():
        return None
    return name, Paper(kind)


def parse_commit(file_name: str) -> int | None:
    """The version that a commit made; None for any other file."""
    found = _COMMIT.fullmatch(file_name)
    return int(found[1]) if found else None


class RefusedName(NamedTuple):
    """What the name of a record in quarantine says.

    Attributes:
        file: What it was called.
        refusal: Why it was refused.
        token: Tells it from any other of that name.
    """

    file: str
    refusal: str
    token: str

    def __str__(self) -> str:
        return f"{self.file.removesuffix(_JSON)}.{self.refusal}.{self.token}{_JSON}"

    @property
    def reason(self) -> str:
        """The name of the reason beside it."""
        return str(self).removesuffix(_JSON) + _REASON

    def requeued_reason(self, token: str) -> str:
        """What the reason is called once the record is back in ``pending``."""
        return f"{self.reason}.requeued.{token}{_REASON}"


def parse_refused_name(file_name: str) -> RefusedName | None:
    """Reads the name of a record in quarantine; None for anything else, reasons among it."""
    parts = file_name.removesuffix(_JSON).rsplit(".", 2)
    if not file_name.endswith(_JSON) or len(parts) != 3:
        return None
    return RefusedName(parts[0] + _JSON, parts[1], parts[2])
