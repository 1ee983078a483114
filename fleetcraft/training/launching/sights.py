"""What a look at a launch found: node by node, and as a whole.

Records and closed sets; nothing here looks. Invariant: a keeper that nobody could look at is
neither alive nor gone.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from fleetcraft.training.records import Keeper, LogFence, NodeEnd


class Whole(StrEnum):
    """A launch as a whole.

    ``STARTING``: not every keeper has reported yet, and what starts them lives. ``RUNNING``: none
    is known to be gone. ``ENDED``: every node has told its end. ``LOST``: a keeper is gone and has
    told no end. ``UNKNOWN``: it cannot be told.
    """

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    UNKNOWN = "unknown"


class NodeSight(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a launch.

    Attributes:
        node: Its name.
        keeper: Who keeps the command there; None before it has reported.
        alive: Whether that keeper lives: True, False (positively gone), None for unknown.
        end: How the command ended there; None while it has not, or was not told.
    """

    node: str
    keeper: Keeper | None = None
    alive: bool | None = None
    end: NodeEnd | None = None


class LaunchSight(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a launch found.

    Attributes:
        whole: All nodes together.
        nodes: Those that have reported, by name.
        expected: How many there should be.
        why: What makes it LOST or UNKNOWN; empty otherwise.
    """

    whole: Whole
    nodes: tuple[NodeSight, ...] = ()
    expected: int = 1
    why: str = ""

    @property
    def ends(self) -> tuple[NodeEnd, ...]:
        """The ends that were told, in the order of the nodes."""
        return tuple(node.end for node in self.nodes if node.end is not None)

    @property
    def clean(self) -> bool:
        """Whether every node has ended with nothing left."""
        return self.whole is Whole.ENDED and all(end.clean for end in self.ends)

    @property
    def exit_zero(self) -> bool:
        """Whether the command ended with 0 on every node."""
        return self.whole is Whole.ENDED and all(end.exit_code == 0 for end in self.ends)


class Answer(StrEnum):
    """What became of the launch that stands: the three answers of an adoption."""

    LIVE = "LIVE"
    DEAD = "DEAD"
    UNKNOWN = "UNKNOWN"


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """One log of an earlier supervisor's launch, or its beginning, in the archive.

    Attributes:
        log: Where it lay, or still lies when its writer lives.
        archive: Where it is now, or the copy of its beginning.
        moved: Whether it was moved (its writer is gone), not copied.
    """

    log: str
    archive: str
    moved: bool


class Fenced(msgspec.Struct, frozen=True, kw_only=True):
    """The books of an adoption: fences of living logs, and what lies in the archive."""

    fences: tuple[LogFence, ...] = ()
    archived: tuple[Archived, ...] = ()
