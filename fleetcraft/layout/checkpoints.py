"""The paths of a folder of checkpoints, which may lie anywhere.

Pure text, as all of the layout. Invariant: only ``step-N`` is a committed checkpoint; what is being
written, retired or quarantined has another name, so no reader can take it for one.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

MANIFEST = "COMMITTED.json"
"""The marker, which is the manifest: inside the folder, so it survives copying."""
LOADED = "LOADED.json"
SHARED = "shared"
"""Beside the ranks' own folders: where writers that name their files themselves put them."""
CONTINUED = "CONTINUED.json"
_STEP = re.compile(r"step-(\d{9,18})")
_UNFINISHED = re.compile(r"step-(\d{9,18})\.tmp\.(\d{1,18})\.([A-Za-z0-9]{4,64})")
_AGREEMENT = re.compile(
    r"(\d{1,18})\.(\d{1,18})\.([0-9a-f]{16})\.(\d{1,9})(?:\.[0-9a-f]{12}\.tmp)?"
)
_DONE = re.compile(r"rank-(\d{5,9})\.done\.json")
NONCE = re.compile(r"[A-Za-z0-9]{4,64}")


class Unfinished(NamedTuple):
    """What the name of a save that is being written says."""

    step: int
    generation: int
    nonce: str


class Agreed(NamedTuple):
    """What the name of an agreement says, or of one that was cut short as it was published."""

    step: int
    generation: int
    launch: str
    number: int


class StorePaths:
    """The paths of one folder of checkpoints."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self.saving = f"{self.folder}/saving"
        self.retired = f"{self.folder}/retired"
        self.quarantine = f"{self.folder}/quarantine"
        self.owner = f"{self.folder}/owner"

    def folders(self) -> tuple[str, ...]:
        """Every folder that is made once, parents before children."""
        return (self.folder, self.saving, self.retired, self.quarantine, self.owner)

    def step(self, step: int) -> str:
        """A committed checkpoint."""
        return f"{self.folder}/{step_name(step)}"

    def unfinished(self, step: int, generation: int, nonce: str) -> str:
        """A save that is being written."""
        return f"{self.folder}/{step_name(step)}.tmp.{generation}.{nonce}"

    def agreement(self, step: int, generation: int, launch: str, count: int) -> str:
        """Where rank 0 says the nonce of a save to the other ranks of the same launch."""
        return f"{self.saving}/{step}.{generation}.{launch}.{count}"

    def retired_step(self, step: int, nonce: str) -> str:
        """A checkpoint or save that is being deleted; its record is beside it."""
        return f"{self.retired}/{step_name(step)}.{nonce}"

    def quarantined_step(self, step: int, nonce: str) -> str:
        """A checkpoint that was taken out of use, kept; the reason is beside it."""
        return f"{self.quarantine}/{step_name(step)}.{nonce}"


def step_name(step: int) -> str:
    """The folder name of a committed checkpoint."""
    return f"step-{step:09d}"


def parse_step(name: str) -> int | None:
    """The step of a committed checkpoint's folder name; None for anything else."""
    match = _STEP.fullmatch(name)
    # Further zeros would give one step a second name.
    return int(match[1]) if match and step_name(int(match[1])) == name else None


def parse_unfinished(name: str) -> Unfinished | None:
    """Step, generation and nonce of a save that is being written; None for anything else."""
    match = _UNFINISHED.fullmatch(name)
    return Unfinished(int(match[1]), int(match[2]), match[3]) if match else None


def parse_agreement(name: str) -> Agreed | None:
    """Of which save an agreement is; None for anything else."""
    match = _AGREEMENT.fullmatch(name)
    return Agreed(int(match[1]), int(match[2]), match[3], int(match[4])) if match else None


def rank_folder(rank: int) -> str:
    """Where one rank writes, relative to the save's folder."""
    return f"rank-{rank:05d}"


def rank_done(rank: int) -> str:
    """The record that one rank has written everything, relative to the save's folder."""
    return f"rank-{rank:05d}.done.json"


def parse_rank_done(name: str) -> int | None:
    """The rank of such a record's name; None for anything else."""
    match = _DONE.fullmatch(name)
    return int(match[1]) if match else None


def record_of(path: str) -> str:
    """The record beside a retired or quarantined checkpoint."""
    return f"{path}.json"
