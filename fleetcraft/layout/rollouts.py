"""The paths of a trajectory queue, and the names of its records.

Pure text, as all of the layout. Invariant: a record's name says its version and identity, so
counting needs no look into it.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_ROLLOUT = re.compile(r"v(\d{6,})\.([A-Za-z0-9_-]+)\.(\d{8,})\.(\d{3,})\.json")


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

    def beat(self, stream: str) -> str:
        """The heartbeat of the worker that holds a stream."""
        return f"{self.beats}/{stream}.json"

    def claim_folder(self, transaction: str) -> str:
        """Where the records of one transaction lie until it is committed or undone."""
        return f"{self.claimed}/{transaction}"

    def intent(self, transaction: str) -> str:
        """What a transaction means to consume, before it moves anything."""
        return f"{self.transactions}/{transaction}.json"

    def commit(self, version: int) -> str:
        """The one commit that made a policy version."""
        return f"{self.commits}/v{version:06d}.json"

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
        return f"v{self.version:06d}.{self.stream}.{self.sequence:08d}.{self.sample:03d}.json"


def parse_rollout(file_name: str) -> RolloutName | None:
    """Reads the name of a rollout record; None for anything else."""
    found = _ROLLOUT.fullmatch(file_name)
    return RolloutName(int(found[1]), found[2], int(found[3]), int(found[4])) if found else None
