"""Demand: which pending tasks a new fleet could take, and what is left of them by present supply.

Read from the spools, computed from numbers; nothing is asked of Slurm here. Invariant: a task
counts only if a fresh fleet of the shape could really claim it, and tasks that could not be read
are no demand.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from fleetcraft.errors import DataError, FleetError
from fleetcraft.fleet.bridges import is_pack
from fleetcraft.fleet.renewal.supply import Supply
from fleetcraft.fleet.shapes import Shape
from fleetcraft.layout import LANES, Lane
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.grid import LastLane, bound_digest
from fleetcraft.spool.record import parse
from fleetcraft.spool.tree import SpoolTree

_READS_A_LOOK = 4000
_MAX_MARGIN_S = 180.0
_STARTED = b'"event":"start"'


class Kind(msgspec.Struct, frozen=True):
    """What matters of a pending task: the walltime it declares, its spool, and its slot."""

    time_s: int | None
    inner: bool
    slot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Pending tasks by kind, as one look saw them.

    Attributes:
        kinds: How many there are of each kind.
        pending: Tasks in the pending folders, of any kind.
        unread: Those that were not read, for want of time or because they were moved just then;
            later looks read them.
        unfit: Those that no new fleet runs or is wanted for: unreadable, to be cancelled, timed
            in the inner spool or in one with a marker, against the law of lane ``last``, or
            packs, whose work is the inner spool's.
        seen_s: When, by the observer's monotonic clock.
    """

    kinds: Counter[Kind]
    pending: int
    unread: int
    unfit: int
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one lane faces.

    Attributes:
        tasks: Tasks that a fleet of the shape could take.
        nodes: Nodes that these justify.
        taken: Tasks of these that present supply will take.
        open_nodes: Nodes that the rest justifies.
        justified: Whether that is a whole fleet of the shape.
    """

    tasks: int
    nodes: float
    taken: int
    open_nodes: float
    justified: bool


class DemandReader:
    """Looks at the pending folders; what a record says of itself is read once and remembered.

    A record's head never changes and its name is never used again, so that a later look costs
    three listings a spool and a read for each task that is new.

    Args:
        outer: The spool of node tasks.
        inner: The spool of single-GPU tasks; None where there is none.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        outer: SpoolTree,
        inner: SpoolTree | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spools = [(outer, False)] + ([(inner, True)] if inner else [])
        self._last_lanes = {inner: LastLane(tree) for tree, inner in self._spools}
        self._known: dict[tuple[bool, str], Kind | None] = {}
        self._laws: dict[bool, str] = {}
        self._objected: set[tuple[bool, str]] = set()
        self._clock = clock
        self._reads = 0

    def look(self) -> Demand:
        """One look.

        Raises:
            OSError: A folder cannot be listed.
        """
        seen_s = self._clock()
        self._reads = _READS_A_LOOK
        kinds: Counter[Kind] = Counter()
        known: dict[tuple[bool, str], Kind | None] = {}
        pending = unread = unfit = 0
        self._objected.clear()
        for tree, inner in self._spools:
            self._heed_law(tree, inner=inner)
            unwanted = set(tree.fs.listdir(tree.paths.cancel))
            # Those of the outer spool keep a pass from submitting anything.
            refuses = inner and bool(read_markers(tree))
            for name, path in _pending(tree):
                pending += 1
                try:
                    kind = self._kind(tree, name, path, inner=inner)
                except OSError:
                    unread += 1  # claimed meanwhile, or not to be read just now
                    continue
                if (inner, name) not in self._objected:
                    known[inner, name] = kind
                if kind is None or name in unwanted or refuses:
                    unfit += 1
                else:
                    kinds[kind] += 1
        self._known = known
        return Demand(kinds=kinds, pending=pending, unread=unread, unfit=unfit, seen_s=seen_s)

    def _heed_law(self, tree: SpoolTree, *, inner: bool) -> None:
        """Forgets what was read of a spool when what binds its lane ``last`` has changed."""
        try:
            law = bound_digest(tree)
        except FleetError as error:
            law = error.message
        if self._laws.get(inner, law) != law:
            self._known = {key: kind for key, kind in self._known.items() if key[0] is not inner}
        self._laws[inner] = law

    def _kind(self, tree: SpoolTree, name: str, path: str, *, inner: bool) -> Kind | None:
        """What matters of a record; None of one that no new fleet would run or is wanted for."""
        if (inner, name) in self._known:
            return self._known[inner, name]
        if self._reads == 0:
            raise OSError(errno.EAGAIN, "read enough for one look")
        self._reads -= 1
        try:
            record = parse(tree.fs.peek(path))
        except DataError:
            return None  # a worker will file it as a failed launch
        in_last = Lane.LAST in (record.spec.lane, os.path.basename(os.path.dirname(path)))
        if in_last and self._last_lanes[inner].objection(record):
            self._objected.add((inner, name))  # or what binds the lane could not be read just now
            return None
        if inner and record.spec.timed:
            return None  # packs pass it over
        if not inner and is_pack(name):
            return None  # it only brings the inner spool's tasks to a node that is there
        return Kind(record.spec.time_s, inner, record.spec.slot)


def _pending(tree: SpoolTree) -> Iterator[tuple[str, str]]:
    for lane in LANES:
        for name in tree.records(tree.paths.lane(lane)):
            yield name, tree.paths.pending_record(name, lane)


def need_of(
    shape: Shape,
    demand: Demand,
    supply: list[Supply],
    *,
    tasks_per_node: int,
    gpus_per_node: int,
    slots: str,
) -> Need:
    """What a lane faces: the tasks that fit it, less those that present supply will take.

    A node is justified by ``tasks_per_node`` tasks of the outer spool, or by so many of the inner
    one for each of its GPUs. Supply takes what it has walltime for: a task that declares its time
    uses so much of a node, one that does not uses an equal share of a whole fleet.

    Args:
        shape: The lane.
        demand: Pending tasks.
        supply: Fleets that run or wait.
        tasks_per_node: Tasks that justify one node.
        gpus_per_node: GPUs of a node, at least 1.
        slots: Slots of a worker: ``1``, a number, or ``gpu``.
    """
    slots = shape.slots or slots
    usable_s = _usable_s(shape.time_s, shape.time_s)
    fitting = Counter(
        {
            kind: count
            for kind, count in demand.kinds.items()
            if (kind.time_s is None or kind.time_s <= usable_s) and _has_slot(kind, slots)
        }
    )
    tasks_at_a_time = {True: gpus_per_node, False: gpus_per_node if slots == "gpu" else int(slots)}
    share = {True: tasks_per_node * gpus_per_node, False: tasks_per_node}
    rest = fitting.copy()
    for job in sorted(supply, key=_left_s):
        _take(rest, job, tasks_at_a_time, share)
    open_nodes = sum(count / share[kind.inner] for kind, count in rest.items())
    return Need(
        tasks=fitting.total(),
        nodes=sum(count / share[kind.inner] for kind, count in fitting.items()),
        taken=fitting.total() - rest.total(),
        open_nodes=open_nodes,
        justified=open_nodes >= shape.nodes - 1e-9,
    )


def _has_slot(kind: Kind, slots: str) -> bool:
    return not kind.slot or (kind.slot == "gpu" and (kind.inner or slots == "gpu"))


def _usable_s(left_s: float, limit_s: float) -> float:
    # Towards the end workers claim nothing more (worker.drain_margin_s, slurm.warning_s), and a
    # fleet takes some seconds to start.
    return left_s - min(_MAX_MARGIN_S, limit_s / 10)


def _left_s(job: Supply) -> float:
    return math.inf if job.left_s is None else job.left_s


def _take(
    rest: Counter[Kind], job: Supply, at_a_time: dict[bool, int], share: dict[bool, int]
) -> None:
    """Takes out of the rest what one job will take, the cheapest first."""
    if job.left_s is None or job.limit_s is None:
        rest.clear()  # without an end in sight it may take everything
        return
    usable_s = _usable_s(job.left_s, job.limit_s)
    capacity_s = job.nodes * usable_s

    def cost_s(kind: Kind) -> float:
        if kind.time_s is None:
            assert job.limit_s is not None
            return job.limit_s / share[kind.inner]
        return kind.time_s / at_a_time[kind.inner]

    for kind in sorted(rest, key=cost_s):
        if capacity_s <= 0 or (kind.time_s is not None and kind.time_s > usable_s):
            continue
        taken = min(rest[kind], math.ceil(capacity_s / cost_s(kind) - 1e-9))
        capacity_s -= taken * cost_s(kind)
        rest[kind] -= taken


def took_work(trees: Iterable[SpoolTree], job: str) -> bool:
    """Whether any worker of a job has started a task, by their journals.

    Args:
        trees: The spools that its workers drain.
        job: Slurm's job id.

    Raises:
        OSError: That cannot be seen.
    """
    for tree in trees:
        for name in tree.fs.listdir(tree.paths.workers):
            if not (name.startswith(f"{job}.") and name.endswith(".jsonl")):
                continue
            if _STARTED in tree.fs.peek(f"{tree.paths.workers}/{name}"):
                return True
    return False
