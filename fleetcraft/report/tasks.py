"""The tasks of one spool: what there is, what ran, what failed, what was slow.

Reads every record once, and lists; changes nothing. Invariant: a record that cannot be read is
counted by its reason and still counts as a task of its state.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, RECORD_SUFFIX, State
from fleetcraft.report.failures import Ended, group_failures
from fleetcraft.report.pace import pace_of
from fleetcraft.report.scope import Scope, seconds_of
from fleetcraft.report.standing import blocked_of, hindrance_of, running_of, workers_of
from fleetcraft.report.task_records import Attempt, Group, Pace, Retried, SpoolPart
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.record import HistoryLine, Outcome, Record, closing_lines
from fleetcraft.spool.tree import SpoolTree, describe_problem

_NUMBER = re.compile(r"\d+")
_LEFT = (State.WAITING, State.PENDING, State.RUNNING)

Progress = Callable[[str, int, int], None]
"""Is told what is read, how many are done, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many entries lists have at most, and whether logs are quoted."""

    quote_logs: bool = True
    groups: int = 20
    failures: int = 20
    slowest: int = 12
    retried: int = 12
    running: int = 12


@dataclass(frozen=True, kw_only=True)
class _Task:
    name: str
    state: State
    path: str
    owner: Owner | None = None


@dataclass
class _Gathered:
    """What was read of one spool while it is read."""

    counts: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    damaged: int = 0
    groups: dict[str, _OfGroup] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    completed: list[tuple[Attempt, _OfGroup]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    completed_s: list[float] = field(default_factory=list)
    other_s: list[float] = field(default_factory=list)
    final_s: list[float] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    untimed: int = 0
    retried: list[Retried] = field(default_factory=list)
    failed_tasks: set[str] = field(default_factory=set)
    claims: list[tuple[str, Owner]] = field(default_factory=list)


@dataclass
class _OfGroup:
    is_family: bool
    counts: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    failed: int = 0
    walls_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0


def gather_spool(
    spool: str,
    folder: str,
    scope: Scope,
    *,
    now_s: float | None,
    limits: Limits,
    progress: Progress | None = None,
) -> SpoolPart | None:
    """Reads one spool.

    Args:
        spool: ``outer`` or ``gpu``.
        folder: Its folder.
        scope: Which attempts count.
        now_s: The time, for the ETA; None when the scope lies in the past.
        limits: Of lists.
        progress: Is told how far it is.

    Returns:
        None for a spool that has no task, or none of the jobs.

    Raises:
        SpoolError: It is not there, or not safe.
        OSError: It cannot be listed.
    """
    tree = SpoolTree(folder).check_safe()
    tasks = _list(tree)
    found = _Gathered()
    for done, task in enumerate(tasks):
        if progress and done % 100 == 0:
            progress(f"{spool} spool", done, len(tasks))
        _take(tree, task, scope, found)
    if not tasks or (scope.jobs and not found.counts.total() and not found.unread):
        return None
    markers = read_markers(tree)
    workers = workers_of(tree)
    states = {task.name: task.state.value for task in tasks}
    blocked = None if scope.jobs else blocked_of(tree, states)
    left = sum(found.counts[state.value] for state in _LEFT)
    hindrance = hindrance_of(markers, workers, blocked, left)
    failures, failures_left_out, logs_not_read = group_failures(
        found.ended, found.failed_tasks, limit=limits.failures, quote=limits.quote_logs
    )
    groups = _groups(found)
    retried = sorted(
        found.retried, key=lambda one: (-one.attempts, one.state != State.FAILED.value, one.task)
    )
    outcomes = Counter(attempt.outcome for attempt in found.attempts)
    return SpoolPart(
        spool=spool,
        folder=folder,
        counts={state.value: found.counts[state.value] for state in State},
        blocked=blocked,
        markers=markers,
        workers=workers,
        outcomes=dict(outcomes.most_common()),
        wall_s=_wall_by_outcome(found.attempts),
        unread=dict(found.unread.most_common()),
        damaged_lines=found.damaged,
        first_s=min(found.times_s, default=None),
        last_s=max(found.times_s, default=None),
        pace=_pace(found, left, now_s, hindrance),
        groups=tuple(groups[: limits.groups]),
        groups_left_out=max(0, len(groups) - limits.groups),
        failures=failures,
        failures_left_out=failures_left_out,
        logs_not_read=logs_not_read,
        slowest=_slowest(found, limits.slowest),
        retried=tuple(retried[: limits.retried]),
        retried_left_out=max(0, len(retried) - limits.retried),
        running=tuple(running_of(tree, found.claims, limits.running)),
        running_left_out=max(0, len(found.claims) - limits.running),
    )


# ---------------------------------------------------------------------------------------- reading


def _list(tree: SpoolTree) -> list[_Task]:
    """Every task once; one that moves meanwhile counts where it was seen last."""
    paths = tree.paths
    listed = [(State.WAITING, paths.waiting)]
    listed += [(State.PENDING, paths.lane(lane)) for lane in LANES]
    seen: dict[str, _Task] = {}
    for state, folder in listed:
        _add(tree, seen, state, folder)
    for name, owner in tree.claims():
        path = paths.claim(name, owner)
        seen[name] = _Task(name=name, state=State.RUNNING, path=path, owner=owner)
    _add(tree, seen, State.DONE, paths.done)
    _add(tree, seen, State.FAILED, paths.failed)
    return list(seen.values())


def _add(tree: SpoolTree, seen: dict[str, _Task], state: State, folder: str) -> None:
    for name in tree.records(folder):
        seen[name] = _Task(name=name, state=state, path=f"{folder}/{name}{RECORD_SUFFIX}")


def _take(tree: SpoolTree, task: _Task, scope: Scope, found: _Gathered) -> None:
    try:
        task, record = _read(tree, task)
    except (OSError, FleetError) as error:
        found.unread[_cause(error)] += 1
        if not scope.jobs:
            found.counts[task.state.value] += 1
        return
    found.damaged += record.damaged
    lines = [line for line in closing_lines(record) if line.attempt]
    own = [line for line in lines if scope.holds(line)]
    if scope.jobs and not own and not (task.owner and task.owner.job in scope.jobs):
        return
    found.counts[task.state.value] += 1
    if task.state is State.FAILED:
        found.failed_tasks.add(task.name)
    if task.owner is not None:
        found.claims.append((task.name, task.owner))
    group = _group_of(found, record)
    group.counts[task.state.value] += 1
    for line in own:
        _count(tree, task, line, found, group)
    if len(lines) > 1 and own:
        found.retried.append(
            Retried(
                task=task.name,
                state=task.state.value,
                attempts=len(lines),
                outcomes=dict(Counter(line.outcome.value for line in lines)),
                log=_log(tree, lines[-1]),
            )
        )


def _read(tree: SpoolTree, task: _Task) -> tuple[_Task, Record]:
    try:
        return task, tree.read(task.path)
    except FileNotFoundError:  # it has moved since it was listed
        there = tree.find(task.name)
        moved = _Task(name=task.name, state=there.state, path=there.path, owner=there.owner)
        return moved, tree.read(there.path)


def _cause(error: Exception) -> str:
    """A reason that is the same for all records that have it."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return describe_problem(error).partition(":")[0]


def _count(
    tree: SpoolTree, task: _Task, line: HistoryLine, found: _Gathered, group: _OfGroup
) -> None:
    attempt = Attempt(
        task=task.name,
        attempt=line.attempt,
        outcome=line.outcome.value,
        exit_code=line.exit_code,
        signal=line.signal,
        host=line.host,
        ended_at=line.ended_at,
        wall_s=line.wall_s,
        log=_log(tree, line),
    )
    found.attempts.append(attempt)
    group.attempts += 1
    group.wall_s += line.wall_s or 0.0
    completed = line.outcome is Outcome.COMPLETED
    if not completed:
        group.failed += 1
        found.ended.append(Ended(attempt=attempt, reason=line.reason))
    elif line.wall_s is not None:
        group.walls_s.append(line.wall_s)
        found.completed.append((attempt, group))
    start_s, end_s = seconds_of(line.started_at), seconds_of(line.ended_at)
    found.times_s += [at for at in (start_s, end_s) if at is not None]
    if end_s is None:
        found.untimed += 1
        return
    (found.completed_s if completed else found.other_s).append(end_s)
    if line.to in ("done", "failed"):
        found.final_s.append(end_s)


def _log(tree: SpoolTree, line: HistoryLine) -> str:
    """The log of an attempt; none where the record names one outside its spool."""
    inside = line.log and ".." not in line.log.split("/")
    return f"{tree.paths.root}/{line.log}" if inside else ""


def _group_of(found: _Gathered, record: Record) -> _OfGroup:
    spec = record.spec
    name = spec.family or common_name(spec.name)
    return found.groups.setdefault(f"{bool(spec.family):d}{name}", _OfGroup(bool(spec.family)))


def common_name(name: str) -> str:
    """A name with ``*`` for its numbers: what ``gen-00017`` and ``gen-00018`` have in common."""
    return _NUMBER.sub("*", name)


def _groups(found: _Gathered) -> list[Group]:
    made = [
        Group(
            name=key[1:],
            is_family=one.is_family,
            counts={state.value: one.counts[state.value] for state in State},
            attempts=one.attempts,
            failed_attempts=one.failed,
            median_wall_s=statistics.median(one.walls_s) if one.walls_s else None,
            longest_wall_s=max(one.walls_s, default=None),
            wall_s=one.wall_s,
        )
        for key, one in found.groups.items()
    ]
    return sorted(made, key=lambda group: (-sum(group.counts.values()), group.name))


def _wall_by_outcome(attempts: Sequence[Attempt]) -> dict[str, float]:
    total: dict[str, float] = {}
    for attempt in attempts:
        if attempt.wall_s is not None:
            total[attempt.outcome] = total.get(attempt.outcome, 0.0) + attempt.wall_s
    return {outcome: round(total[outcome], 3) for outcome in sorted(total, key=lambda o: -total[o])}


def _slowest(found: _Gathered, limit: int) -> tuple[Attempt, ...]:
    """The longest attempts that completed; what was stopped is among the failures."""
    found.completed.sort(key=lambda pair: -(pair[0].wall_s or 0.0))
    slowest = []
    for attempt, group in found.completed[:limit]:
        median_s = statistics.median(group.walls_s)
        times = (attempt.wall_s or 0.0) / median_s if median_s > 0 else None
        slowest.append(msgspec.structs.replace(attempt, times_median=times))
    return tuple(slowest)


def _pace(found: _Gathered, left: int, now_s: float | None, hindrance: str) -> Pace:
    return pace_of(
        found.completed_s,
        found.other_s,
        found.final_s,
        left=left,
        now_s=now_s,
        hindrance=hindrance,
        untimed=found.untimed,
    )
