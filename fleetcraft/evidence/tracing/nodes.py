"""What a walk back from a figure has found: a tree of files, tasks and logs, each with a verdict.

Records and how they are summed up; the walk is in `trace`. Invariant: a tree is as good as the
worst of it, also of what is not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from fleetcraft.evidence.records import Kind, Level

TRACE_SCHEMA = "fleetcraft.trace/1"


class Standing(StrEnum):
    """How one thing stands to what was recorded of it; the worst comes first."""

    CHANGED = "changed"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """It could not be read, or it has not ended yet."""
    UNRECORDED = "unrecorded"
    """It is there, and nothing says what it was made from."""
    VERIFIED = "verified"


_ORDER = tuple(Standing)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a number rests on.

    Attributes:
        name: A file, as told from where the trace began; or a task.
        kind: What it is.
        verdict: How it stands to what was recorded of it.
        level: How well that is known.
        detail: In words, what was found.
        place: Where it was found when that is not where the record says, such as an archive.
        expected_bytes: As recorded; None where nothing was.
        found_bytes: Of the whole file as it is now.
        expected_sha256: As recorded; empty where nothing was.
        found_sha256: Of as many bytes as were recorded.
        children: What it was made from.
        left_out: Children that were looked at and are not shown; they stand no worse than those
            that are.
    """

    name: str
    kind: Kind
    verdict: Standing
    level: Level = Level.NONE
    detail: str = ""
    place: str = ""
    expected_bytes: int | None = None
    found_bytes: int | None = None
    expected_sha256: str = ""
    found_sha256: str = ""
    children: tuple[Node, ...] = ()
    left_out: int = 0


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(reversed(one.children))


def overall(node: Node) -> Standing:
    """The worst verdict of a tree."""
    return worst(one.verdict for one in walk(node))


def worst(verdicts: Iterable[Standing]) -> Standing:
    """The worst of some verdicts; verified when there is none."""
    return min(verdicts, key=_ORDER.index, default=Standing.VERIFIED)


def counts(node: Node) -> dict[str, int]:
    """Nodes of a tree by verdict, those that are shown."""
    found = Counter(one.verdict.value for one in walk(node))
    return {standing.value: found[standing.value] for standing in _ORDER}


def shown(children: Iterable[Node], limit: int) -> tuple[tuple[Node, ...], int]:
    """At most so many children, the worst of them for certain, and how many more there are."""
    every = list(children)
    if len(every) <= limit:
        return tuple(every), 0
    by_rank = sorted(range(len(every)), key=lambda i: _ORDER.index(overall(every[i])))
    kept = sorted(by_rank[:limit])
    return tuple(every[i] for i in kept), len(every) - limit
