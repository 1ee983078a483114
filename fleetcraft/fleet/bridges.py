"""Bridges: packs that are published because a GPU was seen to be free and single-GPU work waits.

A pack is an outer task that has a node alone and gives each of its GPUs a slot on the inner spool.
What was seen is handed to the decision; here is also the look that needs no telemetry, by what
the spool itself tells. Nothing here runs a pack. Invariant: what is not known to be free is not
counted, and however many controllers publish at once, no more packs live than the cap allows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from fleetcraft.errors import FleetError
from fleetcraft.layout import INNER_SPOOL, LANES, Lane, State
from fleetcraft.spool import leases
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import BatchReport, complete_publication, enqueue_batch
from fleetcraft.spool.grid import LastLane, law_of
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import Outcome, Record, closing_lines, compose, parse
from fleetcraft.spool.tree import SpoolTree

_PACK_NAME = re.compile(r"pack-[0-9a-f]{8}-[0-9]{1,9}")
_READ_LIMIT = 2000
_FAILURES = 10
MAX_AGE_S = 300.0


class NodeUse(StrEnum):
    """What a node is used for, as far as somebody saw it."""

    FREE = "free"
    BRIDGED = "bridged"
    WORKING = "working"
    UNKNOWN = "unknown"


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one node, or one GPU of it, that were seen in one use.

    Attributes:
        host: The node.
        gpus: How many; None when nobody said.
        use: What they are used for.
        age_s: How old that sight is; None when that is not known.
        reason: A sentence about it.
    """

    host: str
    gpus: int | None
    use: NodeUse
    age_s: float | None
    reason: str


class Bridges(msgspec.Struct, frozen=True, kw_only=True):
    """Packs that are published and not finished.

    Attributes:
        running: Names of those that a worker holds.
        waiting: Names of those that none holds yet.
        failed_in_a_row: How many of the present kind have failed since one was completed, counted
            up to ten; cancelled ones are passed over.
        next_number: The first number that none of the present kind has ever had.
    """

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    failed_in_a_row: int
    next_number: int

    @property
    def live(self) -> int:
        """How many there are."""
        return len(self.running) + len(self.waiting)


class BridgePlan(msgspec.Struct, frozen=True, kw_only=True):
    """How many packs to add, and what that follows from.

    Attributes:
        free_gpus: GPUs seen free on nodes that no task holds.
        unknown: Sights that say nothing, and so count for nothing.
        pending: Single-GPU tasks that a pack could run now, counted up to the cap.
        cap: The most packs that may live.
        add: How many to add.
        reason: Why not more.
    """

    nodes: tuple[NodeGpus, ...]
    bridges: Bridges
    free_gpus: int
    unknown: int
    pending: int
    cap: int
    add: int
    reason: str


# -- the decision


def bridges_to_add(*, free_gpus: int, live: int, pending: int, cap: int) -> int:
    """The rule: ``min(free - live, pending, cap - live)``, never below 0.

    One bridge for each free GPU: nodes have one, two or three of them, and dividing by three
    leaves a mixed fleet idle. Those that find their node taken leave after a while.

    Args:
        free_gpus: Observed free GPUs, those that live bridges were published for included.
        live: Bridges that are published and not finished.
        pending: Untimed tasks of the inner spool that could be claimed now.
        cap: The most bridges that may live.
    """
    return max(0, min(free_gpus - live, pending, cap - live))


def plan_bridges(
    nodes: Sequence[NodeGpus],
    bridges: Bridges,
    pending: int,
    cap: int,
    *,
    max_age_s: float = MAX_AGE_S,
    stopped: str = "",
) -> BridgePlan:
    """Decides how many packs to add.

    A pack that runs took its node out of what is seen free, so it is counted on both sides of the
    rule: as one GPU that was free for it, and as a live bridge.

    Args:
        nodes: What was seen.
        bridges: What lives already.
        pending: Tasks that a pack could run now.
        cap: The most packs that may live.
        max_age_s: A sight that is older says nothing.
        stopped: Why none may be added now; empty when they may.
    """
    nodes = tuple(_with_age(node, max_age_s) for node in nodes)
    free = sum(node.gpus or 0 for node in nodes if node.use is NodeUse.FREE)
    limits = {
        f"the cap of {cap} is reached": cap - bridges.live,
        "no more GPUs are seen free": free + len(bridges.running) - bridges.live,
        "no more single-GPU tasks are pending": pending,
    }
    add = bridges_to_add(
        free_gpus=free + len(bridges.running), live=bridges.live, pending=pending, cap=cap
    )
    if bridges.failed_in_a_row >= _FAILURES:
        stopped = stopped or f"the last {_FAILURES} packs failed: look at their logs"
    return BridgePlan(
        nodes=nodes,
        bridges=bridges,
        free_gpus=free,
        unknown=sum(node.use is NodeUse.UNKNOWN for node in nodes),
        pending=pending,
        cap=cap,
        add=0 if stopped else add,
        reason=stopped or min(limits, key=limits.__getitem__),
    )


def _with_age(node: NodeGpus, max_age_s: float) -> NodeGpus:
    if node.use is not NodeUse.FREE:
        return node
    if node.gpus is None:
        why = "how many GPUs it has is not known"
    elif node.age_s is None:
        why = "how old the sight of it is, is not known"
    elif node.age_s > max_age_s:
        why = f"it was last seen {node.age_s:.0f} s ago"
    else:
        return node
    return msgspec.structs.replace(node, use=NodeUse.UNKNOWN, reason=why)


# -- what there is


def observe_workers(outer: SpoolTree) -> list[NodeGpus]:
    """What the spool itself tells: nodes whose worker lives and holds no task have free GPUs.

    A lease that has not changed for three intervals, by the clock of the mount, says nothing. One
    entry for each launch that has not left.

    Raises:
        OSError: The spool cannot be read, or nothing can be written there to compare with.
    """
    held: dict[str, list[str]] = {}
    for task, owner in outer.claims():
        held.setdefault(owner.lease_name, []).append(task)
    with leases.ages_on_mount(outer) as age_of:
        seen = [
            _observe(lease, held.get(lease.name, []), age_of)
            for lease in leases.read_all(outer)
            if lease.left_at is None and lease.role == "worker"
        ]
    return sorted(seen, key=lambda node: node.host)


def _observe(lease: Lease, tasks: list[str], age_of: Callable[[Lease], float]) -> NodeGpus:
    def seen(use: NodeUse, age_s: float | None, reason: str) -> NodeGpus:
        gpus = lease.gpus or None
        return NodeGpus(host=lease.host, gpus=gpus, use=use, age_s=age_s, reason=reason)

    try:
        age_s = max(0.0, age_of(lease))
    except OSError as error:
        return seen(NodeUse.UNKNOWN, None, f"its lease cannot be seen: {error.strerror}")
    if age_s > leases.SILENT_INTERVALS * lease.interval_s:
        return seen(NodeUse.UNKNOWN, age_s, f"its worker was last heard {age_s:.0f} s ago")
    packs = list(filter(is_pack, tasks))
    if packs:
        return seen(NodeUse.BRIDGED, age_s, f"{packs[0]} has it")
    if tasks:
        return seen(NodeUse.WORKING, age_s, f"{tasks[0]} runs on it")
    if not lease.gpus:
        return seen(NodeUse.UNKNOWN, age_s, "its worker does not say how many GPUs it has")
    return seen(NodeUse.FREE, age_s, "its worker waits for work")


def find_bridges(outer: SpoolTree, digest: str) -> Bridges:
    """The packs that live: published, or being published, and in neither ``done`` nor ``failed``.

    Names are read first and ends after them, so that a pack which moves or is being published
    meanwhile is counted. Costs three listings and one of ``running``.

    Args:
        outer: The outer spool.
        digest: The present kind of packs.

    Raises:
        OSError: The spool cannot be listed.
    """
    names = {name for name in outer.fs.listdir(outer.paths.names) if is_pack(name)}
    failed = names.intersection(outer.records(outer.paths.failed))
    live = names - failed - set(outer.records(outer.paths.done))
    running = live.intersection(name for name, _ in outer.claims())
    numbers = {
        int(name.rpartition("-")[2]): name for name in names if name.startswith(f"pack-{digest}-")
    }
    newest_first = (numbers[number] for number in sorted(numbers, reverse=True))
    return Bridges(
        running=tuple(sorted(running)),
        waiting=tuple(sorted(live - running)),
        failed_in_a_row=_failed_in_a_row(outer, newest_first, live=live, failed=failed),
        next_number=max(numbers, default=0) + 1,
    )


def _failed_in_a_row(
    outer: SpoolTree, newest_first: Iterable[str], *, live: set[str], failed: set[str]
) -> int:
    count = 0
    for name in newest_first:
        if name in live:
            continue
        if name not in failed or count >= _FAILURES:
            break
        try:
            lines = closing_lines(outer.read(outer.paths.finished_record(name, State.FAILED)))
        except (OSError, FleetError):
            continue  # retried meanwhile, or unreadable: it says nothing
        count += bool(lines) and lines[-1].outcome is not Outcome.CANCELLED
    return count


def count_packable(inner: SpoolTree, limit: int) -> int:
    """Pending tasks that a slot of a pack may claim: untimed, for any slot or a GPU, declared.

    Counted up to a limit, from at most 2,000 records.

    Raises:
        OSError: The spool cannot be listed.
    """
    last_lane = LastLane(inner)
    count = read = 0
    for lane in LANES:
        for name in sorted(inner.records(inner.paths.lane(lane))):
            if count >= limit or read >= _READ_LIMIT:
                return count
            read += 1
            count += _is_packable(inner, name, lane, last_lane)
    return count


def _is_packable(inner: SpoolTree, name: str, lane: Lane, last_lane: LastLane) -> bool:
    try:
        record = parse(inner.fs.peek(inner.paths.pending_record(name, lane)))
        if Lane.LAST in (lane, record.spec.lane) and last_lane.objection(record):
            return False
    except (OSError, FleetError):
        return False  # gone meanwhile, or no record: no work that is known of
    return not record.spec.timed and record.spec.slot in ("", "gpu")


def what_forbids(outer: SpoolTree, inner: SpoolTree) -> str:
    """Why no pack may be added now: a marker that would end it at once; empty when it may."""
    for which, tree in (("outer", outer), ("inner", inner)):
        for marker, said in read_markers(tree).items():
            return f"{marker} stands in the {which} spool, {said}"
    return ""


# -- packs


def pack_command(program: Sequence[str], root: str, inner_dir: str, *, idle_s: float) -> str:
    """The command of a pack: a worker with one slot for each GPU of the node.

    Args:
        program: The words that start fleetcraft, the first an absolute path.
        root: The scratch tree.
        inner_dir: The inner spool.
        idle_s: It leaves after so long without work in any slot.
    """
    worker = ["worker", "--spool", "gpu", "--slots", "gpu", "--idle", f"{idle_s:g}"]
    if inner_dir == f"{root}/{INNER_SPOOL}":
        return f"exec {shlex.join([*program, '--root', root, *worker])}"
    # A root given as an option would mean that tree's own inner spool.
    there = f"FLEET_ROOT={shlex.quote(root)} FLEET_SPOOL_GPU_DIR={shlex.quote(inner_dir)}"
    return f"{there} exec {shlex.join([*program, *worker])}"


def pack_task(outer: SpoolTree, command: str, project_dir: str) -> TaskSpec:
    """A pack as a task without a number yet.

    It is timed, which is how a task has its node alone, and comes after all whole-node work.
    """
    lane = Lane.PLAIN if law_of(outer) else Lane.LAST
    return TaskSpec(name="pack", command=command, project_dir=project_dir, timed=True, lane=lane)


def is_pack(name: str) -> bool:
    """Whether a task of this name is a pack that was published here."""
    return _PACK_NAME.fullmatch(name) is not None


def kind_of(task: TaskSpec) -> str:
    """Eight hex digits that are equal for equal packs."""
    record: Record = parse(compose(task, "0" * 12))
    return record.identity[:8]


def publish_bridges(
    outer: SpoolTree, task: TaskSpec, plan: BridgePlan
) -> tuple[list[str], BatchReport]:
    """Publishes the packs of a plan; also what another controller began and left.

    Numbers go on from the plan's own look at the spool, and a name is put only if it is absent:
    two controllers that planned from the same sight publish the same packs.

    Returns:
        Their names, and how many of them this call published.

    Raises:
        SpoolError: The spool could not be written.
    """
    for name in plan.bridges.waiting:
        try:
            complete_publication(outer, name)
        except (OSError, FleetError):
            continue  # its own controller may be at it; `check` tells of what stays so
    first = plan.bridges.next_number
    digest = kind_of(task)
    specs = [
        msgspec.structs.replace(task, name=f"pack-{digest}-{number}")
        for number in range(first, first + plan.add)
    ]
    report = enqueue_batch(outer, specs, if_absent=True) if specs else BatchReport()
    return [spec.name for spec in specs], report
