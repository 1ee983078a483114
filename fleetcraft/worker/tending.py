"""Tending the slots: starting what was claimed, and filing what has ended, whatever way it ended.

Invariant: a slot is given on only when nothing of its task is left, and a claim is either closed
or still there for recovery.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleetcraft.diagnosis import OomCounter
from fleetcraft.errors import IntegrityError, UnsafeSpoolError
from fleetcraft.process import Ended
from fleetcraft.spool.claims import Claim, Closed, SpoolWriteError
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.worker.attempt import (
    Attempt,
    LogUnwritable,
    Place,
    begin,
    finish,
    lose,
    settle_without_running,
)
from fleetcraft.worker.caches import TaskCaches
from fleetcraft.worker.diary import Diary
from fleetcraft.worker.environment import as_bytes, base_environment
from fleetcraft.worker.heartbeat import Heartbeat
from fleetcraft.worker.limits import NodeFitness, Walltime
from fleetcraft.worker.outcome import StopReason
from fleetcraft.worker.pack import WALLTIME_VARIABLE
from fleetcraft.worker.settings import WorkerExit, WorkerSettings
from fleetcraft.worker.slots import KeeperGone, Slot
from fleetcraft.worker.survivors import stop_survivors

_WRITE_TROUBLE_LIMIT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a tender says to the rest of its worker.

    Attributes:
        leave: Claim nothing more, for this reason and with this exit code.
        task_done: A task was completed; others may have waited for it.
        refuse: A record that another user could have written must not be tried again.
        heed: A task was ended by TERM or KILL, which may have been sent to the worker too, or be
            on its way: obey that first.
    """

    leave: Callable[[str, int], None]
    task_done: Callable[[str], None]
    refuse: Callable[[str, Exception], None]
    heed: Callable[[], None]


class Tender:
    """Tends the slots of one worker.

    ``outcomes`` counts closed claims; ``stuck`` counts tasks that could not be killed or filed,
    whose claims stay.
    """

    def __init__(
        self,
        tree: SpoolTree,
        lease: Lease,
        settings: WorkerSettings,
        *,
        slots: list[Slot],
        place: Place,
        caches: TaskCaches,
        heartbeat: Heartbeat,
        diary: Diary,
        walltime: Walltime,
        words: Words,
    ) -> None:
        self._tree = tree
        self._lease = lease
        self._settings = settings
        self._slots = slots
        self._place = place
        self._env = as_bytes(base_environment(settings, tree.paths.root, caches.shared))
        self._caches = caches
        self._heartbeat = heartbeat
        self._diary = diary
        self._walltime = walltime
        self._leave = words.leave
        self._task_done = words.task_done
        self._refuse = words.refuse
        self._heed = words.heed
        self._fitness = NodeFitness(settings.node_failures, settings.node_failure_s)
        self._oom = OomCounter()
        self._write_trouble = 0
        self.outcomes: dict[str, int] = {}
        self.stuck = 0

    def close(self) -> None:
        """Closes what it reads, and gives up the caches' places."""
        self._oom.close()
        self._caches.close()

    @property
    def busy(self) -> bool:
        """Whether anything runs."""
        return any(slot.attempt is not None for slot in self._slots)

    def collect(self) -> None:
        """Files every attempt that has ended."""
        for slot in self._slots:
            if slot.attempt is None:
                continue
            try:
                ended = slot.runner.poll()
            except KeeperGone:
                self._lose(slot, slot.attempt)
                continue
            if ended is not None:
                attempt = slot.attempt
                if attempt.stopped is None and _was_cut(ended):
                    self._heed()
                if slot.attempt is attempt:  # else its keeper was found dead meanwhile
                    self._finish(slot, attempt, ended)

    def _finish(self, slot: Slot, attempt: Attempt, ended: Ended) -> None:
        name = attempt.held.name
        if not self._vacate(slot, attempt, clean=ended.clean, known=ended.known):
            return
        oom_kills = self._oom.read() if ended.signal or ended.exit_code == 137 else None
        self._file(
            attempt,
            lambda: finish(
                self._tree,
                slot,
                attempt,
                ended,
                self._place,
                oom_kills=oom_kills,
                before_move=lambda line: self._diary.end(name, line),
            ),
        )
        if ended.clean:
            self._clear(attempt)

    def _lose(self, slot: Slot, attempt: Attempt) -> None:
        """The slot's keeper died: stops what it ran, and files the attempt as lost."""
        name = attempt.held.name
        attempt.stopped = attempt.stopped or StopReason.KEEPER_GONE
        attempt.stop_detail = attempt.stop_detail or "the keeper of its slot died"
        left = stop_survivors(name, attempt.held.owner, self._lease)
        self.renew(slot)
        if self._vacate(slot, attempt, clean=not left, known=not left):
            self._file(
                attempt,
                lambda: lose(
                    self._tree,
                    attempt,
                    self._place,
                    before_move=lambda line: self._diary.end(name, line),
                ),
            )
            self._clear(attempt)

    def _clear(self, attempt: Attempt) -> None:
        """Removes what it has compiled, now that nothing of it runs."""
        if why := self._caches.clear(attempt.held, attempt.number):
            self._diary.note(why)

    def renew(self, slot: Slot) -> None:
        """Replaces a keeper that died."""
        self._diary.note(f"the keeper of slot {slot.index} died")
        try:
            slot.renew()
        except OSError as error:
            reason = f"slot {slot.index} gets no new keeper: {describe_problem(error)}"
            self._leave(reason, WorkerExit.NODE_UNFIT)

    def _vacate(self, slot: Slot, attempt: Attempt, *, clean: bool, known: bool) -> bool:
        """Frees the slot; says whether the attempt can be filed."""
        name = attempt.held.name
        slot.attempt = None
        attempt.ended()
        self._heartbeat.forget(name)
        if clean:
            slot.gate.leave()
        else:
            self._leave(f"processes of {name!r} cannot be killed", WorkerExit.NODE_UNFIT)
        if not known:
            # It still runs, so its claim stays, and so does the lease: unknown, not ended.
            self.stuck += 1
        return known

    def _file(self, attempt: Attempt, close: Callable[[], Closed | None]) -> None:
        name = attempt.held.name
        try:
            closed = close()
        except SpoolWriteError as error:
            self.stuck += 1
            self._leave(error.message, WorkerExit.SPOOL_UNWRITABLE)
            return
        except IntegrityError as error:
            self._diary.note(error.message)
            return
        except OSError as error:
            self.stuck += 1
            self._leave(
                f"{name!r} could not be filed: {describe_problem(error)}",
                WorkerExit.SPOOL_UNWRITABLE,
            )
            return
        self._after_close(name, closed, attempt.number)

    def _after_close(self, name: str, closed: Closed | None, number: int) -> None:
        if closed is None or not closed.mine:
            self._diary.note(
                f"{name!r} was recovered from this worker; attempt {number} is not counted"
            )
            return
        line = closed.line
        self._fitness.note(name, line.outcome, line.wall_s or 0.0)
        kind = f"{line.outcome}"  # a member's .value is four calls of Python (3.11)
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        if line.to == "done":
            self._task_done(name)
        if self._fitness.unfit:
            self._leave(
                f"the last {self._settings.node_failures} tasks on {self._place.host} each failed "
                f"within {self._settings.node_failure_s:g} s; this node may be broken",
                WorkerExit.NODE_UNFIT,
            )

    def obey_heartbeat(self) -> None:
        """Stops tasks whose claim is gone or which somebody wants cancelled."""
        beat = self._heartbeat
        if not (beat.vanished or beat.cancelled):
            return
        for slot in self._slots:
            name = slot.attempt.held.name if slot.attempt else ""
            if name in beat.vanished:
                self.stop(slot, StopReason.RECOVERED, "its claim was taken from this worker")
            elif name in beat.cancelled:
                self.stop(slot, StopReason.CANCELLED, "cancelled while it ran")

    def obey_timeouts(self) -> None:
        """Stops tasks that have run for as long as they may."""
        now = time.monotonic()
        for slot in self._slots:
            attempt = slot.attempt
            if attempt is not None and attempt.deadline is not None and now >= attempt.deadline:
                limit_s = attempt.held.record.spec.timeout_s
                self.stop(slot, StopReason.TIMEOUT, f"stopped after its timeout of {limit_s} s")

    def stop(self, slot: Slot, reason: StopReason, detail: str) -> None:
        """Stops what runs in a slot, once, and files it when it has ended."""
        attempt = slot.attempt
        if attempt is None or attempt.stopped is not None:
            return
        attempt.stopped = reason
        attempt.stop_detail = detail
        try:
            ended = slot.runner.stop(self._walltime.grace_s(self._settings.grace_s))
        except KeeperGone:
            self._lose(slot, attempt)
            return
        if ended is not None:
            self._finish(slot, attempt, ended)

    def _environment(self) -> Mapping[bytes, bytes]:
        left_s = self._walltime.left_s()
        if left_s is None:
            return self._env
        return {**self._env, WALLTIME_VARIABLE.encode(): b"%d" % max(0.0, left_s)}

    def begin(self, slot: Slot, held: Claim) -> None:
        """Runs a claimed task in a slot whose gate it has passed, or closes its claim."""
        try:
            closed = settle_without_running(self._tree, held, self._place)
            begun = closed or begin(
                self._tree,
                slot,
                held,
                place=self._place,
                env=self._environment(),
                caches=self._caches,
                oom_kills=self._oom.recent(),
                batch=slot.batch,
            )
        except LogUnwritable as error:
            self._write_trouble += 1
            slot.gate.leave()
            if self._write_trouble >= _WRITE_TROUBLE_LIMIT:
                self._leave(f"no log can be made: {error}", WorkerExit.SPOOL_UNWRITABLE)
            return
        except UnsafeSpoolError as error:
            slot.gate.leave()
            self._refuse(held.name, error)
            return
        except (SpoolWriteError, IntegrityError, OSError) as error:
            self.stuck += 1
            slot.gate.leave()
            reason = f"{held.name!r}: {describe_problem(error)}"
            self._leave(reason, WorkerExit.SPOOL_UNWRITABLE)
            return
        self._write_trouble = 0
        if isinstance(begun, Attempt):
            slot.attempt = begun
            self._heartbeat.watch(held.name, held.path)
            self._diary.start(slot, begun)
            return
        slot.gate.leave()
        if begun is not None:
            self._diary.end(held.name, begun.line)
            self._after_close(held.name, begun, begun.line.attempt)


def _was_cut(ended: Ended) -> bool:
    """Whether what ended it may be on its way to this worker too.

    Of a step that is killed Slurm signals one process after the other (seen with 22.05): a task's
    end must not be filed as its own failure by a worker that has a moment to live.
    """
    numbers = (signal.SIGTERM, signal.SIGKILL)
    return ended.signal in numbers or (ended.exit_code or 0) - 128 in numbers
