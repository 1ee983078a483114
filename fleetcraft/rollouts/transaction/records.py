"""What a transaction writes beside its intent and its commit, and what it is called.

Records and names; nothing is moved here. Invariant: a transaction's name has its version and its
lock's generation, and is never used twice.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

import msgspec

from fleetcraft.identity import new_launch_token
from fleetcraft.layout.rollouts import RolloutPaths
from fleetcraft.rollouts.records import Member

PREPARED_SCHEMA = "fleetcraft.rollout-prepared/1"
ROLLED_BACK_SCHEMA = "fleetcraft.rollout-rolled-back/1"
_NAME = re.compile(r"v(\d{6,})-(\d+)-([A-Za-z0-9]+)")


class TransactionState(StrEnum):
    """How far a transaction came. What dies before COMMITTED is undone; after it, redone."""

    OPEN = "open"
    CLAIMED = "claimed"
    AUDITED = "audited"
    GROUPED = "grouped"
    COMPUTED = "computed"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint is written that its transaction's commit would name.

    Without that commit it is never a checkpoint to start from. ``gpu_s`` is what the trainer had
    cost until then, None when nobody measured it; ``at`` is for people.
    """

    schema: str = PREPARED_SCHEMA
    transaction: str
    version: int
    generation: int
    nonce: str
    checkpoint: str
    checkpoint_sha256: str
    gpu_s: float | None = None
    at: str = ""


class RolledBack(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that committed nothing: what it tried, why not, and what it cost all the same.

    Attributes:
        schema: `ROLLED_BACK_SCHEMA`.
        transaction: Its name.
        version: The version that it would have made.
        generation: Of the lock under which it ran.
        nonce: Of whoever undid it.
        by_generation: Of the lock under which it was undone.
        why: A sentence.
        members: What it meant to consume; empty where its intent was never published.
        refused: The records of it that went to quarantine, as they are called there.
        gpu_s: GPU-seconds of the trainer that it cost; None when nobody measured them. What its
            records cost is counted where they end.
        checkpoint: One that it had prepared, which is none to start from.
        checkpoint_sha256: Of that checkpoint's manifest.
        at: Wall clock, for people.
    """

    schema: str = ROLLED_BACK_SCHEMA
    transaction: str
    version: int
    generation: int
    nonce: str
    by_generation: int
    why: str
    members: tuple[Member, ...] = ()
    refused: tuple[str, ...] = ()
    gpu_s: float | None = None
    checkpoint: str = ""
    checkpoint_sha256: str = ""
    at: str = ""


class TransactionName(NamedTuple):
    """What a transaction's name says."""

    version: int
    generation: int
    nonce: str

    def __str__(self) -> str:
        return f"v{self.version:06d}-{self.generation}-{self.nonce}"


def new_name(version: int, generation: int) -> TransactionName:
    """A name that nothing had before."""
    return TransactionName(version, generation, new_launch_token())


def new_token() -> str:
    """Tells one pass over dead transactions from any other."""
    return new_launch_token()


def parse_transaction(text: str) -> TransactionName | None:
    """Reads the name of a transaction; None for anything else."""
    found = _NAME.fullmatch(text)
    return TransactionName(int(found[1]), int(found[2]), found[3]) if found else None


class Places:
    """Where the files of one transaction lie.

    The commit is prepared inside the claim folder and linked from there to its name: whoever
    renames the folder away has made a late commit impossible.

    Args:
        paths: Of the queue.
        name: Of the transaction.
    """

    def __init__(self, paths: RolloutPaths, name: TransactionName) -> None:
        self.folder = paths.claim_folder(str(name))
        self.intent = paths.intent(str(name))
        self.prepared = paths.intent(f"{name}.prepared")
        self.rolled_back = paths.intent(f"{name}.rolled-back")
        self.commit = paths.commit(name.version)
        self.consumed = paths.consumed_folder(name.version)

    @property
    def commit_source(self) -> str:
        """The commit before it is one."""
        return commit_source(self.folder)


def commit_source(folder: str) -> str:
    """Where a claim folder, fenced or not, holds the commit that was about to be published."""
    return f"{folder}/commit.json"


def fenced_folder(paths: RolloutPaths, name: TransactionName, generation: int, token: str) -> str:
    """What a claim folder is renamed to before it is decided what becomes of it."""
    return paths.claim_folder(f"{name}.{generation}-{token}")


def fenced_by(folder: str) -> int | None:
    """The generation under which a claim folder was fenced; None for one that was not."""
    fence = folder.rpartition("/")[2].partition(".")[2].partition("-")[0]
    return int(fence) if fence.isdecimal() else None


def transaction_of_folder(entry: str) -> TransactionName | None:
    """The transaction to which a folder among the claims belongs, fenced or not."""
    return parse_transaction(entry.partition(".")[0])


class Kind(StrEnum):
    """What a file among the transactions is."""

    INTENT = ""
    PREPARED = "prepared"
    ROLLED_BACK = "rolled-back"


def parse_file(file_name: str) -> tuple[TransactionName, Kind] | None:
    """Reads the name of a file among the transactions; None for anything else."""
    if not file_name.endswith(".json"):
        return None
    text, _, kind = file_name.removesuffix(".json").partition(".")
    name = parse_transaction(text)
    if name is None or kind not in Kind.__members__.values():
        return None
    return name, Kind(kind)
