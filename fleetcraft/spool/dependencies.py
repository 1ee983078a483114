"""Dependencies: who blocks whom, and cycles.

A task is ready when every task it names is in ``done``, every glob matches at least one name and
all matches are in ``done``, and its files exist; `promotion` moves it then. Invariant: looking
changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from fleetcraft.errors import DataError, FleetError, UsageError
from fleetcraft.layout import State
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.globs import Globs, first_but, is_among
from fleetcraft.spool.names import first_in_order, is_glob, matches
from fleetcraft.spool.tree import SpoolTree

_MAX_CYCLE_READS = 2_000
_MAX_CYCLE_EDGES = 1_000_000


def absolute(path: str, spec: TaskSpec) -> str:
    """A file that a task waits for: relative ones begin in its project."""
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
    waiting, total = [only], 1
    if not only:
        waiting, total = first_in_order(tree.scan_records(tree.paths.waiting), limit)
    specs: dict[str, TaskSpec] = {}
    for name in waiting[:limit]:
        try:
            specs[name] = tree.read(tree.paths.waiting_record(name)).spec
        except (OSError, FleetError):
            continue
    blockers = _Blockers(tree, state_of, specs.values())
    found = [
        Blocked(task=name, blocker=blocker[0], blocker_state=blocker[1])
        for name, spec in specs.items()
        if (blocker := blockers.of(name, spec))
    ]
    return found, _cycles(_add_edges({}, specs, sorted(specs))), max(0, total - limit)


class _Blockers:
    """What each of some waiting tasks waits for; what a pattern waits for is found out once."""

    def __init__(
        self, tree: SpoolTree, state_of: Callable[[str], str], specs: Iterable[TaskSpec]
    ) -> None:
        self._state_of = state_of
        self._globs = Globs(tree, lambda name: state_of(name) == State.DONE)
        self._globs.announce(text for spec in specs for text in spec.after if is_glob(text))
        self._of_pattern: dict[str, tuple[str, str] | None] = {}

    def of(self, name: str, spec: TaskSpec) -> tuple[str, str] | None:
        """The blocker and its state; None for a task that is ready."""
        unmet: list[tuple[str, str]] = []
        for dependency in spec.after:
            if not is_glob(dependency):
                found = self._worst([dependency])
            elif not first_but(name, self._globs.matching(dependency)):
                return dependency, "missing"
            else:
                found = self._behind(dependency, name)
            if found:
                unmet.append(found)
        if unmet:
            return next((pair for pair in unmet if _is_hopeless(pair)), unmet[0])
        missing = [path for path in spec.after_files if not os.path.exists(absolute(path, spec))]
        return (missing[0], "file") if missing else None

    def _behind(self, pattern: str, name: str) -> tuple[str, str] | None:
        unmet = self._globs.unmet(pattern)
        if is_among(name, unmet):
            return self._worst(other for other in unmet if other != name)
        if pattern not in self._of_pattern:
            self._of_pattern[pattern] = self._worst(unmet)
        return self._of_pattern[pattern]

    def _worst(self, names: Iterable[str]) -> tuple[str, str] | None:
        # A failed blocker is the one that a person has to do something about.
        first = None
        for name in names:
            pair = (name, self._state_of(name) or "missing")
            if _is_hopeless(pair):
                return pair
            if first is None and pair[1] != State.DONE:
                first = pair
        return first


def _is_hopeless(blocker: tuple[str, str]) -> bool:
    return blocker[1] in (State.FAILED, "missing")


def _add_edges(
    graph: dict[str, list[str]], specs: Mapping[str, TaskSpec], names: list[str]
) -> dict[str, list[str]]:
    """Adds what each task waits for among some names; a pattern is a node of its own.

    Otherwise a thousand tasks that wait for the same hundred thousand would be as many edges. A
    task that its own pattern matches does not wait for itself, so it has edges of its own.
    """
    for name, spec in specs.items():
        graph[name] = []
        for dependency in spec.after:
            if not is_glob(dependency):
                graph[name].append(dependency)
                continue
            if dependency not in graph:
                graph[dependency] = matches(dependency, names, but="")
            if is_among(name, graph[dependency]):
                graph[name] += [other for other in graph[dependency] if other != name]
            else:
                graph[name].append(dependency)
    return graph


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
    """The tasks of a circle, in order; patterns on the way are left out."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return [task for task in cycle[:-1] if not is_glob(task)]
    return []


def refuse_cycles(tree: SpoolTree, specs: Iterable[TaskSpec]) -> None:
    """Refuses new tasks that would wait for themselves through others.

    Follows the new tasks' dependencies through the batch and through at most 2,000 waiting
    records; a longer way round is left to `status`, which reports it. Costs, if any task waits, a
    read for each waiting one that is met on the way, and a listing of ``waiting`` if a glob is.

    Raises:
        UsageError: There is a cycle; it is spelled out.
    """
    fresh = {spec.name: spec for spec in specs}
    if not any(spec.after for spec in fresh.values()):
        return
    cycle = _one_cycle(_reachable(tree, fresh))
    if cycle:
        round_trip = " -> ".join([*cycle, cycle[0]])
        raise UsageError(
            f"these tasks wait for one another: {round_trip}; nothing was enqueued",
            hint="the arrow points from a task to one that waits for it; break one --after",
            cycle=cycle,
        )


def _reachable(tree: SpoolTree, fresh: dict[str, TaskSpec]) -> dict[str, list[str]]:
    # Only tasks that wait lead on, so a glob is looked up among those and never among all names.
    waiting: list[str] | None = None
    graph: dict[str, list[str]] = {}
    known = dict(fresh)
    todo = [spec for spec in fresh.values() if spec.after]
    reads = edges = 0
    while todo and reads < _MAX_CYCLE_READS and edges < _MAX_CYCLE_EDGES:
        spec = todo.pop()
        if waiting is None and any(map(is_glob, spec.after)):
            waiting = sorted({*tree.records(tree.paths.waiting), *fresh})
        new = _follow(spec, waiting or [], graph)
        edges += len(new)
        for name in new:
            if name in known or is_glob(name):
                continue
            reads += 1
            try:
                known[name] = tree.read(tree.paths.waiting_record(name)).spec
                todo.append(known[name])
            except (OSError, DataError):
                graph[name] = []
    return graph


def _follow(spec: TaskSpec, names: list[str], graph: dict[str, list[str]]) -> list[str]:
    """Adds one task to a graph; returns the names that it, or a pattern new with it, leads to."""
    new = {text for text in spec.after if is_glob(text) and text not in graph}
    _add_edges(graph, {spec.name: spec}, names)
    return graph[spec.name] + [name for pattern in new for name in graph[pattern]]
