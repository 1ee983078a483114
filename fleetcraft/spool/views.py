"""What can be said of tasks and of the whole spool: the records that commands print.

Reading only. Invariant: a value that was not measured is None, and lists that are cut say by how
much.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleetcraft.errors import NoSuchTaskError
from fleetcraft.identity import Owner, this_host
from fleetcraft.layout import LANES, State
from fleetcraft.spool import leases
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.dependencies import Blocked, blocked_tasks
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.names import first_in_order, near
from fleetcraft.spool.record import HistoryLine, Record, closing_lines
from fleetcraft.spool.tree import Location, SpoolTree

_LOOKS_AT_MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """One attempt.

    ``outcome`` is None while it runs. ``log`` is an absolute path, empty when there is none.
    """

    attempt: int
    outcome: str | None
    exit_code: int | None = None
    signal: int | None = None
    host: str = ""
    started_at: str | None = None
    ended_at: str | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    max_rss_bytes: int | None = None
    log: str = ""
    to: str | None = None
    reason: str = ""
    outputs: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One task: where it is, what it runs, what happened."""

    name: str
    state: State
    path: str
    record: Record
    attempts: tuple[AttemptView, ...]
    owner: str = ""
    cancel_requested: bool = False
    waits_for: Blocked | None = None


@dataclass(kw_only=True)
class StatusView:
    """The whole spool at a glance.

    Attributes:
        counts: Tasks by state.
        lanes: Pending tasks by lane.
        markers: DRAIN and STOP, with who wrote them.
        workers: Leases of launches that have not left.
        blocked: Waiting tasks with what blocks them; ``blocked_left_out`` were not read.
        cycles: Waiting tasks that wait for one another.
        failed: Names of failed tasks, newest first; ``failed_left_out`` are not listed, and
            ``failed_not_dated`` of those were not even looked at, so they may be newer.
        running: Claims, as task and owner; ``running_left_out`` are not listed.
    """

    root: str
    counts: dict[str, int]
    lanes: dict[str, int]
    markers: dict[str, str]
    workers: list[tuple[Lease, bool | None]] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    blocked_left_out: int = 0
    cycles: list[list[str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    failed_left_out: int = 0
    failed_not_dated: int = 0
    running: list[tuple[str, Owner]] = field(default_factory=list)
    running_left_out: int = 0


def counts(tree: SpoolTree) -> dict[str, int]:
    """Tasks by state: one listing a folder. A task that moves meanwhile may be seen twice or not.

    Counts names as they come and keeps none.

    Returns:
        Every state by name, also those that are empty.
    """
    return {
        State.WAITING.value: _count(tree, tree.paths.waiting),
        State.PENDING.value: sum(_count(tree, tree.paths.lane(lane)) for lane in LANES),
        State.RUNNING.value: len(tree.claims()),
        State.DONE.value: _count(tree, tree.paths.done),
        State.FAILED.value: _count(tree, tree.paths.failed),
    }


def _count(tree: SpoolTree, folder: str) -> int:
    return sum(map(len, tree.scan_records(folder)))


def status(tree: SpoolTree, *, limit: int = 20, read_limit: int = 2000) -> StatusView:
    """The spool at a glance.

    Costs one listing a folder and, up to ``read_limit`` of each, a read for each waiting task, a
    few looks for each of its dependencies, and one for each failed task. Memory does not grow with
    the spool, unless waiting tasks have globs that match much of it.

    Args:
        tree: The spool.
        limit: At most so many failed, running and blocked tasks are named.
        read_limit: At most so many waiting tasks are read to find out who blocks them, and so many
            failed ones looked at to find out which are the newest.
    """
    paths = tree.paths
    lanes = {lane.value or "plain": _count(tree, paths.lane(lane)) for lane in LANES}
    waiting, done = _count(tree, paths.waiting), _count(tree, paths.done)
    claims = sorted(tree.claims(), key=lambda claim: claim[0])
    states = _States(tree, {name for name, _ in claims})
    blocked, cycles, unread = (
        blocked_tasks(tree, states.of, limit=read_limit) if waiting else ([], [], 0)
    )
    dated, failed_count = first_in_order(tree.scan_records(paths.failed), read_limit)
    failed = _newest_first(tree, dated)
    return StatusView(
        root=paths.root,
        counts={
            State.WAITING.value: waiting,
            State.PENDING.value: sum(lanes.values()),
            State.RUNNING.value: len(claims),
            State.DONE.value: done,
            State.FAILED.value: failed_count,
        },
        lanes=lanes,
        markers=read_markers(tree),
        workers=_present_workers(tree),
        blocked=blocked[:limit],
        blocked_left_out=max(0, len(blocked) - limit) + unread,
        cycles=cycles,
        failed=failed[:limit],
        failed_left_out=max(0, failed_count - limit),
        failed_not_dated=failed_count - len(dated),
        running=claims[:limit],
        running_left_out=max(0, len(claims) - limit),
    )


class _States:
    """The states of tasks that others wait for: looked at one by one, or listed if they are many.

    Args:
        tree: The spool.
        running: Every task that is claimed.
    """

    def __init__(self, tree: SpoolTree, running: set[str]) -> None:
        self._tree = tree
        self._running = running
        self._known: dict[str, str] = {}
        self._listed: dict[str, str] | None = None

    def of(self, name: str) -> str:
        """The state; empty for a task that is nowhere."""
        if self._listed is not None:
            if name not in self._listed:
                self._listed[name] = self._look(name)  # it moved while that was listed
            return self._listed[name]
        if name not in self._known:
            if len(self._known) >= _LOOKS_AT_MOST:
                self._listed = self._list()
                return self.of(name)
            self._known[name] = self._look(name)
        return self._known[name]

    def _look(self, name: str) -> str:
        if name in self._running:
            return State.RUNNING.value
        paths, exists = self._tree.paths, self._tree.fs.exists
        # What waiting tasks wait for is pending or done, mostly.
        if any(exists(paths.pending_record(name, lane)) for lane in LANES):
            return State.PENDING.value
        if exists(paths.finished_record(name, State.DONE)):
            return State.DONE.value
        if exists(paths.finished_record(name, State.FAILED)):
            return State.FAILED.value
        if exists(paths.waiting_record(name)):
            return State.WAITING.value
        # Claimed since the claims were listed, perhaps: only a name that is free is nowhere.
        location = self._tree.locate(name) if exists(paths.name(name)) else None
        return location.state.value if location is not None else ""

    def _list(self) -> dict[str, str]:
        paths = self._tree.paths
        folders = [(State.FAILED, paths.failed), (State.DONE, paths.done)]
        folders += [(State.WAITING, paths.waiting)]
        folders += [(State.PENDING, paths.lane(lane)) for lane in LANES]
        listed = {
            name: state.value
            for state, folder in folders
            for names in self._tree.scan_records(folder)
            for name in names
        }
        return listed | dict.fromkeys(self._running, State.RUNNING.value)


def _newest_first(tree: SpoolTree, names: list[str]) -> list[str]:
    def changed(name: str) -> float:
        try:
            return tree.fs.lstat(tree.paths.finished_record(name, State.FAILED)).st_mtime
        except OSError:
            return 0.0

    return sorted(names, key=changed, reverse=True)


def _present_workers(tree: SpoolTree) -> list[tuple[Lease, bool | None]]:
    here = this_host()
    present = [lease for lease in leases.read_all(tree) if lease.left_at is None]
    return [(lease, leases.lives_here(lease, here)) for lease in present if lease.role == "worker"]


def show(tree: SpoolTree, name: str) -> TaskView:
    """One task, with its attempts in order and the one that runs now, if any.

    Raises:
        NoSuchTaskError: No task has this name.
        DataError: Its record cannot be read.
    """
    location, record = _read_settled(tree, name)
    attempts = [_attempt(tree, line) for line in closing_lines(record) if line.attempt]
    if location.owner is not None and record.closing_line(location.owner.token) is None:
        attempts.append(_running_attempt(tree, record, location.owner))
    blocked = None
    if location.state is State.WAITING:
        blocked = _blocker_of(tree, name)
    return TaskView(
        name=name,
        state=location.state,
        path=location.path,
        record=record,
        attempts=tuple(attempts),
        owner=str(location.owner or ""),
        cancel_requested=tree.fs.exists(tree.paths.cancel_marker(name)),
        waits_for=blocked,
    )


def _read_settled(tree: SpoolTree, name: str) -> tuple[Location, Record]:
    for _ in range(8):
        location = tree.find(name)
        try:
            return location, tree.read(location.path)
        except FileNotFoundError:
            continue
    raise NoSuchTaskError(name, near(name, tree.each(tree.paths.names)))


def _blocker_of(tree: SpoolTree, name: str) -> Blocked | None:
    def state_of(other: str) -> str:
        location = tree.locate(other)
        return location.state.value if location else ""

    blocked, _, _ = blocked_tasks(tree, state_of, limit=1, only=name)
    return blocked[0] if blocked else None


def _attempt(tree: SpoolTree, line: HistoryLine) -> AttemptView:
    return AttemptView(
        attempt=line.attempt,
        outcome=line.outcome.value,
        exit_code=line.exit_code,
        signal=line.signal,
        host=line.host,
        started_at=line.started_at,
        ended_at=line.ended_at,
        wall_s=line.wall_s,
        cpu_s=line.cpu_s,
        max_rss_bytes=line.max_rss_bytes,
        log=f"{tree.paths.root}/{line.log}" if line.log else "",
        to=line.to,
        reason=line.reason,
        outputs=tuple(
            {"path": o.path, "size_bytes": o.size_bytes, "sha256": o.sha256, "problem": o.problem}
            for o in line.outputs
        ),
    )


def _running_attempt(tree: SpoolTree, record: Record, owner: Owner) -> AttemptView:
    lease = leases.read(tree, owner.lease_name)
    events, _ = leases.read_journal(tree, owner.lease_name)
    started: dict[str, Any] = next(
        (
            e
            for e in reversed(events)
            if e.get("event") == "start" and e.get("claim") == owner.token
        ),
        {},
    )
    attempt = int(started.get("attempt", record.next_attempt))
    log = tree.paths.log(record.spec.name, attempt)
    return AttemptView(
        attempt=attempt,
        outcome=None,
        host=lease.host if lease else "",
        started_at=started.get("at"),
        log=log if tree.fs.exists(log) else "",
    )
