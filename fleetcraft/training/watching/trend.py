"""Whether a process still does something: CPU time and bytes over the last looks.

Pure numbers from censuses. Invariant: two looks of different depth are never subtracted from each
other, and without two looks nothing is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from fleetcraft.training.records import RankState
from fleetcraft.training.watching.census import RankSight

WINDOW_LOOKS = 10
BUSY_FRACTION = 0.02
"""CPU time over elapsed time from which a process works. Source: our choice; the background threads
of an idle torch process stay below 1 percent."""
BUSY_BYTES_PER_S = 4096.0
"""Bytes read or written from which it moves data: more than a stuck one's log lines."""


class Doing(NamedTuple):
    """What a rank did over the last looks; None where that is not known.

    Attributes:
        advances: Whether CPU time or bytes advanced.
        waits_for_io: Whether it was in state D at every look and moved no bytes.
    """

    advances: bool | None = None
    waits_for_io: bool | None = None


class _Look(NamedTuple):
    at_s: float
    process: object
    closely: bool
    cpu_s: float
    io_bytes: int | None
    state: str


def _continues(before: _Look, now: _Look) -> bool:
    return before.process == now.process and before.closely == now.closely


class Trends:
    """The last looks at every rank."""

    def __init__(self) -> None:
        self._looks: dict[int, deque[_Look]] = {}

    def note(self, states: Sequence[RankState], now_s: float) -> None:
        """Takes one census."""
        for state in states:
            if state.cpu_s is None:
                self._looks.pop(state.rank, None)
                continue
            closely = isinstance(state, RankSight) and state.closely
            moved = state.io_bytes if isinstance(state, RankSight) else None
            look = _Look(now_s, state.process, closely, state.cpu_s, moved, state.state)
            looks = self._looks.get(state.rank)
            if looks is None or not _continues(looks[-1], look):
                looks = self._looks[state.rank] = deque(maxlen=WINDOW_LOOKS)
            looks.append(look)

    def doing(self, rank: int) -> Doing:
        """What a rank did over its last looks."""
        looks = self._looks.get(rank)
        if looks is None or len(looks) < 2 or looks[-1].at_s <= looks[0].at_s:
            return Doing()
        first, last = looks[0], looks[-1]
        span_s = last.at_s - first.at_s
        bytes_move = None
        if first.io_bytes is not None and last.io_bytes is not None:
            bytes_move = last.io_bytes - first.io_bytes >= BUSY_BYTES_PER_S * span_s
        advances = last.cpu_s - first.cpu_s >= BUSY_FRACTION * span_s or bool(bytes_move)
        return Doing(
            advances=advances,
            waits_for_io=not bytes_move and all(look.state == "D" for look in looks),
        )
