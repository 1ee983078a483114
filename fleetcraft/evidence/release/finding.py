"""What a predicate of a gate finds, and the surroundings in which it looks.

Looks of other parts (telemetry, training) are handed in as functions. Invariant: every input is
named with its digest, so that it can be asked later whether it is still the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from fleetcraft.errors import ConfigError
from fleetcraft.evidence.digests import hash_file
from fleetcraft.evidence.records import Level
from fleetcraft.evidence.results.sets import ResultSet
from fleetcraft.layout.evidence import EvidencePaths
from fleetcraft.slurm.polls import Polls

Answer = tuple[bool | None, str]
"""Yes, no or unknown, and what it rests on."""


class InputKind(StrEnum):
    """What an input is."""

    FILE = "file"
    SET = "set"
    """A set of results; its digest is over all records."""
    TASKS = "tasks"
    """Tasks of a spool; the digest is over their records."""
    JOBS = "jobs"
    """Jobs of Slurm; the digest is over what the accounting said."""
    PAYLOAD = "payload"
    """The files that a manifest names; the digest is the manifest's root."""
    OUTPUTS = "outputs"
    """The files that results name; the digest is over their paths, sizes and digests."""
    WINDOW = "window"
    """The telemetry behind a frozen window; the digest is the window's file."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """What a predicate looked at.

    Attributes:
        kind: What it is.
        name: The path of a file, manifest or window, relative to the folder of kept gates; a set's
            name, for outputs with ``:`` and arms if not all; tasks as ``spool:glob``; jobs by
            number.
        sha256: Its digest.
        size_bytes: Of a file; None of others.
        folder: Where the files of a payload are, relative to the folder of kept gates.
        level: How closely a payload was looked at.
    """

    kind: InputKind
    name: str
    sha256: str
    size_bytes: int | None = None
    folder: str = ""
    level: Level = Level.NONE


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one predicate found.

    Attributes:
        verdict: Whether it holds; None when that is not known.
        found: What is there, in words.
        expected: What should be.
        inputs: What it rests on.
    """

    verdict: bool | None
    found: str
    expected: str
    inputs: tuple[Input, ...] = ()


def _not_here(path: str) -> Answer:
    return None, f"{path} cannot be looked at from here"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where predicates look.

    Attributes:
        paths: The evidence room; None without a scratch tree.
        base: The folder from which paths in the gate's file go.
        spools: Spool folders by name, ``outer`` and ``gpu``.
        polls: Makes what asks Slurm.
        window: Verifies a frozen window of telemetry.
        training_end: Says whether a run has reached its end.
        sets: Result sets that were read, so that all predicates of one decision see the same.
    """

    paths: EvidencePaths | None
    base: str
    spools: dict[str, str] = field(default_factory=dict)
    polls: Callable[[], Polls] = Polls
    window: Callable[[str], Answer] = _not_here
    training_end: Callable[[str], Answer] = _not_here
    sets: dict[str, ResultSet] = field(default_factory=dict)

    @property
    def room(self) -> EvidencePaths:
        """The evidence room.

        Raises:
            ConfigError: There is no scratch tree.
        """
        if self.paths is None:
            raise ConfigError(
                "nothing says where the scratch tree is, and this is kept there",
                hint="give --root DIR or set PROJECT_SCRATCH=DIR",
            )
        return self.paths

    def path(self, given: str) -> str:
        """A path of the gate's file."""
        return os.path.normpath(os.path.join(self.base, os.path.expanduser(given)))

    def spool(self, name: str) -> str:
        """A spool's folder.

        Raises:
            ConfigError: Nothing says where it is.
        """
        if not self.spools.get(name):
            raise ConfigError(f"nothing says where the {name} spool is", spool=name)
        return self.spools[name]

    @property
    def kept_from(self) -> str:
        """The folder from which inputs that are files are named."""
        return os.path.realpath(self.paths.gates if self.paths else self.base)

    def file_input(self, path: str) -> Input:
        """A file as an input.

        Raises:
            OSError: It cannot be read.
        """
        size_bytes, sha256 = hash_file(path)
        name = self.kept_name(path)
        return Input(kind=InputKind.FILE, name=name, sha256=sha256, size_bytes=size_bytes)

    def kept_name(self, path: str) -> str:
        """A path as the inputs of a kept pass name it."""
        return os.path.relpath(os.path.realpath(path), self.kept_from)


def worst(verdicts: list[bool | None]) -> bool | None:
    """No before unknown before yes."""
    if False in verdicts:
        return False
    return None if None in verdicts else True


def some(items: list[str], most: int = 5) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
