"""Several workers on this machine, without Slurm: done when nothing is claimable any more.

The parent starts the workers, listens to them, recovers the claims of one that dies, and sends all
home once every one of them has walked the queue in vain while none of them held a task. It has one
telemetry logger for all, unless the run is over within a second.
Invariant: what is counted is what the spool did: each closed claim once, also across a worker's
death.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass, field, replace

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.spool import leases
from fleetcraft.spool.control import promote, read_markers, refuse_markers
from fleetcraft.spool.recovery import ask_this_machine, recover
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.spool.views import counts
from fleetcraft.worker.diary import OnEvent
from fleetcraft.worker.member_process import MemberProcess, fork, may_fork, start_afresh
from fleetcraft.worker.settings import LocalRunReport, WorkerExit, WorkerSettings
from fleetcraft.worker.survivors import stop_survivors
from fleetcraft.worker.telemetry_logger import TelemetryLogger

_HEARTBEAT_LIMIT_S = 5.0
_RESTARTS = 5
_POLL_S = 1.0
_LOGGER_AFTER_S = 1.0


@dataclass(kw_only=True)
class _Member:
    index: int
    process: MemberProcess
    buffer: bytes = b""
    launch: str = ""
    idle: bool = False
    chance_at: float | None = None
    restarts: int = 0


@dataclass(kw_only=True)
class _Count:
    """Closed claims by what became of them, each counted once."""

    seen: set[str] = field(default_factory=set)
    done: int = 0
    failed: int = 0
    interrupted: int = 0
    retried: int = 0

    def add(self, claim: str, outcome: str, to: str) -> None:
        if claim in self.seen:
            return
        self.seen.add(claim)
        if to == "done":
            self.done += 1
        elif to == "failed":
            self.failed += 1
        elif outcome in ("interrupted", "lost"):
            self.interrupted += 1
        else:
            self.retried += 1


def run_local(
    settings: WorkerSettings, workers: int, on_event: OnEvent, *, forks: bool = False
) -> LocalRunReport:
    """Runs workers on this machine until nothing is claimable and none holds a task.

    They die with this process. A worker that dies is replaced, at most five times.

    Args:
        settings: How each worker behaves; its rank and ranks are set here.
        workers: How many.
        on_event: Told of every worker's events, with its index as ``worker``; what its telemetry
            logger has to say is a note without it.
        forks: Whether this process is small and of our own making, so that workers may be forked
            from it while it has one thread: they start in a moment then.

    Raises:
        SpoolError: There is no spool, it is not safe, or a DRAIN or STOP marker stands.
    """
    tree = SpoolTree(settings.spool_dir).check_safe()
    refuse_markers(tree)
    return _LocalFleet(tree, settings, workers, on_event, forks=forks).run()


class _LocalFleet:
    def __init__(
        self,
        tree: SpoolTree,
        settings: WorkerSettings,
        workers: int,
        on_event: OnEvent,
        *,
        forks: bool = False,
    ) -> None:
        self._tree = tree
        self._forks = forks
        heartbeat_s = min(settings.heartbeat_s, _HEARTBEAT_LIMIT_S)
        self._settings = replace(settings, ranks=workers, heartbeat_s=heartbeat_s)
        self._on_event = on_event
        self._count = _Count()
        self._report = LocalRunReport()
        self._signal = 0
        self._confirming = False
        self._dismissed = False
        self._members: list[_Member] = []
        self._workers = workers
        self._telemetry: TelemetryLogger | None = None

    def run(self) -> LocalRunReport:
        started = time.monotonic()
        old = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            # One that was started by nohup does not hear of its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            self._recover(earlier=True)
            for index in range(self._workers):
                if not self._signal:
                    self._members.append(self._start(index))
            while self._members:
                self._listen()
                self._log_after(started + _LOGGER_AFTER_S)
                self._bury()
                self._dismiss_if_done()
        finally:
            self._abandon()
            if self._telemetry is not None:
                self._telemetry.end()
            for number, handler in old.items():
                signal.signal(number, handler)
        return self._summary(started)

    def _abandon(self) -> None:
        """Sends home whoever is left after an error here, and waits until their tasks are back."""
        for member in self._members:
            _close_pipes(member)
            member.process.terminate()
        for member in self._members:
            member.process.wait()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number
        for member in self._members:
            if member.process.poll() is None:
                member.process.send_signal(
                    signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
                )

    def _start(self, index: int, restarts: int = 0) -> _Member:
        settings = replace(self._settings, rank=index, telemetry_interval_s=0.0)
        if self._forks and may_fork():
            from fleetcraft.worker.member import run_member

            process = fork(settings, run_member)
        else:
            process = start_afresh(settings)
        if self._signal:
            process.terminate()  # it came while this one was not yet among those who are told
        return _Member(index=index, process=process, restarts=restarts)

    def _listen(self) -> None:
        pipes = {_stdout(member): member for member in self._members}
        words = self._telemetry.fds() if self._telemetry is not None else []
        ready, _, _ = select.select([*pipes, *words], [], [], _POLL_S)
        for fd in ready:
            if fd in pipes:
                self._read(pipes[fd])
        if self._telemetry is not None:
            texts = self._telemetry.hear(ready)
            if self._telemetry.lost and not self._dismissed:
                self._dismissed = True
                self._report.stopped.append(self._telemetry.lost)
                # The workers first: whoever hears of it may count on no further claim.
                self._say(f"leave {self._telemetry.lost}")
            for text in texts:
                self._on_event({"event": "note", "text": text})

    def _log_after(self, moment: float) -> None:
        """Starts the logger of this machine once: a run of a moment leaves no telemetry file."""
        if self._telemetry is None and time.monotonic() >= moment and not self._dismissed:
            self._telemetry = TelemetryLogger(self._settings)

    def _read(self, member: _Member) -> bool:
        chunk = os.read(_stdout(member), 65536)
        *lines, member.buffer = (member.buffer + chunk).split(b"\n")
        for line in lines:
            self._hear(member, msgspec.json.decode(line, type=dict[str, object]))
        return bool(chunk)

    def _hear(self, member: _Member, event: dict[str, object]) -> None:
        kind = event["event"]
        if kind == "idle":
            member.idle = True
            chance_s = event.get("next_chance_s")
            member.chance_at = (
                time.monotonic() + chance_s if isinstance(chance_s, int | float) else None
            )
            return
        if kind in ("start", "end"):  # the start of a short task is not told
            member.idle = False
            self._confirming = False
        if kind == "end":
            self._count.add(str(event["claim"]), str(event["outcome"]), str(event["to"]))
        elif kind == "arrive":
            member.launch = str(event["launch"])
        elif kind == "refused":
            self._report.stopped.append(f"worker {member.index}: {event['text']}")
        elif kind == "leave":
            self._hear_leave(member, event)
        self._on_event({**event, "worker": member.index})

    def _hear_leave(self, member: _Member, event: dict[str, object]) -> None:
        if not self._dismissed:
            self._report.stopped.append(f"worker {member.index}: {event['reason']}")

    def _bury(self) -> None:
        for member in list(self._members):
            if member.process.poll() is None:
                continue
            while self._read(member):
                pass
            self._members.remove(member)
            _close_pipes(member)
            code = member.process.returncode
            if code in (WorkerExit.LEFT, WorkerExit.INTERRUPTED, WorkerExit.TERMINATED):
                continue
            if code > 0 and code in (*WorkerExit, 2, 3, 5):
                self._recover()
                continue
            self._replace(member, code)

    def _replace(self, member: _Member, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._tell(member, f"worker {member.index} {how}")
        self._count_journal(member)
        self._recover()
        if self._signal or self._dismissed:
            return
        if member.restarts >= _RESTARTS:
            self._report.stopped.append(f"worker {member.index} {how}, {_RESTARTS} times replaced")
            return
        self._members.append(self._start(member.index, member.restarts + 1))

    def _count_journal(self, member: _Member) -> None:
        """Counts what the dead worker had closed but not told."""
        if member.launch:
            for event in leases.read_journal(self._tree, member.launch)[0]:
                if event.get("event") == "end":
                    self._count.add(str(event["claim"]), str(event["outcome"]), str(event["to"]))

    def _recover(self, *, earlier: bool = False) -> None:
        """Closes the claims of the dead: of this run's workers, or of what ran here earlier."""
        try:
            report = recover(self._tree, ask_this_machine(), stop_survivors=stop_survivors)
        except OSError as error:
            self._report.stopped.append(f"recovery failed: {describe_problem(error)}")
            return
        for item in report.items:
            if item.claim:
                self._report.recovered += 1
                if not earlier:
                    self._count.add(item.claim, "lost", item.to)

    def _dismiss_if_done(self) -> None:
        """Sends all home once every worker's last walk found nothing and none holds a task.

        A worker files what it ran, and promotes what waited for it, before it walks again. What it
        made claimable, a fellow may have taken whose word of that is still on its way; so when all
        are idle each is asked to look once more, and none may have started anything since.
        """
        if self._dismissed or not self._members or not all(m.idle for m in self._members):
            return
        if any(m.chance_at is not None for m in self._members):
            return  # a task asked to be tried again later: that is still to come
        if self._confirming and self._promote():
            self._confirming = False
        self._dismissed = self._confirming
        self._confirming = not self._dismissed
        self._say("leave" if self._dismissed else "look")

    def _promote(self) -> bool:
        """Whether something that waits was ready: each worker knows but what it met itself."""
        try:
            return bool(promote(self._tree))
        except (OSError, FleetError) as error:
            self._report.stopped.append(f"waiting tasks are left: {describe_problem(error)}")
            return False

    def _say(self, word: str) -> None:
        """Says something to every worker, which is busy until it answers."""
        for member in self._members:
            member.idle = False
            pipe = member.process.stdin
            if pipe is not None:
                try:
                    pipe.write(f"{word}\n".encode())
                    pipe.flush()
                except BrokenPipeError:
                    continue  # it is leaving already

    def _tell(self, member: _Member, text: str) -> None:
        self._on_event({"event": "note", "text": text, "worker": member.index})

    def _summary(self, started: float) -> LocalRunReport:
        report = self._report
        report.done = self._count.done
        report.failed = self._count.failed
        report.interrupted = self._count.interrupted
        report.retried = self._count.retried
        report.wall_s = round(time.monotonic() - started, 3)
        now = counts(self._tree)
        report.left = {state: now[state] for state in ("waiting", "pending", "running")}
        report.stopped += [
            f"{name} marker, {said}" for name, said in read_markers(self._tree).items()
        ]
        if self._signal:
            report.exit_code = 128 + self._signal
        elif report.failed or report.stopped:
            report.exit_code = 1
        return report


def _close_pipes(member: _Member) -> None:
    for pipe in (member.process.stdin, member.process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # a word that it did not live to hear
                pipe.close()


def _stdout(member: _Member) -> int:
    assert member.process.stdout is not None
    return member.process.stdout.fileno()
