"""What every GPU of the fleet does now: loggers, leases, claims and Slurm's word on one picture.

Reads nothing. Invariant: a GPU that somebody holds and nobody saw is unknown, never idle and never
left out; one that several files tell of counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from fleetcraft.gpu.states import GpuState, classify, count_states
from fleetcraft.telemetry.live.files import Logged, Look
from fleetcraft.telemetry.live.newest import Reading
from fleetcraft.telemetry.live.spool import Running, SpoolLook, Worker

Place = tuple[str, str]
"""Node and job."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says that jobs hold.

    Attributes:
        counts: GPUs by node and job; None where Slurm does not say how many.
        problem: Why there is no answer, or what it lacks.
        age_s: Since Slurm was asked.
    """

    counts: Mapping[Place, int | None] = msgspec.field(default_factory=dict)
    problem: str = ""
    age_s: float | None = None


class GpuNow(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU or slice that somebody holds. ``reading`` is None when nobody has told of it."""

    node: str
    jobs: tuple[str, ...]
    index: int | None = None
    uuid: str = ""
    name: str = ""
    state: GpuState
    reason: str = ""
    reading: Reading | None = None
    tasks: tuple[Running, ...] = ()


class NodeNow(msgspec.Struct, frozen=True, kw_only=True):
    """A node of which something is held.

    Attributes:
        gpus: In the order of their indexes; those that nobody saw come last.
        tasks: What has the whole node, or a GPU that is not known.
        workers: That have not left.
        age_s: Of its newest row about a GPU, else since its logger's file was written; None without
            telemetry.
        notes: What is wrong with its telemetry, in words.
    """

    name: str
    jobs: tuple[str, ...]
    gpus: tuple[GpuNow, ...] = ()
    tasks: tuple[Running, ...] = ()
    workers: int = 0
    age_s: float | None = None
    notes: tuple[str, ...] = ()


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment.

    Attributes:
        nodes: In the order of their names.
        states: How many GPUs are in which state; together they are those allocated.
        spools: The outer and the inner one.
        unplaced: Tasks whose worker's node is not known, or is not among the nodes.
        ended: Loggers that have said that they ended.
        silent_loggers: Nodes whose logger has ended without a word, too long ago to count.
        silent_workers: Nodes whose worker did the same.
        look: What was read of telemetry.
        held: Slurm's word; None when it was not asked.
        forget_s: What counts as too long.
    """

    nodes: list[NodeNow]
    states: dict[GpuState, int]
    spools: list[SpoolLook]
    unplaced: list[Running]
    ended: int
    silent_loggers: list[str]
    silent_workers: list[str]
    look: Look
    held: Held | None
    forget_s: float

    @property
    def gpus(self) -> list[GpuNow]:
        """Every GPU that is held."""
        return [gpu for node in self.nodes for gpu in node.gpus]


def compose(
    look: Look, spools: Sequence[SpoolLook], *, forget_s: float, held: Held | None = None
) -> Picture:
    """Puts together what was seen.

    A GPU counts as allocated while a worker that has not left, or a logger that has not ended, has
    it, and one of the two has spoken within the time to forget; or if Slurm says so.

    Args:
        look: At telemetry.
        spools: At the spools.
        forget_s: After how long without a word a worker or logger counts no more.
        held: What Slurm says.
    """
    workers = [worker for spool in spools for worker in spool.workers]
    live = [worker for worker in workers if worker.age_s is None or worker.age_s <= forget_s]
    shares = _shares(look, live, forget_s, held)
    by_node: dict[str, list[_Share]] = defaultdict(list)
    for _, share in sorted(shares.items()):
        by_node[share.node].append(share)
    tasks, unplaced = _place_tasks(spools, by_node)
    nodes = [_node(name, by_node[name], tasks[name], look) for name in sorted(by_node)]
    counted = {(share.node, share.job) for share in shares.values()}
    return Picture(
        nodes=nodes,
        states=count_states(gpu.state for node in nodes for gpu in node.gpus),
        spools=list(spools),
        unplaced=unplaced,
        ended=sum(bool(one.ended_at) for one in look.logged),
        silent_loggers=_named(
            one.node
            for one in look.logged
            if not one.ended_at and one.age_s > forget_s and (one.node, one.job) not in counted
        ),
        silent_workers=_named(
            worker.lease.host
            for worker in workers
            if worker.age_s is not None and worker.age_s > forget_s
        ),
        look=look,
        held=held,
        forget_s=forget_s,
    )


def _named(nodes: Iterable[str]) -> list[str]:
    return sorted(set(nodes))


# ------------------------------------------------------------------------- who holds what


class _Share:
    """What one job has on one node, from all who tell of it."""

    def __init__(self, node: str, job: str) -> None:
        self.node = node
        self.job = job
        self.logged: Logged | None = None
        self.workers: list[Worker] = []
        self.counts: dict[str, int] = {}
        self.untold = False

    @property
    def slot_gpus(self) -> list[str]:
        """GPUs that its workers name."""
        named = {gpu: None for w in self.workers for gpu in w.lease.slot_gpus if gpu}
        return list(named)

    def expects(self) -> tuple[int, str]:
        """The most GPUs that somebody says it has, and who says so."""
        return max(((count, who) for who, count in self.counts.items()), default=(0, ""))


def _shares(
    look: Look, workers: Iterable[Worker], forget_s: float, held: Held | None
) -> dict[Place, _Share]:
    shares: dict[Place, _Share] = {}

    def share_of(node: str, job: str) -> _Share:
        return shares.setdefault((node, job), _Share(node, job))

    for worker in workers:
        share = share_of(worker.lease.host, worker.lease.job)
        share.workers.append(worker)
        _count(share, "its worker", worker.lease.gpus)
    for place, count in (held.counts if held else {}).items():
        share = share_of(*place)
        share.untold = count is None
        _count(share, "Slurm", count or 0)
    for one in look.logged:
        speaks = not one.ended_at and one.age_s <= forget_s
        if speaks or (one.node, one.job) in shares:
            share = share_of(one.node, one.job)
            share.logged = one
            _count(share, "its logger", one.expected_gpus or 0)
    return shares


def _count(share: _Share, who: str, count: int) -> None:
    share.counts[who] = max(count, share.counts.get(who, 0))


# ---------------------------------------------------------------------------- tasks


def _place_tasks(
    spools: Iterable[SpoolLook], nodes: Mapping[str, object]
) -> tuple[dict[str, list[Running]], list[Running]]:
    placed: dict[str, list[Running]] = defaultdict(list)
    unplaced = []
    for spool in spools:
        for task in spool.running:
            if task.host in nodes:
                placed[task.host].append(task)
            else:
                unplaced.append(task)
    return placed, unplaced


# ---------------------------------------------------------------------------- one node


class _Seen:
    """One GPU of a node while the files are gone through."""

    def __init__(self, reading: Reading | None, job: str, name: str, why: str = "") -> None:
        self.reading = reading
        self.jobs = [job]
        self.name = name
        self.why = why
        self.tasks: list[Running] = []


def _node(name: str, shares: list[_Share], tasks: list[Running], look: Look) -> NodeNow:
    seen = _seen_on(shares)
    _add_named(seen, shares)
    unseen = _unseen(seen, shares, look)
    rest = [task for task in tasks if not _give(task, seen)]
    gpus = sorted((_gpu(name, key, one) for key, one in seen.items()), key=_order)
    ages = [one.reading.seen.age_s for one in seen.values() if one.reading]
    ages = ages or [share.logged.age_s for share in shares if share.logged]
    return NodeNow(
        name=name,
        jobs=tuple(sorted({share.job for share in shares})),
        gpus=(*gpus, *(_unknown(name, job, why) for job, why in unseen)),
        tasks=tuple(sorted(rest, key=lambda task: (task.spool != "outer", task.task))),
        workers=sum(len(share.workers) for share in shares),
        age_s=min(ages, default=None),
        notes=tuple(note for share in shares for note in _notes(share)),
    )


def _seen_on(shares: list[_Share]) -> dict[str, _Seen]:
    """Every GPU that was told of, once, as it was told of last."""
    seen: dict[str, _Seen] = {}
    for share in shares:
        for reading in share.logged.readings if share.logged else ():
            one = reading.seen
            # Without a UUID it can only be told within its own file.
            key = one.uuid or f"{share.job} {one.index}"
            assert share.logged is not None
            name = share.logged.gpu_names.get(reading.gpu_uuid, "")
            known = seen.get(key)
            if known is None:
                seen[key] = _Seen(reading, share.job, name)
                continue
            known.jobs.append(share.job)
            if known.reading is None or one.age_s < known.reading.seen.age_s:
                known.reading, known.name = reading, name or known.name
    return seen


def _find(seen: Mapping[str, _Seen], gpu: str) -> _Seen | None:
    """A GPU by what a worker calls it: UUID, the beginning of one, or an index."""
    if gpu in seen:
        return seen[gpu]
    for key, one in seen.items():
        reading = one.reading
        if gpu.isdecimal():
            matches = reading is not None and reading.seen.index == int(gpu)
        else:  # of a GPU that is cut in slices, the first stands for it
            matches = key.startswith(gpu) or (reading is not None and reading.gpu_uuid == gpu)
        if matches:
            return one
    return None


def _add_named(seen: dict[str, _Seen], shares: Iterable[_Share]) -> None:
    """GPUs that a worker names and no file tells of."""
    for share in shares:
        for gpu in share.slot_gpus:
            found = _find(seen, gpu)
            if found is None:
                seen[gpu] = _Seen(None, share.job, "", "its worker names it")
            elif share.job not in found.jobs:
                found.jobs.append(share.job)


def _unseen(seen: Mapping[str, _Seen], shares: list[_Share], look: Look) -> list[tuple[str, str]]:
    """For each GPU that is held, and neither seen nor named, its job and the reason.

    Of two jobs on one node, the logger of one may have told of the GPUs of both: together they
    lack no more than what both have and nobody has seen.
    """
    lacking: list[tuple[str, str]] = []
    expected = 0
    for share in shares:
        known = sum(share.job in one.jobs for one in seen.values())
        count, who = share.expects()
        why = f"{who} says that there are {count}, {known} are known; {_silence(share, look)}"
        lacking += [(share.job, why)] * (count - known)
        expected += count or known
    return lacking[: max(0, expected - len(seen))]


def _silence(share: _Share, look: Look) -> str:
    if look.problem:
        return f"telemetry not read: {look.problem}"
    if share.logged is None:
        return "no telemetry file"
    return share.logged.reason or f"{share.logged.file} does not tell of it"


def _give(task: Running, seen: Mapping[str, _Seen]) -> bool:
    found = _find(seen, task.gpu) if task.gpu else None
    if found is not None:
        found.tasks.append(task)
    return found is not None


def _gpu(node: str, key: str, one: _Seen) -> GpuNow:
    if one.reading is None:
        reason = f"no telemetry; {one.why}"
        return GpuNow(
            node=node, jobs=tuple(one.jobs), uuid=key, state=GpuState.UNKNOWN, reason=reason,
            tasks=tuple(one.tasks),
        )  # fmt: skip
    sighting = one.reading.seen
    state, reason = classify(sighting)
    if one.reading.detail and state in (GpuState.LOST, GpuState.UNKNOWN):
        reason = f"{reason} ({one.reading.detail})"
    return GpuNow(
        node=node,
        jobs=tuple(one.jobs),
        index=sighting.index,
        uuid=sighting.uuid,
        name=one.name,
        state=state,
        reason=reason,
        reading=one.reading,
        tasks=tuple(one.tasks),
    )


def _order(gpu: GpuNow) -> tuple[bool, int, str]:
    return (gpu.index is None, gpu.index or 0, gpu.uuid)


def _unknown(node: str, job: str, reason: str) -> GpuNow:
    return GpuNow(node=node, jobs=(job,), state=GpuState.UNKNOWN, reason=reason)


def _notes(share: _Share) -> list[str]:
    notes = [f"Slurm does not say how many GPUs job {share.job} has"] if share.untold else []
    logged = share.logged
    if logged is not None and logged.ended_at:
        why = f" ({logged.end_reason})" if logged.end_reason else ""
        notes.append(f"the logger of job {share.job} ended at {logged.ended_at}{why}")
    elif logged is not None and logged.reason:
        notes.append(f"job {share.job}: {logged.reason}")
    return notes
