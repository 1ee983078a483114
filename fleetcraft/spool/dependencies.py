"""Dependencies: which waiting tasks are ready, who blocks whom, and cycles.

A task is ready when every task it names is in ``done``, every glob matches at least one name and
all matches are in ``done``, and its files exist. ``done`` only grows, so a stale view can delay a
promotion but never make a wrong one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import msgspec

from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.layout import Lane, State
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.names import is_glob, matches
from fleetcraft.spool.tree import SpoolTree

MAX_WATCHED = 20_000
"""Waiting tasks that one watcher keeps in memory (about 0.5 KiB each); the rest come later."""
_MAX_KNOWN_DONE = 50_000
_MAX_CYCLE_READS = 2_000
_MAX_CYCLE_EDGES = 1_000_000


class _Watched(msgspec.Struct):
    after: tuple[str, ...]
    after_files: tuple[str, ...]
    lane: Lane
    blocker: str


class Promoter:
    """Moves ready tasks from ``waiting`` to their lanes, judging again only what changed.

    Each waiting task is remembered with the one dependency that blocks it, and is judged again
    when that one is done. Cost of `finished`: a dictionary look-up unless somebody waited for the
    task. Cost of `refresh`: one listing, a read for each task not seen before, and one look at
    each distinct blocker.
    """

    def __init__(self, tree: SpoolTree) -> None:
        self._tree = tree
        self._watched: dict[str, _Watched] = {}
        self._waiters: dict[str, set[str]] = {}
        self._known_done: set[str] = set()
        self._window = 0

    def __len__(self) -> int:
        return len(self._watched)

    def finished(self, name: str) -> list[str]:
        """Judges the tasks that a task just done was blocking; returns what was promoted."""
        waiters = self._waiters.get(name)
        if not waiters:
            return []
        self._known_done.add(name)
        names = _LazyNames(self._tree)
        promoted = [task for task in sorted(waiters) if self._judge(task, names)]
        # Not before: what an error kept from being judged is judged at the next refresh.
        self._waiters.pop(name, None)
        return promoted

    def refresh(self) -> list[str]:
        """Lists ``waiting`` and judges what is new or no longer blocked; returns what was promoted.

        Raises:
            OSError: The spool cannot be listed.
        """
        tree = self._tree
        present = self._next_window(sorted(tree.records(tree.paths.waiting)))
        for gone in self._watched.keys() - set(present):
            self._forget(gone)
        if len(self._known_done) > _MAX_KNOWN_DONE:
            self._known_done.clear()
        self._waiters = {blocker: tasks for blocker, tasks in self._waiters.items() if tasks}
        names = _LazyNames(tree)
        fresh = [name for name in present if name not in self._watched and self._watch(name)]
        unblocked = [
            task
            for blocker, tasks in list(self._waiters.items())
            if self._is_met_now(blocker)
            for task in tasks
        ]
        return [task for task in sorted({*fresh, *unblocked}) if self._judge(task, names)]

    def _next_window(self, names: list[str]) -> list[str]:
        """All names, or the next window of very many: the last may block the first."""
        if len(names) <= MAX_WATCHED:
            return names
        start = self._window % len(names)
        self._window = start + MAX_WATCHED
        return (names[start:] + names[:start])[:MAX_WATCHED]

    def _is_met_now(self, blocker: str) -> bool:
        # A path or a glob has no cheap test of its own, so its waiters are judged every time.
        return os.sep in blocker or is_glob(blocker) or self._is_done(blocker)

    def _watch(self, name: str) -> bool:
        try:
            record = self._tree.read(self._tree.paths.waiting_record(name))
        except (OSError, FleetError):
            return False  # it moved, or cannot be read: `check` and `status` say so
        spec = record.spec
        files = tuple(_absolute(path, spec) for path in spec.after_files)
        self._watched[name] = _Watched(spec.after, files, spec.lane, "")
        return True

    def _forget(self, name: str) -> None:
        watched = self._watched.pop(name, None)
        if watched is not None:
            self._waiters.get(watched.blocker, set()).discard(name)

    def _judge(self, name: str, names: _LazyNames) -> bool:
        watched = self._watched.get(name)
        if watched is None:
            return False
        self._waiters.get(watched.blocker, set()).discard(name)
        watched.blocker = self._first_blocker(name, watched, names)
        if watched.blocker:
            self._waiters.setdefault(watched.blocker, set()).add(name)
            return False
        del self._watched[name]
        paths = self._tree.paths
        return self._tree.move(paths.waiting_record(name), paths.pending_record(name, watched.lane))

    def _first_blocker(self, name: str, watched: _Watched, names: _LazyNames) -> str:
        for dependency in watched.after:
            found = names.matching(dependency, but=name) if is_glob(dependency) else [dependency]
            if not found:
                return dependency
            blocker = next((task for task in found if not self._is_done(task)), "")
            if blocker:
                return blocker
        return next((path for path in watched.after_files if not os.path.exists(path)), "")

    def _is_done(self, name: str) -> bool:
        if name in self._known_done:
            return True
        done = self._tree.fs.exists(self._tree.paths.finished_record(name, State.DONE))
        if done:
            self._known_done.add(name)
        return done


class _LazyNames:
    """The listing of ``names/``, made at most once per pass and only if a glob asks."""

    def __init__(self, tree: SpoolTree) -> None:
        self._tree = tree
        self._names: list[str] | None = None
        self._matched: dict[str, list[str]] = {}

    def matching(self, pattern: str, *, but: str) -> list[str]:
        if self._names is None:
            self._names = sorted(self._tree.fs.listdir(self._tree.paths.names))
        if pattern not in self._matched:
            self._matched[pattern] = matches(pattern, self._names, but="")
        return [name for name in self._matched[pattern] if name != but]


def _absolute(path: str, spec: TaskSpec) -> str:
    return os.path.join(spec.project_dir or os.sep, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """One waiting task and what it waits for.

    ``blocker`` is a task, a glob that matches nothing, or a file; ``blocker_state`` is the
    blocking task's state, ``missing`` for a name that nobody enqueued, or ``file``.
    """

    task: str
    blocker: str
    blocker_state: str


def blocked_tasks(
    tree: SpoolTree, state_of: Callable[[str], str], *, limit: int, only: str = ""
) -> tuple[list[Blocked], list[list[str]], int]:
    """Who blocks whom, for `status`.

    Args:
        tree: The spool.
        state_of: Gives a task's state from listings the caller has, or "" when unknown.
        limit: At most so many waiting tasks are read.
        only: Judge this one task instead of all.

    Returns:
        Blocked tasks in name order, cycles (each a list of names), and how many were left out.
    """
    waiting = [only] if only else sorted(tree.records(tree.paths.waiting))
    names = _LazyNames(tree)
    found: list[Blocked] = []
    graph: dict[str, list[str]] = {}
    for name in waiting[:limit]:
        try:
            spec = tree.read(tree.paths.waiting_record(name)).spec
        except (OSError, FleetError):
            continue
        graph[name] = _expand(spec, names.matching)
        blocker = _describe_blocker(spec, graph[name], names, state_of)
        if blocker:
            found.append(Blocked(task=name, blocker=blocker[0], blocker_state=blocker[1]))
    return found, _cycles(graph), max(0, len(waiting) - limit)


def _describe_blocker(
    spec: TaskSpec, expanded: list[str], names: _LazyNames, state_of: Callable[[str], str]
) -> tuple[str, str] | None:
    for dependency in spec.after:
        if is_glob(dependency) and not names.matching(dependency, but=spec.name):
            return dependency, "missing"
    unmet = [(task, state_of(task) or "missing") for task in expanded]
    unmet = [(task, state) for task, state in unmet if state != State.DONE]
    # A failed blocker is the one that a person has to do something about.
    failed = [pair for pair in unmet if pair[1] in (State.FAILED, "missing")]
    if unmet:
        return (failed or unmet)[0]
    missing = [path for path in spec.after_files if not os.path.exists(_absolute(path, spec))]
    return (missing[0], "file") if missing else None


def _expand(spec: TaskSpec, matching: Callable[..., list[str]]) -> list[str]:
    expanded: list[str] = []
    for dependency in spec.after:
        expanded += matching(dependency, but=spec.name) if is_glob(dependency) else [dependency]
    return expanded


def _cycles(graph: dict[str, list[str]]) -> list[list[str]]:
    found: list[list[str]] = []
    remaining = {task: [d for d in after if d in graph] for task, after in graph.items()}
    while len(found) < 10:
        cycle = _one_cycle(remaining)
        if not cycle:
            break
        found.append(cycle)
        for task in cycle:
            remaining.pop(task, None)
    return found


def _one_cycle(graph: dict[str, list[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[:-1]
    return []


def refuse_cycles(tree: SpoolTree, specs: Iterable[TaskSpec]) -> None:
    """Refuses new tasks that would wait for themselves through others.

    Follows the new tasks' dependencies through the batch and through at most 2,000 waiting
    records; a longer way round is left to `status`, which reports it.

    Raises:
        UsageError: There is a cycle; it is spelled out.
    """
    fresh = {spec.name: spec for spec in specs}
    if not any(spec.after for spec in fresh.values()):
        return
    graph = _reachable(tree, fresh)
    cycle = _one_cycle(graph)
    if cycle:
        round_trip = " -> ".join([*cycle, cycle[0]])
        raise UsageError(
            f"these tasks wait for one another: {round_trip}; nothing was enqueued",
            hint="the arrow points from a task to one that waits for it; break one --after",
            cycle=cycle,
        )


def _reachable(tree: SpoolTree, fresh: dict[str, TaskSpec]) -> dict[str, list[str]]:
    every_name: list[str] | None = None
    matched: dict[str, list[str]] = {}

    def matching(pattern: str, *, but: str) -> list[str]:
        nonlocal every_name
        if every_name is None:
            every_name = sorted({*tree.fs.listdir(tree.paths.names), *fresh})
        if pattern not in matched:
            matched[pattern] = matches(pattern, every_name, but="")
        return [name for name in matched[pattern] if name != but]

    graph: dict[str, list[str]] = {}
    todo = [spec for spec in fresh.values() if spec.after]
    reads = edges = 0
    while todo and reads < _MAX_CYCLE_READS and edges < _MAX_CYCLE_EDGES:
        spec = todo.pop()
        graph[spec.name] = _expand(spec, matching)
        edges += len(graph[spec.name])
        for name in graph[spec.name]:
            if name in graph or name in fresh:
                continue
            reads += 1
            try:
                todo.append(tree.read(tree.paths.waiting_record(name)).spec)
            except (OSError, DataError):
                graph[name] = []
    return graph
