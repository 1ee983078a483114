"""What a transaction writes beside its intent and its commit, and where.

Records and new names; nothing is moved here, and how names are spelled is the layout's. Invariant:
a transaction's name has its version and its lock's generation, and is never used twice.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fleetcraft.identity import new_launch_token
from fleetcraft.layout.rollouts import RolloutPaths, TransactionName, commit_source
from fleetcraft.rollouts.records import Member

PREPARED_SCHEMA = "fleetcraft.rollout-prepared/1"
ROLLED_BACK_SCHEMA = "fleetcraft.rollout-rolled-back/1"


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


def new_name(version: int, generation: int) -> TransactionName:
    """A name that nothing had before."""
    return TransactionName(version, generation, new_launch_token())


def new_token() -> str:
    """Tells one pass over dead transactions from any other."""
    return new_launch_token()


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
        self.prepared = paths.prepared(str(name))
        self.rolled_back = paths.rolled_back(str(name))
        self.commit = paths.commit(name.version)
        self.commit_source = commit_source(self.folder)
        self.consumed = paths.consumed_folder(name.version)
