"""How deep the spool was, noted in journals: so that a load never stands without the work for it.

Every ``depth_every_s`` one worker of a fleet counts, in its turn by the clock, without asking the
others. Invariant: it is for reading only, costs at most a fiftieth of a worker's time, and a spool
that cannot be counted stops nothing.
"""

from __future__ import annotations

import time

from fleetcraft.errors import FleetError
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.spool.views import counts
from fleetcraft.worker.diary import Diary
from fleetcraft.worker.settings import WorkerSettings

_DUTY = 50


class DepthNotes:
    """The turns of one worker.

    Args:
        tree: The spool.
        diary: Where the counts are noted; or, once, that they cannot be had.
        settings: The worker's: its rank, and how many ranks share the turns. Those of a worker
            that is gone are left out.
        in_pack: Whether it is a pack, which may be the only one of its ranks.
    """

    def __init__(
        self, tree: SpoolTree, diary: Diary, settings: WorkerSettings, *, in_pack: bool
    ) -> None:
        self._tree = tree
        self._diary = diary
        self._ranks = max(1, settings.ranks)
        self._rank = settings.rank % self._ranks
        self._every_s = settings.depth_every_s
        self._begins = self._rank == 0 or in_pack
        self._noted = False
        self._rest_until = 0.0
        self._plan_next()

    def arrive(self) -> None:
        """Counts at once for the first rank, so that there is a beginning."""
        if self._begins:
            self.look()

    def due_at(self) -> float:
        """The monotonic time of its next turn."""
        return self._due_at

    def look_if_due(self) -> None:
        """Counts and writes when it is its turn."""
        if time.monotonic() >= self._due_at:
            self.look()

    def look(self) -> None:
        """Counts and writes now, unless the last count took so long that a pause is due."""
        began = time.monotonic()
        if began >= self._rest_until:
            try:
                self._diary.depth(counts(self._tree))
            except (OSError, FleetError) as error:
                self._note_once(f"the spool's depth cannot be counted: {describe_problem(error)}")
            now = time.monotonic()
            self._rest_until = now + _DUTY * (now - began)
        self._plan_next()

    def _plan_next(self) -> None:
        wall_s, now = time.time(), time.monotonic()
        self._due_at = now + seconds_to_turn(wall_s, self._rank, self._ranks, self._every_s)
        while self._due_at < self._rest_until:
            self._due_at += self._every_s * self._ranks

    def _note_once(self, text: str) -> None:
        if not self._noted:
            self._diary.note(text)
        self._noted = True


def seconds_to_turn(wall_s: float, rank: int, ranks: int, every_s: float) -> float:
    """Seconds until the next turn of a rank begins, more than 0.

    Turns are counted since 1970, and turn ``n`` is that of rank ``n % ranks``.
    """
    turn = int(wall_s // every_s)
    next_turn = turn + 1 + (rank - turn - 1) % ranks
    return next_turn * every_s - wall_s
