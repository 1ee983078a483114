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
from collections.abc import Callable

from fleetcraft.diagnosis import OomCounter
from fleetcraft.errors import IntegrityError, UnsafeSpoolError
from fleetcraft.process import Ended, find_bash
from fleetcraft.spool import leases
from fleetcraft.spool.claims import Claim, Closed, SpoolWriteError
from fleetcraft.spool.control import refuse_markers
from fleetcraft.spool.queue import Queue
from fleetcraft.spool.tree import SpoolTree, describe_problem, unreadable
from fleetcraft.worker.attempt import (
    Attempt,
    LogUnwritable,
    Place,
    begin,
    finish,
    lose,
    settle_without_running,
)
from fleetcraft.worker.chores import Chores
from fleetcraft.worker.claiming import Claimer, Nothing
from fleetcraft.worker.diary import Diary, OnEvent
from fleetcraft.worker.eligibility import Eligibility
from fleetcraft.worker.environment import as_bytes, base_environment, is_pack, stream_id
from fleetcraft.worker.heartbeat import Heartbeat
from fleetcraft.worker.limits import NodeFitness, Walltime
from fleetcraft.worker.outcome import StopReason
from fleetcraft.worker.settings import WorkerExit, WorkerReport, WorkerSettings
from fleetcraft.worker.slots import KeeperGone, Slot, close_slots, count_slots, make_slots
from fleetcraft.worker.survivors import stop_survivors
from fleetcraft.worker.wakeup import CaughtSignals, Wakeup

_GATE_FIRST_S = 0.05
_GATE_LIMIT_S = 0.5
_IDLE_FIRST_S = 0.05
_DUTY = 20
_WRITE_TROUBLE_LIMIT = 3


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
    worker = Worker(settings, on_event)
    try:
        return worker.run()
    finally:
        worker.close()


class Worker:
    """One worker process; see `run_worker`.

    ``idle_limit_s`` is the longest pause between two looks for something to claim.
    """

    idle_limit_s = 5.0

    def __init__(self, settings: WorkerSettings, on_event: OnEvent) -> None:
        self._settings = settings
        self.tree = SpoolTree(settings.spool_dir).check_safe()
        gpus = count_slots(settings.slots)
        self.lease = leases.new_lease(
            job=settings.job,
            rank=str(settings.rank),
            interval_s=settings.heartbeat_s,
            slots=len(gpus),
            step=settings.step,
        )
        self._place = Place(
            host=self.lease.host,
            job=self.lease.job,
            step=settings.step,
            bash=find_bash(),
            grace_s=settings.grace_s,
        )
        try:
            self._diary = Diary(self.tree, self.lease.name, on_event)
        except OSError as error:
            raise unreadable(self.tree.paths.journal(self.lease.name), error) from error
        self._wakeup = Wakeup()
        streams = [stream_id(self.lease.name, str(index)) for index in range(len(gpus))]
        pack = is_pack(settings.root)
        self._slots = make_slots(
            gpus, root=settings.root, host=self.lease.host, streams=streams, pack=pack
        )
        self._env = as_bytes(base_environment(settings.root, self.tree.paths.root))
        self._heartbeat = Heartbeat(self.tree, self.lease, self._wakeup.wake)
        self._walltime = Walltime(settings.walltime_s, settings.drain_margin_s)
        self._chores = Chores(
            self.tree,
            launch=self.lease.launch,
            held=self._held,
            # Every few seconds at most, whatever the heartbeat: the mount has to answer.
            markers_every_s=max(0.5, min(5.0, settings.heartbeat_s / 6)),
            walltime=self._walltime,
            note=self._diary.note,
        )
        self._claimer = Claimer(
            self.tree,
            self.lease,
            Queue(self.tree, settings.rank, max(1, settings.ranks)),
            Eligibility(self.tree, self.lease, self._walltime, in_pack=pack),
            self._diary.note,
        )
        self._fitness = NodeFitness(settings.node_failures, settings.node_failure_s)
        self._oom = OomCounter()
        self._report = WorkerReport()
        self._leaving = ""
        self._signals: CaughtSignals | None = None
        self._write_trouble = 0
        self._stuck = 0
        self._seen_empty = False
        self._idle_since = time.monotonic()
        self._idle_pause_s = _IDLE_FIRST_S
        self._gate_pause_s = _GATE_FIRST_S
        self._next_poll = 0.0

    # -- the loop

    def run(self) -> WorkerReport:
        """Claims and runs tasks until there is a reason to leave."""
        self._signals = CaughtSignals(self._wakeup)
        try:
            self._heartbeat.start()
        except OSError as error:
            raise unreadable(self.tree.paths.lease(self.lease.name), error) from error
        self._diary.arrive(len(self._slots))
        while True:
            busy = self._collect()
            self._look_around()
            if not self._leaving:
                busy |= self._fill()
            if self._leaving and not any(slot.attempt for slot in self._slots):
                break
            if not busy:
                self._wait()
        self._leave()
        return self._report

    def close(self) -> None:
        """Gives up slots, pipe and journal, and restores the signal handlers."""
        if self._signals is not None:
            self._signals.restore()
        self._heartbeat.stop()
        close_slots(self._slots)
        self._oom.close()
        self._diary.close()
        self._wakeup.close()

    def leave(self, reason: str, code: int = WorkerExit.LEFT, *, quiet: bool = False) -> None:
        """Claims nothing more; leaves when nothing runs."""
        if not self._leaving:
            self._leaving = reason
            self._report.reason = reason
            self._report.exit_code = int(code)
            if not quiet:
                self._diary.note(f"leaving: {reason}")
            for slot in self._slots:
                if slot.attempt is None:
                    slot.gate.leave()

    def interrupt(self, reason: str, code: int) -> None:
        """Leaves, stopping what runs and putting it back."""
        self.leave(reason, code)
        self._report.exit_code = self._report.exit_code or int(code)
        for slot in self._slots:
            self._stop(slot, StopReason.INTERRUPTED, reason)

    # -- ends

    def _collect(self) -> bool:
        """Files every attempt that has ended; says whether there was one."""
        found = False
        for slot in self._slots:
            if slot.attempt is None:
                continue
            try:
                ended = slot.runner.poll()
            except KeeperGone:
                self._lose(slot, slot.attempt)
                found = True
                continue
            if ended is not None:
                self._finish(slot, slot.attempt, ended)
                found = True
        return found

    def _finish(self, slot: Slot, attempt: Attempt, ended: Ended) -> None:
        name = attempt.held.name
        if not self._vacate(slot, attempt, clean=ended.clean, known=ended.known):
            return
        oom_kills = self._oom.read() if ended.signal or ended.exit_code == 137 else None
        self._file(
            attempt,
            lambda: finish(
                self.tree,
                slot,
                attempt,
                ended,
                self._place,
                oom_kills=oom_kills,
                before_move=lambda line: self._diary.end(name, line),
            ),
        )

    def _lose(self, slot: Slot, attempt: Attempt) -> None:
        """The slot's keeper died: stops what it ran, and files the attempt as lost."""
        name = attempt.held.name
        attempt.stopped = attempt.stopped or StopReason.KEEPER_GONE
        attempt.stop_detail = attempt.stop_detail or "the keeper of its slot died"
        left = stop_survivors(name, attempt.held.owner, self.lease)
        self._renew(slot)
        if self._vacate(slot, attempt, clean=not left, known=not left):
            told = lambda line: self._diary.end(name, line)  # noqa: E731
            self._file(attempt, lambda: lose(self.tree, attempt, self._place, before_move=told))

    def _renew(self, slot: Slot) -> None:
        self._diary.note(f"the keeper of slot {slot.index} died")
        try:
            slot.renew()
        except OSError as error:
            reason = f"slot {slot.index} gets no new keeper: {describe_problem(error)}"
            self.leave(reason, WorkerExit.NODE_UNFIT)

    def _vacate(self, slot: Slot, attempt: Attempt, *, clean: bool, known: bool) -> bool:
        """Frees the slot; says whether the attempt can be filed."""
        name = attempt.held.name
        slot.attempt = None
        self._heartbeat.forget(name)
        if clean:
            slot.gate.leave()
        else:
            self.leave(f"processes of {name!r} cannot be killed", WorkerExit.NODE_UNFIT)
        if not known:
            # It still runs, so its claim stays, and so does the lease: unknown, not ended.
            self._stuck += 1
        return known

    def _file(self, attempt: Attempt, close: Callable[[], Closed | None]) -> None:
        name = attempt.held.name
        try:
            closed = close()
        except SpoolWriteError as error:
            self.leave(error.message, WorkerExit.SPOOL_UNWRITABLE)
            return
        except IntegrityError as error:
            self._diary.note(error.message)
            return
        except OSError as error:
            self.leave(
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
        outcomes = self._report.outcomes
        outcomes[line.outcome.value] = outcomes.get(line.outcome.value, 0) + 1
        if line.to == "done":
            self._chores.task_done(name)
        if self._fitness.unfit:
            self.leave(
                f"the last {self._settings.node_failures} tasks on {self._place.host} each failed "
                f"within {self._settings.node_failure_s:g} s; this node may be broken",
                WorkerExit.NODE_UNFIT,
            )

    # -- looking around

    def _look_around(self) -> None:
        self._obey_signal()
        self._obey_heartbeat()
        self._obey_timeouts()
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

    def _obey_heartbeat(self) -> None:
        beat = self._heartbeat
        if not (beat.vanished or beat.cancelled):
            return
        for slot in self._slots:
            name = slot.attempt.held.name if slot.attempt else ""
            if name in beat.vanished:
                self._stop(slot, StopReason.RECOVERED, "its claim was taken from this worker")
            elif name in beat.cancelled:
                self._stop(slot, StopReason.CANCELLED, "cancelled while it ran")

    def _obey_timeouts(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            attempt = slot.attempt
            if attempt is not None and attempt.deadline is not None and now >= attempt.deadline:
                limit_s = attempt.held.record.spec.timeout_s
                self._stop(slot, StopReason.TIMEOUT, f"stopped after its timeout of {limit_s} s")

    def _stop(self, slot: Slot, reason: StopReason, detail: str) -> None:
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

    # -- claims

    def _fill(self) -> bool:
        """Starts tasks in free slots; says whether it started one."""
        now = time.monotonic()
        if self._next_poll > now:
            return False
        started = False
        # The one at the turnstile first: no other slot gets past it, whatever it would take.
        for slot in sorted(self._slots, key=lambda slot: not slot.gate.waits):
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
                self._next_poll = time.monotonic() + self._gate_pause_s
                self._gate_pause_s = min(_GATE_LIMIT_S, self._gate_pause_s * 1.3)
                break
            self._gate_pause_s = _GATE_FIRST_S
            self._idle_pause_s = _IDLE_FIRST_S
            self._idle_since = time.monotonic()
            started = True
            self._begin(slot, taken)
        return started

    def _begin(self, slot: Slot, held: Claim) -> None:
        try:
            closed = settle_without_running(self.tree, held, self._place)
            begun = closed or begin(
                self.tree, slot, held, place=self._place, env=self._env, oom_kills=self._oom.read()
            )
        except LogUnwritable as error:
            self._write_trouble += 1
            slot.gate.leave()
            if self._write_trouble >= _WRITE_TROUBLE_LIMIT:
                self.leave(f"no log can be made: {error}", WorkerExit.SPOOL_UNWRITABLE)
            return
        except UnsafeSpoolError as error:
            slot.gate.leave()
            self._claimer.refuse(held.name, error)
            return
        except (SpoolWriteError, IntegrityError, OSError) as error:
            slot.gate.leave()
            reason = f"{held.name!r}: {describe_problem(error)}"
            self.leave(reason, WorkerExit.SPOOL_UNWRITABLE)
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

    def _held(self) -> set[str]:
        """The tokens of the claims that run here."""
        return {slot.attempt.held.owner.token for slot in self._slots if slot.attempt is not None}

    # -- waiting and leaving

    def _pause_in_trouble(self, error: OSError) -> None:
        """The spool cannot be used: not the same as nothing to claim, and it may pass."""
        problem = describe_problem(error)
        now = time.monotonic()
        self._diary.note(f"the spool cannot be used now: {problem}")
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
        self._idle_pause_s = min(self.idle_limit_s, self._idle_pause_s * 1.5)
        if any(slot.attempt for slot in self._slots):
            self._idle_since = now
            return
        self.on_idle()

    def on_idle(self) -> None:
        """Leaves when nothing was claimable for long enough, or when the marker allows it."""
        marker = self._settings.until_marker
        if marker:
            # The order matters: only an empty look after the marker was there counts. A task that
            # asked to be tried again later is in the queue, though nobody may claim it yet.
            if self._seen_empty and self.next_chance_s() is None:
                self.leave(f"{marker} exists and the queue was empty after it")
            self._seen_empty = os.path.exists(marker)
            return
        if time.monotonic() - self._idle_since >= self._settings.idle_s:
            self.leave(f"nothing to claim for {self._settings.idle_s:g} s")

    def _wait(self) -> None:
        now = time.monotonic()
        until = min(self._chores.due_at(leaving=bool(self._leaving)), self.before_wait())
        if not self._leaving and any(slot.attempt is None for slot in self._slots):
            until = min(until, self._next_poll)
        for slot in self._slots:
            if slot.attempt is not None and slot.attempt.deadline is not None:
                until = min(until, slot.attempt.deadline)
        fds = [self._wakeup.read_fd, *self.extra_fds()]
        fds += [fd for slot in self._slots if (fd := slot.runner.fileno()) is not None]
        ready, _, _ = select.select(fds, [], [], max(0.0, until - now))
        if self._wakeup.read_fd in ready:
            self._wakeup.clear()
        for slot in self._slots:
            # A keeper without a task has nothing to say but that it ends.
            if slot.attempt is None and slot.runner.fileno() in ready:
                self._renew(slot)
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
        holds = self._report.exit_code == WorkerExit.SPOOL_UNWRITABLE or self._stuck > 0
        self._heartbeat.leave(self._leaving, holds_claims=holds)
        self._diary.leave(self._leaving)
