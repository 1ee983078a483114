"""Taking the next task for a slot: list, judge from the header, pass the gate, claim.

Invariant: the gate is entered before the claim, so that no claimed task waits for a node that it
cannot have yet.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from fleetcraft.errors import IntegrityError, UnsafeSpoolError
from fleetcraft.identity import Owner
from fleetcraft.layout import Lane
from fleetcraft.spool.claims import Claim, Known, claim
from fleetcraft.spool.grid import LastLane
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.queue import Candidate, Queue
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker.batch_order import NO_BATCH, BatchOrder
from fleetcraft.worker.eligibility import Eligibility
from fleetcraft.worker.settings import WorkerSettings
from fleetcraft.worker.slots import Slot

if TYPE_CHECKING:
    from fleetcraft.worker.batches import Batches

_FOREVER = float("inf")
_LAST = Lane.LAST
_ERROR_PAUSE_S = 30.0
# A link, a folder, a name too long for a claim: no record, and none later. Other errors, such as
# ESTALE or EIO of a mount that is away for a while, say nothing about the task.
_ERRORS_OF_ONE_FILE = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.ENXIO})
"""Its name is too long; it is no regular file; it is far too large. The spool itself is well."""
_ERRORS_THAT_STAY = frozenset(
    {errno.ELOOP, errno.EISDIR, errno.EACCES, errno.EPERM, *_ERRORS_OF_ONE_FILE}
)


class Nothing(Enum):
    """Why there is no task for a slot."""

    CLAIMABLE = "a whole walk found nothing claimable"
    THROUGH_THE_GATE = "the node's gate is shut for now"


class Claimer:
    """Claims for one worker.

    Args:
        tree: The spool.
        lease: The worker's, published before the first claim.
        queue: The order in which it meets tasks.
        eligibility: What it may claim.
        note: Told of records that are refused.
        settings: The worker's, for what it is told of the batch table.
    """

    def __init__(
        self,
        tree: SpoolTree,
        lease: Lease,
        queue: Queue,
        eligibility: Eligibility,
        note: Callable[[str], None],
        *,
        settings: WorkerSettings,
    ) -> None:
        self._tree = tree
        self._lease = lease
        self._queue = queue
        self._eligibility = eligibility
        self._note = note
        self._last_lane = LastLane(tree)
        self._settings = settings
        self._batches: Batches | None = None  # until a task names a family
        self._asking: Slot | None = None
        self._claims = 0

    def take(self, slot: Slot) -> Claim | Nothing:
        """Claims the next task that this slot may run; its gate is then held.

        Raises:
            OSError: The spool cannot be listed or renamed in now.
        """
        if self._asking is not None and self._still_asks(self._asking):
            return Nothing.THROUGH_THE_GATE
        if self._batches is not None:
            for name in self._batches.released():
                self._eligibility.take_up(name)
        for name in self._last_lane.released():
            self._eligibility.take_up(name)
        self._eligibility.begin_walk()
        self._queue.begin()
        while (candidate := self._queue.next()) is not None:
            if self._eligibility.passed_over(candidate.name):
                continue
            taken = self._try(slot, candidate)
            if taken is not None:
                return taken
        slot.gate.leave()
        return Nothing.CLAIMABLE

    def next_chance_s(self) -> float | None:
        """Seconds until a task that was passed over for a while may be claimed; None: no such."""
        return self._eligibility.next_chance_s()

    def close(self) -> None:
        """Stops what it has started."""
        if self._batches is not None:
            self._batches.close()

    def _still_asks(self, slot: Slot) -> bool:
        """Whether it is still being asked what this node is; the gate is held for that."""
        if self._batches is not None and self._batches.asks():
            return True
        self._asking = None
        if slot.attempt is None:
            slot.gate.leave()
        return False

    def _judge_batch(
        self, slot: Slot, known: Known | None, candidate: Candidate
    ) -> BatchOrder | Nothing | None:
        """What the task gets of the batch table; None when it is passed over."""
        if known is None or not known.record.spec.family:
            return NO_BATCH
        if self._batches is None:
            from fleetcraft.worker.batches import Batches

            self._batches = Batches(self._settings, self._note)
        judged = self._batches.judge(known.record.spec, gpu=slot.gpu)
        if judged is None:
            self._queue.keep(candidate)
            if slot.gate.enter_shared():  # no timed task runs here now, nor until it is left
                self._asking = slot
                self._batches.ask()
            return Nothing.THROUGH_THE_GATE
        if not isinstance(judged, BatchOrder):
            self._eligibility.pass_over(candidate.name, judged.wait_s)
            return None
        return judged

    def _try(self, slot: Slot, candidate: Candidate) -> Claim | Nothing | None:
        try:
            known = self._eligibility.read(candidate.path, candidate.name)
            if known is not None and self._is_undeclared(known, candidate):
                return None
        except FileNotFoundError:
            self._queue.missed()
            return None
        except OSError as error:
            self.refuse(candidate.name, error)
            return None
        if known is not None and not self._eligibility.allows(known.record, gpu=bool(slot.gpu)):
            return None
        batch = self._judge_batch(slot, known, candidate)
        if not isinstance(batch, BatchOrder):
            return batch
        timed = known is not None and known.record.spec.timed
        if not (slot.gate.enter_alone() if timed else slot.gate.enter_shared()):
            # Kept: the turnstile is held for it, or it is simply the next one.
            self._queue.keep(candidate)
            return Nothing.THROUGH_THE_GATE
        held = None
        try:
            held = self._claim(slot, candidate, known)
        finally:
            if held is None:
                slot.gate.leave()
        slot.batch = batch
        return held

    def _is_undeclared(self, known: Known, candidate: Candidate) -> bool:
        """Whether the grid that binds lane ``last`` keeps this task out; it is then left alone."""
        if _LAST is not candidate.lane and _LAST is not known.record.spec.lane:
            return False
        why = self._last_lane.objection(known.record)
        if why:
            self._eligibility.pass_over(candidate.name, _FOREVER)
            self._note(f"{candidate.name!r} is passed over: {why}")
        return bool(why)

    def _claim(self, slot: Slot, candidate: Candidate, known: Known | None) -> Claim | None:
        self._claims += 1
        token = f"{self._lease.launch}-{self._claims}"
        owner = Owner(self._lease.job, self._lease.rank, str(slot.index), token)
        try:
            held = claim(self._tree, candidate.name, candidate.path, owner, known)
        except (UnsafeSpoolError, IntegrityError) as error:
            self.refuse(candidate.name, error)
            return None
        except OSError as error:
            if error.errno not in _ERRORS_OF_ONE_FILE:
                raise
            self.refuse(candidate.name, error)
            return None
        if held is None:
            self._queue.missed()
        else:
            self._queue.won()
        return held

    def refuse(self, name: str, error: Exception) -> None:
        """Passes a task over and says why: for good, or until its mount may be well again."""
        passes = isinstance(error, OSError) and error.errno not in _ERRORS_THAT_STAY
        self._eligibility.pass_over(name, _ERROR_PAUSE_S if passes else _FOREVER)
        self._note(f"{name!r} is passed over: {error}")
