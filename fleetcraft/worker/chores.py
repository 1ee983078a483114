"""What a worker does beside its tasks: markers, walltime, recovery, promotion, at their own pace.

Invariant: no chore stops or starts a task; it returns what should be done, and the loop does it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetcraft.errors import FleetError
from fleetcraft.identity import Owner
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.recovery import (
    AskOwner,
    Liveness,
    RememberedLeases,
    Verdict,
    ask_this_machine,
    recover,
)
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.worker.depth import DepthNotes
from fleetcraft.worker.limits import Walltime
from fleetcraft.worker.pack import OuterTask
from fleetcraft.worker.survivors import stop_survivors

_RECOVER_EVERY_S = 60.0
_RECOVER_CROWD = 1_000
_RECOVER_SELDOM = 10


@dataclass(frozen=True, slots=True)
class Order:
    """What a chore wants: leave, or leave at once by interrupting what runs."""

    reason: str
    interrupt: bool = False


class Chores:
    """The chores of one worker.

    Args:
        tree: The spool.
        lease: The worker's own.
        rank: The worker's place among those that share the spool.
        ranks: How many those are; many of them look after it more seldom, each.
        held: Gives the tokens of the claims that the worker holds now.
        markers_every_s: Pause between looks at the markers.
        walltime: What is left of the allocation.
        depth: The turns at which the spool's depth is noted.
        note: Told what a person should know.
        outer: The task that this worker is, if it is a pack.
    """

    def __init__(
        self,
        tree: SpoolTree,
        *,
        lease: Lease,
        rank: int = 0,
        ranks: int = 1,
        held: Callable[[], set[str]],
        markers_every_s: float,
        walltime: Walltime,
        depth: DepthNotes,
        note: Callable[[str], None],
        outer: OuterTask | None = None,
    ) -> None:
        self._tree = tree
        self._launch = lease.launch
        self._leases = RememberedLeases((lease.job, lease.rank))
        crowd = min(_RECOVER_SELDOM, max(1.0, ranks / _RECOVER_CROWD))
        self._recover_every_s = _RECOVER_EVERY_S * crowd
        self._held = held
        self._markers_every_s = markers_every_s
        self._walltime = walltime
        self._depth = depth
        self._note = note
        self._outer = outer
        self._promoter = Promoter(tree, rank, ranks)
        self._next_markers = 0.0
        self._next_promote = 0.0
        # The first pass comes soon: an earlier fleet may have left claims behind.
        self._next_recover = time.monotonic() + self._recover_every_s * random.uniform(0.0, 0.1)

    def due_at(self, *, leaving: bool) -> float:
        """The monotonic time of the next chore."""
        limits = min(self._next_markers, self._walltime.next_limit_at())
        if leaving:
            return limits
        return min(limits, self._next_recover, self._next_promote, self._depth.due_at())

    def task_done(self, name: str) -> None:
        """Promotes what waited for a task that this worker just completed."""
        try:
            self._promoter.finished(name)
        except (OSError, FleetError) as error:
            self._note(f"what waits for {name!r} is promoted later: {describe_problem(error)}")

    def look_at_limits(self) -> Order | None:
        """Obeys the walltime, and STOP and DRAIN when it is time to look."""
        now = time.monotonic()
        order = self._walltime_order()
        if now < self._next_markers or (order and order.interrupt):
            return order
        self._next_markers = now + self._markers_every_s * random.uniform(0.8, 1.2)
        return self._marker_order() or order

    def _marker_order(self) -> Order | None:
        if self._outer is not None and (why := self._outer.over()):
            return Order(why, interrupt=True)
        paths = self._tree.paths
        try:
            if self._tree.fs.exists(paths.stop_marker):
                said = read_markers(self._tree).get("STOP", "")
                return Order(f"STOP marker, {said}", interrupt=True)
            if self._tree.fs.exists(paths.drain_marker):
                return Order(f"DRAIN marker, {read_markers(self._tree).get('DRAIN', '')}")
        except OSError as error:
            self._note(f"markers cannot be seen: {describe_problem(error)}")
        return None

    def _walltime_order(self) -> Order | None:
        if self._walltime.must_interrupt():
            return Order("the walltime is nearly over", interrupt=True)
        if self._walltime.must_drain():
            return Order("the walltime left is below the drain margin")
        return None

    def tend_the_spool(self) -> bool:
        """Recovers, promotes and counts, when it is time to; whether tasks became claimable."""
        now = time.monotonic()
        self._depth.look_if_due()
        if now >= self._next_recover:
            self._next_recover = now + self._recover_every_s * random.uniform(0.8, 1.2)
            self._recover()
        return self.promote() if now >= self._next_promote else False

    def _recover(self) -> None:
        try:
            self._leases.begin_pass()
            report = recover(
                self._tree,
                self._asker(),
                stop_survivors=stop_survivors,
                read_lease=self._leases.read,
            )
        except OSError as error:
            self._note(f"the recovery pass failed: {describe_problem(error)}")
            return
        for item in report.items:
            if item.to:
                self._note(f"{item.action} {item.task!r} to {item.to}: {item.reason}")

    def _asker(self) -> AskOwner:
        held = self._held()
        of_others = ask_this_machine()

        def ask(owner: Owner, lease: Lease | None) -> Verdict:
            if owner.launch != self._launch:
                return of_others(owner, lease)
            if owner.token in held:
                return Verdict(liveness=Liveness.ALIVE, reason="it runs here", on_this_host=True)
            # The rename of its claim was reported as failed, or its end could not be carried out.
            why = "its own worker does not run it"
            return Verdict(liveness=Liveness.GONE, reason=why, on_this_host=True)

        return ask

    def promote(self, *, anyway: bool = False) -> bool:
        """Promotes what is ready, now; says whether tasks became claimable.

        Of many workers each keeps its pauses: all of them together look often enough. One that is
        about to leave looks ``anyway``, and at all: it may be the last.
        """
        started = time.monotonic()
        if not anyway and self._promoter.is_one_of_many and started < self._next_promote:
            return False
        promoted: list[str] = []
        try:
            promoted = self._promoter.sweep() if anyway else self._promoter.refresh()
        except (OSError, FleetError) as error:
            self._note(f"waiting tasks cannot be promoted: {describe_problem(error)}")
        now = time.monotonic()
        pause_s = self._promoter.pause_s(now - started)
        self._next_promote = now + pause_s * random.uniform(0.8, 1.2)
        return bool(promoted)
