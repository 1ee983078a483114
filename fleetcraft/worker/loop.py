"""The worker: one process per node that fills its slots with tasks until it leaves.

One thread claims, starts, waits and files; a second one beats. The loop never blocks on a task:
it waits on one pipe that signals, child exits and the heartbeat write to.
Invariant: a worker that leaves in order holds no claim, unless no history could be written.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time

from fleetcraft.gpu.nvml import count_gpus
from fleetcraft.layout import LANES
from fleetcraft.spool import leases
from fleetcraft.spool.control import refuse_markers
from fleetcraft.spool.queue import Queue
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.worker.attempt import Place
from fleetcraft.worker.caches import TaskCaches
from fleetcraft.worker.chores import Chores
from fleetcraft.worker.claiming import Claimer, Nothing
from fleetcraft.worker.depth import DepthNotes
from fleetcraft.worker.diary import Diary, OnEvent
from fleetcraft.worker.eligibility import Eligibility
from fleetcraft.worker.environment import room_for_reports
from fleetcraft.worker.heartbeat import Heartbeat
from fleetcraft.worker.limits import Walltime
from fleetcraft.worker.outcome import StopReason
from fleetcraft.worker.pack import fit_into_outer
from fleetcraft.worker.readiness import watch_for
from fleetcraft.worker.settings import WorkerExit, WorkerReport, WorkerSettings
from fleetcraft.worker.slots import close_slots, count_slots, held_tokens, make_slots
from fleetcraft.worker.telemetry_logger import TelemetryLogger
from fleetcraft.worker.tending import Tender, Words
from fleetcraft.worker.wakeup import Arrivals, CaughtSignals, Wakeup

_GATE_FIRST_S = 0.05
_GATE_LIMIT_S = 0.5
_IDLE_FIRST_S = 0.05
_DUTY = 20
_ARRIVALS_PAUSE_S = 0.01


def run_worker(settings: WorkerSettings, on_event: OnEvent) -> WorkerReport:
    """Runs a worker until it leaves.

    Args:
        settings: How it behaves.
        on_event: Told of starts, ends and notes, as plain mappings.

    Raises:
        UsageError: Bad slots.
        DeviceError: GPU slots were asked for and there are none.
        SpoolError: There is no spool, it is not safe, or a DRAIN or STOP marker stands.
    """
    refuse_markers(SpoolTree(settings.spool_dir).check_safe())
    worker = _kind(settings)(settings, on_event)
    try:
        return worker.run()
    finally:
        worker.close()


def _kind(settings: WorkerSettings) -> type[Worker]:
    if not settings.orders:
        return Worker
    from fleetcraft.worker.orders import OrderedWorker

    return OrderedWorker


class Worker:
    """One worker process; see `run_worker`.

    ``idle_limit_s`` is the longest pause between two looks for something to claim.
    """

    idle_limit_s = 5.0

    def __init__(self, settings: WorkerSettings, on_event: OnEvent) -> None:
        settings, outer = fit_into_outer(settings, os.environ)
        self._settings = settings
        # Of very many each looks more seldom: all together look five hundred times a second.
        self.idle_limit_s = max(self.idle_limit_s, settings.ranks / 500)
        self.tree = SpoolTree(settings.spool_dir).check_safe()
        gpus = count_slots(settings.slots)
        self.lease = leases.new_lease(
            run=settings.run,
            rank=str(settings.rank),
            interval_s=settings.heartbeat_s,
            slots=len(gpus),
            gpus=sum(map(bool, gpus)) or count_gpus() or 0,
            slot_gpus=tuple(gpus) if any(gpus) else (),
        )
        self._diary = Diary(self.tree, self.lease.name, on_event)
        self._depth = DepthNotes(self.tree, self._diary, settings, in_pack=outer is not None)
        self._telemetry = TelemetryLogger(settings)  # before the slots, which adopt orphans
        self._wakeup = Wakeup()
        self._slots = make_slots(gpus, self.lease, root=settings.root, pack=outer is not None)
        self._caches = TaskCaches(settings.caches, self.lease, len(gpus), self._diary.note)
        self._heartbeat = Heartbeat(self.tree, self.lease, self._wakeup.wake)
        self._walltime = Walltime(settings.walltime_s, settings.drain_margin_s)
        self._chores = Chores(
            self.tree,
            lease=self.lease,
            rank=settings.rank,
            ranks=max(1, settings.ranks),
            held=lambda: held_tokens(self._slots),
            # Every few seconds at most, whatever the heartbeat: the mount has to answer.
            markers_every_s=max(0.5, min(5.0, settings.heartbeat_s / 6)),
            walltime=self._walltime,
            depth=self._depth,
            outer=outer,
            note=self._diary.note,
        )
        self._claimer = Claimer(
            self.tree,
            self.lease,
            Queue(self.tree, settings.rank, max(1, settings.ranks)),
            Eligibility(self.tree, self.lease, self._walltime, in_pack=outer is not None),
            self._diary.note,
            settings=settings,
        )
        self._tender = Tender(
            self.tree,
            self.lease,
            settings,
            slots=self._slots,
            place=Place.of(settings, self.lease, room_for_reports(settings, self._diary.note)),
            caches=self._caches,
            heartbeat=self._heartbeat,
            diary=self._diary,
            walltime=self._walltime,
            words=Words(
                leave=self.leave,
                task_done=self._chores.task_done,
                refuse=self._claimer.refuse,
                heed=self._heed_signal,
            ),
        )
        self._readiness = watch_for(settings.after_marker, self._wakeup.wake)
        self._report = WorkerReport()
        self._leaving = ""
        self._signals: CaughtSignals | None = None
        self._seen_empty = False
        self._idle_since = time.monotonic()
        self._idle_pause_s = _IDLE_FIRST_S
        self._gate_pause_s = _GATE_FIRST_S
        self._next_poll = self._quiet_until = 0.0
        self._arrivals = Arrivals([self.tree.paths.lane(lane) for lane in LANES])

    # -- the loop

    def run(self) -> WorkerReport:
        """Claims and runs tasks until there is a reason to leave."""
        self._signals = CaughtSignals(self._wakeup)
        self._heartbeat.start()
        self._diary.arrive(self.lease, self._caches.told())
        self._depth.arrive()
        while True:
            self._obey_signal()  # first: the same signal may have ended tasks, which did not fail
            if self._tender.busy:
                self._idle_since = time.monotonic()
            self._tender.collect()
            self._look_around()
            if not self._leaving:
                self._fill()
            if self._leaving and not self._tender.busy:
                break
            # Also after a start: a task that has ended by now has woken the wait already.
            self._wait()
        self._leave()
        self._report.outcomes = self._tender.outcomes
        return self._report

    def close(self) -> None:
        """Gives up slots, logger, pipe and journal, and restores the signal handlers."""
        if self._signals is not None:
            self._signals.restore()
        self._heartbeat.stop()
        self._claimer.close()
        close_slots(self._slots)
        self._tender.close()
        self._telemetry.end()
        self._diary.close()
        self._arrivals.close()
        self._wakeup.close()

    def leave(self, reason: str, code: int = WorkerExit.LEFT, *, quiet: bool = False) -> None:
        """Claims nothing more; leaves when nothing runs, with the first code that is not 0."""
        if not self._leaving:
            self._leaving = reason
            self._report.reason = reason
            if not quiet:
                self._diary.note(f"leaving: {reason}")
            for slot in self._slots:
                if slot.attempt is None:
                    slot.gate.leave()
        elif code and not self._report.exit_code:
            self._diary.note(reason)
        self._report.exit_code = self._report.exit_code or int(code)

    def interrupt(self, reason: str, code: int) -> None:
        """Leaves, stopping what runs and putting it back."""
        self.leave(reason, code)
        for slot in self._slots:
            self._tender.stop(slot, StopReason.INTERRUPTED, reason)

    def walltime_left(self, seconds: float) -> None:
        """Goes by this from now on."""
        self._walltime.set_left(seconds)
        self._quiet_until = 0.0

    # -- looking around

    def _look_around(self) -> None:
        if time.monotonic() < self._quiet_until and not (
            (self._signals and self._signals.pending)
            or self._heartbeat.vanished
            or self._heartbeat.cancelled
        ):
            return
        self._obey_signal()
        self._tender.obey_heartbeat()
        self._tender.obey_timeouts()
        order = self._chores.look_at_limits()
        if order is not None and order.interrupt:
            self.interrupt(order.reason, WorkerExit.LEFT)
        elif order is not None:
            self.leave(order.reason)
        if not self._leaving and self._chores.tend_the_spool():
            self._next_poll = 0.0

    def _obey_signal(self) -> None:
        number = self._signals.take() if self._signals else 0
        if not number:
            return
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            self.leave(f"{name}: the allocation ends soon")
            return
        code = WorkerExit.INTERRUPTED if number == signal.SIGINT else WorkerExit.TERMINATED
        self.interrupt(f"stopped by {name}", code)

    def _heed_signal(self) -> None:
        """A task was ended by TERM or KILL: a signal came here first, or Slurm's is on its way."""
        if self._settings.run.job and self._signals is not None:
            self._signals.await_one()
        self._obey_signal()

    # -- claims

    def _fill(self) -> None:
        """Starts tasks in free slots."""
        now = time.monotonic()
        if self._waits_for_marker(now) or self._next_poll > now:
            return
        slots = self._slots
        if len(slots) > 1:
            # The one at the turnstile first: no other slot gets past it, whatever it would take.
            slots = sorted(slots, key=lambda slot: not slot.gate.waits)
        for slot in slots:
            if slot.attempt is not None or self._leaving:
                continue
            try:
                taken = self._claimer.take(slot)
            except OSError as error:
                self._pause_in_trouble(error)
                break
            if taken is Nothing.CLAIMABLE:
                self._pause_idle(looked_s=time.monotonic() - now)
                break
            if taken is Nothing.THROUGH_THE_GATE:
                self._arrivals.rest()  # a new task opens no gate
                self._next_poll = time.monotonic() + self._gate_pause_s
                self._gate_pause_s = min(_GATE_LIMIT_S, self._gate_pause_s * 1.3)
                break
            self._gate_pause_s = _GATE_FIRST_S
            self._arrivals.rest()
            self._idle_pause_s = _IDLE_FIRST_S
            self._idle_since = now
            self._tender.begin(slot, taken)

    def _waits_for_marker(self, now: float) -> bool:
        """Whether nothing may be claimed before the marker is verified; that is not idling."""
        if self._readiness is None:
            return False
        self._idle_since = now
        self._next_poll = 0.0 if self._readiness.ready else now + self.idle_limit_s
        if self._readiness.ready:
            self._readiness = None
        return self._readiness is not None

    # -- waiting and leaving

    def _pause_in_trouble(self, error: OSError) -> None:
        """The spool cannot be used: not the same as nothing to claim, and it may pass."""
        problem = describe_problem(error)
        now = time.monotonic()
        self._diary.note(f"the spool cannot be used now: {problem}")
        self._arrivals.rest()
        self._next_poll = now + self._idle_pause_s * random.uniform(0.7, 1.3)
        self._idle_pause_s = min(self.idle_limit_s, self._idle_pause_s * 1.5)
        if now - self._idle_since >= self._settings.idle_s:
            reason = f"the spool could not be used for {self._settings.idle_s:g} s: {problem}"
            self.leave(reason, WorkerExit.SPOOL_UNWRITABLE)

    def _pause_idle(self, looked_s: float) -> None:
        """Nothing is claimable: look again later and later, and think about leaving."""
        now = time.monotonic()
        if self._chores.promote():
            self._next_poll = now
            return
        # A long look on a slow mount is followed by a longer pause.
        pause_s = max(self._idle_pause_s, _DUTY * looked_s)
        self._next_poll = now + pause_s * random.uniform(0.7, 1.3)
        # Also word of a new task does not make it look more often than it can afford.
        self._arrivals.rest(now + max(_ARRIVALS_PAUSE_S, _DUTY * looked_s))
        self._idle_pause_s = min(self.idle_limit_s, self._idle_pause_s * 1.5)
        if not self._tender.busy:
            self.on_idle()

    def on_idle(self) -> None:
        """Leaves when nothing was claimable for long enough, or when the marker allows it."""
        if marker := self._settings.until_marker:
            # The order matters: only an empty look after the marker was there counts. A task that
            # asked to be tried again later is in the queue, though nobody may claim it yet.
            if self._seen_empty and self.next_chance_s() is None and not self._found_more():
                self.leave(f"{marker} exists and the queue was empty after it")
            self._seen_empty = os.path.exists(marker)
            return
        if time.monotonic() - self._idle_since >= self._settings.idle_s and not self._found_more():
            self.leave(f"nothing to claim for {self._settings.idle_s:g} s")

    def _found_more(self) -> bool:
        """Whether a last look at what waits made something claimable: nobody else may look."""
        self._next_poll = 0.0
        return self._chores.promote(anyway=True)

    def _wait(self) -> None:
        quiet_until = self._chores.due_at(leaving=bool(self._leaving))
        until = self.before_wait()
        for slot in self._slots:
            attempt = slot.attempt
            if attempt is None:
                if not self._leaving:
                    until = min(until, self._next_poll)
            # A deadline that has passed says nothing more: its task is being stopped.
            elif attempt.deadline is not None and attempt.stopped is None:
                quiet_until = min(quiet_until, attempt.deadline)
        self._quiet_until = quiet_until
        wait_s = max(0.0, min(until, quiet_until) - time.monotonic())
        fds = [self._wakeup.read_fd, *self.extra_fds(), *self._telemetry.fds()]
        listened = [s for s in self._slots if s.attempt is not None or not self._leaving]
        fds += [fd for slot in listened if (fd := slot.runner.fileno()) is not None]
        fds += self._arrivals.fds(self._next_poll) if listened else []
        ready, _, _ = select.select(fds, [], [], wait_s)
        if self._wakeup.read_fd in ready:
            self._wakeup.clear()
        if (look_at := self._arrivals.heard(ready)) is not None:
            self._next_poll = look_at
        for slot in self._slots:
            # A keeper without a task has nothing to say but that it ends.
            if slot.attempt is None and slot.runner.fileno() in ready:
                self._tender.renew(slot)
        for text in self._telemetry.hear(ready):
            self._diary.note(text)
        if self._telemetry.lost:
            self.leave(self._telemetry.lost, WorkerExit.GPU_LOST)
        self.on_ready(ready)

    def look_now(self) -> None:
        """Looks for something to claim without further pause."""
        self._next_poll = 0.0

    def next_chance_s(self) -> float | None:
        """Seconds until a task that was passed over for a while may be claimed; None: no such."""
        return self._claimer.next_chance_s()

    def before_wait(self) -> float:
        """Called before each wait; returns the monotonic time by which the wait must end."""
        return float("inf")

    def extra_fds(self) -> list[int]:
        """Descriptors that end the wait too; see `on_ready`."""
        return []

    def on_ready(self, ready: list[int]) -> None:
        """Called after each wait with the descriptors that are readable."""

    def _leave(self) -> None:
        holds = self._report.exit_code == WorkerExit.SPOOL_UNWRITABLE or self._tender.stuck > 0
        self._heartbeat.leave(self._leaving, holds_claims=holds)
        self._depth.look()
        self._diary.leave(self._leaving)
