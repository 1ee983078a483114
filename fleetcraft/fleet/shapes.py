"""The shape of a fleet, and the mark by which its jobs are known in the queue.

Text to structure and back; nothing is asked or submitted here. A renewal lane is one exact shape:
eight nodes for twelve hours and four nodes for twelve hours live independently, since under a cap
on nodes the larger one in the queue cannot replace the smaller one. Invariant: two shapes are the
same lane if and only if their keys are equal.
"""

from __future__ import annotations

import os
import re

import msgspec

from fleetcraft.errors import UsageError
from fleetcraft.identity import sha256_hex
from fleetcraft.units import format_clock, parse_duration_s

_SHAPE = re.compile(
    r"(?P<nodes>[1-9]\d{0,4})[xX](?P<time>[^@/]+)"
    r"(?:@(?P<partition>[A-Za-z0-9_.,-]{1,80}))?(?:/(?P<slots>[1-9]\d{0,3}|gpu))?"
)
_MARK = re.compile(
    r"fleetcraft root=(?P<root>[0-9a-f]{12})(?: lane=(?P<lane>\S+))?(?: intent=(?P<nonce>\w+))?"
)
_NAME = re.compile(r"fleet-(?P<root>[0-9a-f]{12})-(?P<nonce>\w+)")


class Shape(msgspec.Struct, frozen=True):
    """What one fleet asks for: nodes, walltime, and perhaps a partition and slots per worker."""

    nodes: int
    time_s: int
    partition: str = ""
    slots: str = ""

    def __str__(self) -> str:
        partition = f"@{self.partition}" if self.partition else ""
        slots = f"/{self.slots}" if self.slots else ""
        return f"{self.nodes}x{format_clock(self.time_s)}{partition}{slots}"

    @property
    def key(self) -> str:
        """The lane as part of a file name: ``8x43200s@gpu+2``."""
        partition = f"@{self.partition}" if self.partition else ""
        slots = f"+{self.slots}" if self.slots else ""
        return f"{self.nodes}x{self.time_s}s{partition}{slots}"

    @property
    def limit_s(self) -> int:
        """The walltime as Slurm gives it: whole minutes, rounded up."""
        return -(-self.time_s // 60) * 60

    @property
    def node_h(self) -> float:
        """Node-hours of one fleet that uses its whole walltime."""
        return self.nodes * self.limit_s / 3600


def parse_shape(text: str) -> Shape:
    """Reads ``NODESxWALLTIME[@PARTITION][/SLOTS]``, such as ``8x12:00:00`` or ``4x90m@gpu/4``.

    Raises:
        UsageError: The text is no shape.
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"not a lane: {text!r}",
            hint="write NODESxWALLTIME[@PARTITION][/SLOTS], such as 8x12:00:00 or 4x90m@gpu/4",
            lane=text,
        )
    return Shape(
        nodes=int(match["nodes"]),
        time_s=parse_duration_s(match["time"]),
        partition=match["partition"] or "",
        slots=match["slots"] or "",
    )


def parse_lanes(texts: list[str]) -> list[Shape]:
    """Reads lanes in their order; one that is named twice counts once.

    Raises:
        UsageError: One of them is no shape.
    """
    return list({shape.key: shape for shape in map(parse_shape, texts)}.values())


class Mark(msgspec.Struct, frozen=True):
    """What the comment of a fleet's job says: whose it is and, of a renewal, which intent's.

    ``lane`` and ``nonce`` are empty for fleets that a person launched.
    """

    root: str
    lane: str = ""
    nonce: str = ""

    def __str__(self) -> str:
        lane = f" lane={self.lane}" if self.lane else ""
        intent = f" intent={self.nonce}" if self.nonce else ""
        return f"fleetcraft root={self.root}{lane}{intent}"


def root_mark(root: str) -> str:
    """The name of a scratch tree in job comments: 12 hex digits of its real path."""
    return sha256_hex(os.path.realpath(root).encode("utf-8", "surrogateescape"))[:12]


def renewal_name(root: str, nonce: str) -> str:
    """What a renewal's job is called: some sites write comments of their own over ours."""
    return f"fleet-{root}-{nonce}"


def read_renewal_name(name: str) -> Mark | None:
    """The mark in a renewal's job name, which has no lane; None of any other name."""
    match = _NAME.fullmatch(name)
    return Mark(match["root"], nonce=match["nonce"]) if match else None


def read_mark(comment: str) -> Mark | None:
    """The mark in a job's comment, wherever it stands; None where there is none."""
    match = _MARK.search(comment)
    if match is None:
        return None
    return Mark(match["root"], match["lane"] or "", match["nonce"] or "")
