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
from collections.abc import Callable, Mapping

from fleetcraft.clock import timestamp
from fleetcraft.diagnosis import OomCounter
from fleetcraft.errors import FleetError, IntegrityError
from fleetcraft.process import Ended, find_bash
from fleetcraft.spool import leases
from fleetcraft.spool.claims import Claim, Closed, SpoolWriteError
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.dependencies import Promoter
from fleetcraft.spool.queue import Queue
from fleetcraft.spool.record import HistoryLine
from fleetcraft.spool.recovery import ask_this_machine, recover
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.worker.attempt import (
    Attempt,
    LogUnwritable,
    Place,
    begin,
    finish,
    settle_without_running,
)
from fleetcraft.worker.claiming import Claimer, Nothing
from fleetcraft.worker.eligibility import Eligibility
from fleetcraft.worker.environment import base_environment, stream_id
from fleetcraft.worker.heartbeat import Heartbeat, Wakeup
from fleetcraft.worker.limits import NodeFitness, Walltime
from fleetcraft.worker.outcome import StopReason
from fleetcraft.worker.settings import WorkerExit, WorkerReport, WorkerSettings
from fleetcraft.worker.slots import Slot, close_slots, count_slots, make_slots
from fleetcraft.worker.survivors import stop_survivors

OnEvent = Callable[[Mapping[str, object]], None]
_RECOVER_EVERY_S = 60.0
_GATE_POLL_S = 0.05
_IDLE_FIRST_S = 0.05
_IDLE_LIMIT_S = 5.0
_PROMOTE_EVERY_S = 2.0
_DUTY = 50
_WRITE_TROUBLE_LIMIT = 3


def run_worker(settings: WorkerSettings, on_event: OnEvent) -> WorkerReport:
    """Runs a worker until it leaves.

    Args:
        settings: How it behaves.
        on_event: Told of starts, ends and notes, as plain mappings.

    Raises:
        UsageError: Bad slots.
        DeviceError: GPU slots were asked for and there are none.
        SpoolError: There is no spool, or it is not safe.
    """
    worker = Worker(settings, on_event)
    try:
        return worker.run()
    finally:
        worker.close()


class Worker:
    """One worker process; see `run_worker`."""

    def __init__(self, settings: WorkerSettings, on_event: OnEvent) -> None:
        self._settings = settings
        self._on_event = on_event
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
        self._wakeup = Wakeup()
        streams = [stream_id(self.lease.name, str(index)) for index in range(len(gpus))]
        self._slots = make_slots(gpus, root=settings.root, host=self.lease.host, streams=streams)
        self._env = base_environment(settings.root, self.tree.paths.root)
        self._heartbeat = Heartbeat(self.tree, self.lease, self._wakeup.wake)
        self._journal = leases.Journal(self.tree, self.lease.name)
        self._promoter = Promoter(self.tree)
        self._walltime = Walltime(settings.walltime_s, settings.drain_margin_s)
        self._claimer = Claimer(
            self.tree,
            self.lease,
            Queue(self.tree, settings.rank, max(1, settings.ranks)),
            Eligibility(
                self.tree, self.lease, self._walltime, in_pack="FLEET_OUTER_OWNER" in self._env
            ),
            self._note,
        )
        self._fitness = NodeFitness(settings.node_failures, settings.node_failure_s)
        self._oom = OomCounter()
        self._report = WorkerReport()
        self._leaving = ""
        self._signal = 0
        self._write_trouble = 0
        self._stuck = 0
        self._seen_empty = False
        now = time.monotonic()
        self._idle_since = now
        self._next_poll = 0.0
        self._idle_pause_s = _IDLE_FIRST_S
        self._next_markers = 0.0
        self._next_recover = now + _RECOVER_EVERY_S * random.uniform(0.5, 1.0)
        self._next_promote = 0.0
        self._old_handlers: dict[int, object] = {}

    # -- the loop

    def run(self) -> WorkerReport:
        """Claims and runs tasks until there is a reason to leave."""
        self._catch_signals()
        self._heartbeat.start()
        self._journal.write({"event": "arrive", "at": timestamp(), "slots": len(self._slots)})
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
        signal.set_wakeup_fd(-1)
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        close_slots(self._slots)
        self._journal.close()
        self._wakeup.close()

    def leave(self, reason: str, code: int = WorkerExit.LEFT) -> None:
        """Claims nothing more; leaves when nothing runs."""
        if not self._leaving:
            self._leaving = reason
            self._report.reason = reason
            self._report.exit_code = int(code)
            self._note(f"leaving: {reason}")
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
            ended = slot.runner.poll()
            if ended is not None:
                self._finish(slot, slot.attempt, ended)
                found = True
        return found

    def _finish(self, slot: Slot, attempt: Attempt, ended: Ended) -> None:
        name = attempt.held.name
        slot.attempt = None
        self._heartbeat.forget(name)
        if ended.clean:
            slot.gate.leave()
        else:
            self._stuck += 1
            self.leave(f"processes of {name!r} cannot be killed", WorkerExit.NODE_UNFIT)
        try:
            closed = finish(
                self.tree,
                slot,
                attempt,
                ended,
                self._place,
                oom_kills=self._oom.read() if ended.signal or ended.exit_code == 137 else None,
                before_move=lambda line: self._write_end(name, line),
            )
        except SpoolWriteError as error:
            self.leave(error.message, WorkerExit.SPOOL_UNWRITABLE)
            return
        except IntegrityError as error:
            self._note(error.message)
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
            self._note(f"{name!r} was recovered from this worker; attempt {number} is not counted")
            return
        line = closed.line
        self._fitness.note(name, line.outcome, line.wall_s or 0.0)
        outcomes = self._report.outcomes
        outcomes[line.outcome.value] = outcomes.get(line.outcome.value, 0) + 1
        if line.to == "done":
            self._promoter.finished(name)
        if self._fitness.unfit:
            self.leave(
                f"the last {self._settings.node_failures} tasks on {self._place.host} each failed "
                f"within {self._settings.node_failure_s:g} s; this node may be broken",
                WorkerExit.NODE_UNFIT,
            )

    def _write_end(self, name: str, line: HistoryLine) -> None:
        event = {
            "event": "end",
            "at": line.ended_at,
            "task": name,
            "attempt": line.attempt,
            "claim": line.claim,
            "outcome": line.outcome.value,
            "to": line.to,
            "exit_code": line.exit_code,
            "wall_s": line.wall_s,
            "log": f"{self.tree.paths.root}/{line.log}" if line.log else "",
            "reason": line.reason,
        }
        self._journal.write(event)
        self._on_event(event)

    # -- looking around

    def _look_around(self) -> None:
        now = time.monotonic()
        if self._signal:
            self._obey_signal()
        self._obey_heartbeat()
        for slot in self._slots:
            attempt = slot.attempt
            if attempt is not None and attempt.deadline is not None and now >= attempt.deadline:
                limit = attempt.held.record.spec.timeout_s
                self._stop(slot, StopReason.TIMEOUT, f"stopped after its timeout of {limit} s")
        if now >= self._next_markers:
            # Every few seconds at most, whatever the heartbeat: markers are looked up on the mount.
            self._next_markers = now + max(0.5, min(5.0, self._settings.heartbeat_s / 6))
            self._obey_markers()
            self._obey_walltime()
        if now >= self._next_recover and not self._leaving:
            self._next_recover = now + _RECOVER_EVERY_S * random.uniform(0.8, 1.2)
            self._recover()
        if now >= self._next_promote and not self._leaving:
            self._promote()

    def _obey_signal(self) -> None:
        number, self._signal = self._signal, 0
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

    def _obey_markers(self) -> None:
        paths = self.tree.paths
        try:
            if self.tree.fs.exists(paths.stop_marker):
                self.interrupt(f"STOP marker, {read_markers(self.tree).get('STOP', '')}", 0)
            elif not self._leaving and self.tree.fs.exists(paths.drain_marker):
                self.leave(f"DRAIN marker, {read_markers(self.tree).get('DRAIN', '')}")
        except OSError as error:
            self._note(f"markers cannot be seen: {describe_problem(error)}")

    def _obey_walltime(self) -> None:
        if self._walltime.must_interrupt():
            self.interrupt("the walltime is nearly over", 0)
        elif self._walltime.must_drain():
            self.leave("the walltime left is below the drain margin")

    def _stop(self, slot: Slot, reason: StopReason, detail: str) -> None:
        attempt = slot.attempt
        if attempt is None or attempt.stopped is not None:
            return
        attempt.stopped = reason
        attempt.stop_detail = detail
        ended = slot.runner.stop(self._settings.grace_s)
        if ended is not None:
            self._finish(slot, attempt, ended)

    def _recover(self) -> None:
        try:
            report = recover(
                self.tree,
                ask_this_machine(),
                stop_survivors=stop_survivors,
                but_launches=(self.lease.launch,),
            )
        except OSError as error:
            self._note(f"recovery pass failed: {describe_problem(error)}")
            return
        for item in report.items:
            if item.action in ("recovered", "rolled forward"):
                self._note(f"{item.action} {item.task!r} to {item.to}: {item.reason}")

    def _promote(self) -> None:
        started = time.monotonic()
        try:
            promoted = self._promoter.refresh()
        except (OSError, FleetError) as error:
            self._note(f"waiting tasks cannot be promoted: {describe_problem(error)}")
            promoted = []
        now = time.monotonic()
        pause_s = max(_PROMOTE_EVERY_S, _DUTY * (now - started))
        self._next_promote = now + pause_s * random.uniform(0.8, 1.2)
        if promoted:
            self._next_poll = 0.0

    # -- claims

    def _fill(self) -> bool:
        """Starts tasks in free slots; says whether it started one."""
        if self._next_poll > time.monotonic():
            return False
        started = False
        for slot in self._slots:
            if slot.attempt is not None or self._leaving:
                continue
            try:
                taken = self._claimer.take(slot)
            except OSError as error:
                self._note(f"the spool cannot be used now: {describe_problem(error)}")
                taken = Nothing.CLAIMABLE
            if taken is Nothing.CLAIMABLE:
                self._pause_idle()
                break
            if taken is Nothing.THROUGH_THE_GATE:
                self._next_poll = time.monotonic() + _GATE_POLL_S
                break
            self._idle_pause_s = _IDLE_FIRST_S
            self._idle_since = time.monotonic()
            started = True
            self._begin(slot, taken)
        return started

    def _begin(self, slot: Slot, held: Claim) -> None:
        try:
            closed = settle_without_running(self.tree, held, self._place)
            begun = closed or begin(
                self.tree, slot, held, self._place, self._env, self._oom.read()
            )
        except LogUnwritable as error:
            self._write_trouble += 1
            slot.gate.leave()
            if self._write_trouble >= _WRITE_TROUBLE_LIMIT:
                self.leave(f"no log can be made: {error}", WorkerExit.SPOOL_UNWRITABLE)
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
            self._write_start(slot, begun)
            return
        slot.gate.leave()
        if begun is not None:
            self._write_end(held.name, begun.line)
            self._after_close(held.name, begun, begun.line.attempt)

    def _write_start(self, slot: Slot, attempt: Attempt) -> None:
        event = {
            "event": "start",
            "at": attempt.started_at,
            "task": attempt.held.name,
            "attempt": attempt.number,
            "claim": attempt.held.owner.token,
            "slot": slot.index,
            "pid": attempt.pid,
        }
        self._journal.write(event)
        self._on_event(event)

    # -- waiting and leaving

    def _pause_idle(self) -> None:
        """Nothing is claimable: look again later and later, and think about leaving."""
        now = time.monotonic()
        self._next_poll = now + self._idle_pause_s * random.uniform(0.7, 1.3)
        self._idle_pause_s = min(_IDLE_LIMIT_S, self._idle_pause_s * 1.5)
        if any(slot.attempt for slot in self._slots):
            self._idle_since = now
            return
        self.on_idle()

    def on_idle(self) -> None:
        """Leaves when nothing was claimable for long enough, or when the marker allows it."""
        marker = self._settings.until_marker
        if marker:
            # The order matters: only an empty look after the marker was there counts.
            if self._seen_empty:
                self.leave(f"{marker} exists and the queue was empty after it")
            self._seen_empty = os.path.exists(marker)
            return
        if time.monotonic() - self._idle_since >= self._settings.idle_s:
            self.leave(f"nothing to claim for {self._settings.idle_s:g} s")

    def _wait(self) -> None:
        now = time.monotonic()
        until = min(self._next_markers, self._next_recover, now + 60.0)
        if not self._leaving:
            until = min(until, self._next_promote)
            if any(slot.attempt is None for slot in self._slots):
                until = min(until, self._next_poll)
        for slot in self._slots:
            if slot.attempt is not None and slot.attempt.deadline is not None:
                until = min(until, slot.attempt.deadline)
        fds = [self._wakeup.read_fd, *self.extra_fds()]
        fds += [fd for slot in self._slots if (fd := slot.runner.fileno()) is not None]
        ready, _, _ = select.select(fds, [], [], max(0.0, until - now))
        if self._wakeup.read_fd in ready:
            self._wakeup.clear()
        self.on_ready(ready)

    def extra_fds(self) -> list[int]:
        """Descriptors that end the wait too; see `on_ready`."""
        return []

    def on_ready(self, ready: list[int]) -> None:
        """Called after each wait with the descriptors that are readable."""

    def _leave(self) -> None:
        holds = self._report.exit_code == WorkerExit.SPOOL_UNWRITABLE or self._stuck > 0
        self._heartbeat.leave(self._leaving, holds_claims=holds)
        self._journal.write({"event": "leave", "at": timestamp(), "reason": self._leaving})

    def _note(self, text: str) -> None:
        self._journal.write({"event": "note", "at": timestamp(), "text": text})
        self._on_event({"event": "note", "text": text})

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._wakeup.write_fd, warn_on_full_buffer=False)
        wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        for number in wanted:
            self._old_handlers[number] = signal.signal(number, self._on_signal)
        self._old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number
