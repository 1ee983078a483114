"""What the spools' journals say about a span of time: who was there, what ran, how much waited.

Reads both spools, changes nothing, and asks no scheduler. Invariant: what a journal does not tell
stays open or empty, and a spool that cannot be read is a problem in words, never an empty queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from fleetcraft.errors import SpoolError
from fleetcraft.spool import leases
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.journals import NO_EVENT, Event, decode_event, event_lines, seconds

SPOOLS = ("outer", "inner")
_CLOCK_STEP_S = 3600.0
"""A launch that left so long before the span is passed over unread: its clock may have stepped."""
_COMMAND = "command"
_HEARTBEAT_S = 30.0  # where a lease does not say it


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task.

    Attributes:
        spool: ``outer`` or ``inner``.
        claim: The token of its claim, which is never used again.
        lease: The launch that ran it.
        slot: Where in its worker; None when no start was written down.
        gpus: UUIDs; empty when they are not known, or when it had the whole node.
        start_s: Seconds since 1970.
        end_s: None when no end was written down: it runs, or its worker is gone.
        outcome: Empty while there is no end.
    """

    spool: str
    task: str
    family: str = ""
    host: str = ""
    job: str = ""
    lease: str
    claim: str
    slot: int | None = None
    gpus: tuple[str, ...] = ()
    start_s: float
    end_s: float | None = None
    outcome: str = ""

    def until_s(self, last_s: Mapping[str, float | None]) -> float | None:
        """When it ended; without an end, until when its worker was there (see `last_seen_s`)."""
        return last_s.get(self.lease) if self.end_s is None else self.end_s


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks were in each state of one spool at one moment (seconds since 1970)."""

    t_s: float
    spool: str
    waiting: int
    pending: int
    running: int
    done: int
    failed: int


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """One worker, from its arrival to its leave, in seconds since 1970.

    Attributes:
        end_s: None when it did not say that it left: it is there, or it died.
        seen_s: When its lease was last written, by the clock of the file system, or its last line
            if that is later; None when it has no lease.
        interval_s: Between its heartbeats; None when that is not known.
        gpus: Of its node, as it counted them; 0 also when it could not tell.
    """

    spool: str
    host: str
    job: str
    lease: str
    start_s: float
    end_s: float | None = None
    seen_s: float | None = None
    interval_s: float | None = None
    slots: int = 1
    gpus: int = 0

    @property
    def last_s(self) -> float | None:
        """Until when it was there, as far as its leave or its heartbeats tell; None for ever.

        One that did not leave counts until three intervals after its last beat.
        """
        if self.end_s is not None or self.seen_s is None:
            return self.end_s
        return self.seen_s + leases.SILENT_INTERVALS * (self.interval_s or _HEARTBEAT_S)

    def overlaps(self, start_s: float, end_s: float) -> bool:
        """Whether it was there in a span, as far as is known."""
        return self.start_s <= end_s and (self.last_s is None or self.last_s >= start_s)


def last_seen_s(workers: Iterable[Presence]) -> dict[str, float | None]:
    """Until when the worker of each launch was there; see `Presence.last_s`."""
    return {worker.lease: worker.last_s for worker in workers}


class Queue(msgspec.Struct, kw_only=True):
    """What was found, everything in order of time.

    Attributes:
        runs: Attempts that overlap the span.
        depths: Those of the span, and for each spool the last one before it.
        workers: Those that were there in the span, or may have been.
        journals: How many were read.
        passed_over: How many were not, since their launch had left long before the span.
        damaged_lines: Lines that are no event.
        problems: What could not be read or is contradictory, for people.
    """

    runs: list[Run] = msgspec.field(default_factory=list)
    depths: list[Depth] = msgspec.field(default_factory=list)
    workers: list[Presence] = msgspec.field(default_factory=list)
    journals: int = 0
    passed_over: int = 0
    damaged_lines: int = 0
    problems: list[str] = msgspec.field(default_factory=list)

    def depth_at(self, spool: str, t_s: float) -> Depth | None:
        """The last known depth of a spool at a moment; None before the first one."""
        found = None
        for depth in self.depths:
            if depth.t_s > t_s:
                break
            found = depth if depth.spool == spool else found
        return found

    def running_spans(self, spool: str, start_s: float, end_s: float) -> list[tuple[float, float]]:
        """When tasks of a spool ran, one span a run, within two moments.

        A run whose end nobody has told counts as long as its worker was there.
        """
        last_s = last_seen_s(self.workers)
        spans = []
        for run in self.runs:
            told_s = run.until_s(last_s)
            begun_s = max(start_s, run.start_s)
            ended_s = end_s if told_s is None else min(end_s, told_s)
            if run.spool == spool and begun_s < ended_s:
                spans.append((begun_s, ended_s))
        return spans


def read_queue(
    spool_dirs: Mapping[str, str], *, since_s: float | None = None, until_s: float | None = None
) -> Queue:
    """Reads the journals and leases of some spools, one line at a time.

    Costs one pass over the journals; kept is only what touches the span. Launches that left more
    than an hour before it are not opened.

    Args:
        spool_dirs: ``outer`` and ``inner`` to their folders; a missing or unsafe one is a problem
            in the answer, not an error.
        since_s: Where the span begins, in seconds since 1970; None for as far back as there is.
        until_s: Where it ends; None for no end.
    """
    queue = Queue()
    span = (-math.inf if since_s is None else since_s, math.inf if until_s is None else until_s)
    for spool, folder in spool_dirs.items():
        try:
            _Reading(queue, spool, SpoolTree(folder).check_safe(), span).read()
        except SpoolError as error:
            queue.problems.append(f"{spool} spool not read: {error.message}")
        except OSError as error:
            queue.problems.append(f"{spool} spool not read: {folder}: {error.strerror}")
    queue.runs.sort(key=lambda run: (run.start_s, run.task))
    queue.depths.sort(key=lambda depth: depth.t_s)
    queue.workers.sort(key=lambda worker: (worker.start_s, worker.lease))
    return queue


# ------------------------------------------------------------------------------------ one spool


class _End(msgspec.Struct, frozen=True):
    t_s: float
    outcome: str


class _Launch:
    """One launch while its journal is read."""

    def __init__(self, name: str, lease: Lease | None, seen_s: float | None) -> None:
        self.name = name
        self.seen_s = seen_s
        self.job = lease.job if lease else name.partition(".")[0]
        self.host = lease.host if lease else ""
        self.slots = lease.slots if lease else 1
        self.gpus = lease.gpus if lease else 0
        self.interval_s = lease.interval_s if lease else None
        self.slot_gpus = lease.slot_gpus if lease else ()
        self.start_s = seconds(lease.started_at) if lease else None
        self.end_s = seconds(lease.left_at) if lease and lease.left_at else None

    def arrive(self, event: Event, t_s: float) -> None:
        self.start_s = t_s
        self.slots = self.slots if event.slots is None else event.slots
        self.gpus = self.gpus if event.gpus is None else event.gpus
        self.host = event.host or self.host
        self.job = event.job or self.job
        if event.slot_gpus is not None:
            self.slot_gpus = tuple(event.slot_gpus)

    def saw(self, t_s: float | None) -> None:
        """It lived at that time."""
        if t_s is not None and self.seen_s is not None:
            self.seen_s = max(self.seen_s, t_s)

    def gpus_of(self, slot: int | None) -> tuple[str, ...]:
        if slot is None or not 0 <= slot < len(self.slot_gpus):
            return ()
        gpu = self.slot_gpus[slot]
        return (gpu,) if gpu else ()


class _Reading:
    def __init__(
        self, queue: Queue, spool: str, tree: SpoolTree, span: tuple[float, float]
    ) -> None:
        self._queue = queue
        self._spool = spool
        self._tree = tree
        self._since_s, self._until_s = span
        self._open: dict[str, Run] = {}
        self._left: dict[str, float] = {}
        self._ends: dict[str, _End] = {}
        self._last_before: Depth | None = None

    def read(self) -> None:
        files = set(self._tree.fs.listdir(self._tree.paths.workers))
        stems = {file.rsplit(".", 1)[0] for file in files if file.endswith((".json", ".jsonl"))}
        for name in sorted(stems):
            lease = leases.read(self._tree, name) if f"{name}.json" in files else None
            if lease is not None and lease.role == _COMMAND:
                continue
            launch = _Launch(name, lease, self._seen_s(name))
            if launch.end_s is not None and launch.end_s < self._since_s - _CLOCK_STEP_S:
                self._queue.passed_over += 1
                continue
            if f"{name}.jsonl" in files:
                self._read_journal(launch)
            self._keep_presence(launch)
        if self._last_before is not None:
            self._queue.depths.append(self._last_before)
        self._keep_open_runs()

    def _seen_s(self, name: str) -> float | None:
        try:
            return self._tree.fs.lstat(self._tree.paths.lease(name)).st_mtime
        except OSError:
            return None

    def _read_journal(self, launch: _Launch) -> None:
        try:
            for line in event_lines(self._tree.paths.journal(launch.name), self._tree.uid):
                try:
                    event = decode_event(line)
                except NO_EVENT:
                    self._queue.damaged_lines += 1
                    continue
                self._take(launch, event)
        except OSError as error:
            self._queue.problems.append(
                f"{self._spool} spool: journal {launch.name} not read: {error.strerror}"
            )
            return
        self._queue.journals += 1

    def _take(self, launch: _Launch, event: Event) -> None:
        if event.event not in ("arrive", "start", "end", "depth", "leave"):
            return
        t_s = seconds(event.at)
        launch.saw(t_s)
        if t_s is None or (event.event in ("start", "end") and not event.claim):
            self._queue.damaged_lines += 1
        elif event.event == "start":
            self._open[event.claim] = self._run(launch, event, t_s)
        elif event.event == "end":
            self._end(launch, event, t_s)
        elif event.event == "depth":
            self._depth(event, t_s)
        elif event.event == "arrive":
            launch.arrive(event, t_s)
        else:
            launch.end_s = t_s
            self._left[launch.name] = t_s

    def _run(self, launch: _Launch, event: Event, start_s: float) -> Run:
        return Run(
            spool=self._spool,
            task=event.task,
            family=event.family or "",
            host=launch.host,
            job=launch.job,
            lease=launch.name,
            claim=event.claim,
            slot=event.slot,
            gpus=launch.gpus_of(event.slot),
            start_s=start_s,
        )

    def _end(self, launch: _Launch, event: Event, t_s: float) -> None:
        run = self._open.pop(event.claim, None)
        if run is None:
            # It never ran, or its start is lost, or another launch has closed it.
            self._ends[event.claim] = _End(t_s, event.outcome)
            run = self._run(launch, event, t_s - max(0.0, event.wall_s or 0.0))
        self._keep(msgspec.structs.replace(run, end_s=t_s, outcome=event.outcome))

    def _keep(self, run: Run) -> None:
        end_s = run.end_s
        if end_s is not None and end_s < run.start_s:  # its clock was set back meanwhile
            run = msgspec.structs.replace(run, end_s=run.start_s)
            end_s = run.start_s
        if run.start_s <= self._until_s and (end_s is None or end_s >= self._since_s):
            self._queue.runs.append(run)

    def _keep_open_runs(self) -> None:
        lost = 0
        # Of what has both halves, in two journals, the end's own half is dropped.
        halved = self._open.keys() & self._ends.keys()
        self._queue.runs = [run for run in self._queue.runs if run.claim not in halved]
        for claim, run in self._open.items():
            end = self._ends.get(claim)
            if end is not None:
                self._keep(msgspec.structs.replace(run, end_s=end.t_s, outcome=end.outcome))
                continue
            left_s = self._left.get(run.lease)
            lost += left_s is not None
            if left_s is None or left_s >= self._since_s:  # it has not outlived its worker
                self._keep(run)
        if lost:
            self._queue.problems.append(
                f"{self._spool} spool: {lost} started and have no end, though their worker has "
                "left; when they ended is not known"
            )

    def _depth(self, event: Event, t_s: float) -> None:
        counts = (event.waiting, event.pending, event.running, event.done, event.failed)
        if any(count is None or count < 0 for count in counts):
            self._queue.damaged_lines += 1
            return
        waiting, pending, running, done, failed = (int(count or 0) for count in counts)
        depth = Depth(
            t_s=t_s,
            spool=self._spool,
            waiting=waiting,
            pending=pending,
            running=running,
            done=done,
            failed=failed,
        )
        if self._since_s <= t_s <= self._until_s:
            self._queue.depths.append(depth)
        elif t_s < self._since_s and (self._last_before is None or self._last_before.t_s < t_s):
            self._last_before = depth

    def _keep_presence(self, launch: _Launch) -> None:
        start_s = launch.start_s
        if start_s is None or start_s > self._until_s:
            return
        if launch.end_s is not None and launch.end_s < self._since_s:
            return
        self._queue.workers.append(
            Presence(
                spool=self._spool,
                host=launch.host,
                job=launch.job,
                lease=launch.name,
                start_s=start_s,
                end_s=launch.end_s,
                seen_s=launch.seen_s,
                interval_s=launch.interval_s,
                slots=launch.slots,
                gpus=launch.gpus,
            )
        )
