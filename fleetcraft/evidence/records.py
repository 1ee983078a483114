"""Records that all of evidence shares: kinds, levels, producers, sources, and origins of files.

What only one room writes is in that room. Invariant: a path in a record is relative to the folder
of the file that it stands in, or to a root that the record names; none is absolute.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

ORIGIN_SCHEMA = "fleetcraft.origin/1"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a manifest, grid, result set, gate or arm may be called."""
RERUN_VARIABLE = "FLEET_RERUN_OF"
"""Names, inside the task that repeats it, the task that is repeated."""
RERUN_SUFFIX = ".rerun"
"""Results of reruns go to the set of this name, beside what they repeat."""


class Level(StrEnum):
    """How well something was verified; each includes those before it."""

    NONE = "none"
    LISTED = "listed"
    SIZED = "sized"
    HASHED = "hashed"
    REREAD = "reread"
    """Hashed from the disk's own bytes, after the page cache was told to forget them."""


class Kind(StrEnum):
    """What a file is."""

    FIGURE = "figure"
    SUMMARY = "summary"
    RESULTS = "results"
    TELEMETRY = "telemetry"
    TABLE = "table"
    TASK = "task"
    LOG = "log"
    JOURNAL = "journal"
    CHECKPOINT = "checkpoint"
    VIDEO = "video"
    CONFIG = "config"
    CODE = "code"
    MANIFEST = "manifest"
    OTHER = "other"


class Producer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who made something; empty where that is not known.

    Attributes:
        task: The task's name.
        spool: ``outer`` or ``gpu``, or the spool's folder relative to the scratch tree.
        attempt: Its number; 0 outside a task.
        owner: The claim, ``<job>.<rank>.<slot>.<token>``.
        job: Slurm's job.
        step: Slurm's step of it.
        host: The node.
        gpus: The UUIDs that it was given.
        code_sha256: Digest of the code that ran, as whoever wrote the record defines it.
        grid_sha256: Digest of the frozen grid that it belongs to.
    """

    task: str = ""
    spool: str = ""
    attempt: int = 0
    owner: str = ""
    job: str = ""
    step: str = ""
    host: str = ""
    gpus: tuple[str, ...] = ()
    code_sha256: str = ""
    grid_sha256: str = ""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What something was made from: so many bytes of a file, from its beginning.

    A file that is only appended to can have grown since; its prefix is still the same.

    Attributes:
        path: Relative to the folder of the record's file, with ``..`` where it must.
        kind: What it is.
        size_bytes: How much of it was read.
        sha256: Of that prefix.
    """

    path: str
    kind: Kind = Kind.OTHER
    size_bytes: int
    sha256: str


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a file was made from; written beside it, and the same whenever it is made again.

    Attributes:
        schema: `ORIGIN_SCHEMA`.
        kind: What the file is.
        size_bytes: Of the file.
        sha256: Of the file.
        sources: What it was made from.
        made_by: The command or program, without paths of a machine.
        version: Of what made it.
        producer: Who ran it.
    """

    schema: str = ORIGIN_SCHEMA
    kind: Kind = Kind.OTHER
    size_bytes: int
    sha256: str
    sources: tuple[Source, ...] = ()
    made_by: str = ""
    version: str = ""
    producer: Producer = Producer()


def producer_here(environ: Mapping[str, str] | None = None) -> Producer:
    """Who this process is: the task that a worker has given it, and its place in Slurm.

    Args:
        environ: The environment; this process's own if None.
    """
    env = os.environ if environ is None else environ
    attempt = env.get("FLEET_ATTEMPT", "")
    root, spool = env.get("FLEET_ROOT", ""), env.get("FLEET_SPOOL", "")
    gpus = env.get("FLEET_GPUS", "")
    return Producer(
        task=env.get("FLEET_TASK", ""),
        spool=os.path.relpath(spool, root) if root and spool else "",
        attempt=int(attempt) if attempt.isdecimal() and len(attempt) < 19 else 0,
        owner=env.get("FLEET_OWNER", ""),
        job=env.get("SLURM_JOB_ID", ""),
        step=env.get("SLURM_STEP_ID", ""),
        host=os.uname().nodename,
        gpus=tuple(gpus.split(",")) if gpus else (),
        grid_sha256=env.get("FLEET_GRID", ""),
    )
