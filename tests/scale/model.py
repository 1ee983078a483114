"""A model of a metadata server that serves a fleet: formulas, and a discrete-event simulation.

Fed with counted operations and with the product's own pauses. What a server can do is assumed, not
measured, and says so. Invariant: load is in units of one ``stat``; a server is some threads with
one queue, and what does not fit waits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import simpy

from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.queue import Queue
from fleetcraft.spool.tree import SpoolTree
from tests.scale.counting import METADATA

WEIGHTS = {"stat": 1.0, "open": 1.0, "list": 1.0, "create": 2.0, "link": 2.0, "rename": 2.0,
           "unlink": 2.0}  # fmt: skip
"""Assumption: what changes a folder costs a server two looks."""
NAMES_A_LOOK = 500
"""Assumption: a listing costs one look more for each so many entries."""
OF_BASH = Counter(open=2, stat=2)
"""What bash asks for to run a record. Source: docs/benchmarks/spool.md, "calls"."""
MARKERS_EVERY_S, HEARTBEAT_EVERY_S, DEPTH_EVERY_S = 5.0, 30.0, 30.0
_SLICE_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Server:
    """A metadata server.

    Attributes:
        name: What kind it stands for.
        per_s: Looks a second that it can answer. Assumption.
        threads: So many at a time.
        round_trip_s: Of one call over the network. Assumption.
        data_weight: What a read or write of a small file costs it; 0 where other servers do that.
    """

    name: str
    per_s: float
    threads: int = 16
    round_trip_s: float = 0.0003
    data_weight: float = 0.0

    def load(self, counts: Mapping[str, float]) -> float:
        """What it has to do for some operations, in looks."""
        changed = sum(WEIGHTS[kind] * counts.get(kind, 0) for kind in METADATA)
        listed = counts.get("names", 0) / NAMES_A_LOOK
        data = self.data_weight * (counts.get("read", 0) + counts.get("write", 0))
        return changed + listed + data


SERVERS = (
    Server(name="NFS class, 20,000/s", per_s=20_000, data_weight=0.5),
    Server(name="one Lustre MDT class, 50,000/s", per_s=50_000),
    Server(name="GPFS or several MDTs class, 100,000/s", per_s=100_000),
)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Counted operations of what a worker does.

    ``task`` is a task from its claim to its filing, without listings; ``recovered`` a dead claim
    that is put back.
    """

    task: Counter[str]
    idle: Counter[str]
    markers: Counter[str]
    heartbeat: Counter[str]
    recovery: Counter[str]
    promotion: Counter[str]
    recovered: Counter[str]


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """What uses the server.

    Attributes:
        nodes: Workers, one a node.
        task_s: How long a task runs.
        pending: Tasks in the queue.
        waiting: Tasks that wait for others.
        a_node: Tasks at a time on a node whose claims reach this server; more than 1 for packs
            whose inner spool lies there too.
    """

    nodes: int
    task_s: float
    pending: int = 100_000
    waiting: int = 0
    a_node: int = 1


@dataclass(frozen=True)
class Pauses:
    """The product's own pauses, asked of it: what a worker of so many keeps, in seconds.

    ``stride`` is how many tasks one listing gives a worker.
    """

    first_s: float
    plain_s: float
    stride: float
    promotion_s: float
    recovery_s: float
    idle_s: float


def pauses(fleet: Fleet) -> Pauses:
    """What workers of this fleet keep.

    Source: fleetcraft/spool/queue.py, promotion.py and fleetcraft/worker/chores.py, loop.py.
    """
    tree = SpoolTree("/nowhere")
    queue = Queue(tree, 0, fleet.nodes)
    queue._plain._listed = fleet.pending
    promoter = Promoter(tree, 0, fleet.nodes)
    promoter._listed = fleet.waiting
    from fleetcraft.worker import chores

    crowd = min(chores._RECOVER_SELDOM, max(1.0, fleet.nodes / chores._RECOVER_CROWD))
    return Pauses(
        first_s=queue._first.pause_s(2.0),
        plain_s=queue._plain.pause_s(4.0),
        stride=max(1.0, min(queue._plain._window, fleet.pending) / fleet.nodes),
        promotion_s=promoter.pause_s(0.0),
        recovery_s=chores._RECOVER_EVERY_S * crowd,
        idle_s=max(5.0, fleet.nodes / 500),
    )


def listing(names: float) -> Counter[str]:
    """One listing."""
    return Counter({"list": 1, "names": int(names)})


def task_cost(costs: Costs) -> Counter[str]:
    """A task with what bash asks for it."""
    return costs.task + OF_BASH


def by_the_clock(fleet: Fleet, costs: Costs, server: Server) -> dict[str, float]:
    """What a busy fleet asks for besides its tasks, in looks a second, by what it is.

    A worker looks at its queue when it wants a task, so it lists no oftener than its tasks end; and
    it lists again when its stride is spent, which makes as many names a task as there are workers.
    """
    pause, nodes = pauses(fleet), fleet.nodes
    period_s = fleet.task_s / fleet.a_node
    recovery = costs.recovery + Counter({"names": nodes})
    promotion = costs.promotion + Counter({"names": fleet.waiting})
    return {
        "lane first": nodes * server.load(listing(0)) / max(pause.first_s, period_s),
        "listing again": nodes
        * server.load(listing(fleet.pending))
        / max(min(pause.plain_s, pause.stride * period_s), period_s),
        "markers": nodes * server.load(costs.markers) / MARKERS_EVERY_S,
        "heartbeats": nodes * server.load(costs.heartbeat) / HEARTBEAT_EVERY_S,
        "recovery": nodes * server.load(recovery) / pause.recovery_s,
        "promotion": nodes * server.load(promotion) / pause.promotion_s,
        "depth": server.load(listing(2 * fleet.pending)) / DEPTH_EVERY_S,
    }


def rate(fleet: Fleet, costs: Costs, server: Server) -> float:
    """Looks a second that the fleet would ask for if it were never kept waiting."""
    tasks = fleet.nodes * fleet.a_node * server.load(task_cost(costs)) / fleet.task_s
    return tasks + sum(by_the_clock(fleet, costs, server).values())


def shortest_task_s(fleet: Fleet, costs: Costs, server: Server, share: float = 0.7) -> float | None:
    """The shortest task with which so much of the server is used; None if none is long enough."""
    room = share * server.per_s
    low, high = 0.001, 1e7
    if rate(replace(fleet, task_s=high), costs, server) > room:
        return None
    for _ in range(80):
        middle = (low * high) ** 0.5
        if rate(replace(fleet, task_s=middle), costs, server) > room:
            low = middle
        else:
            high = middle
    return high


def idle_rate(fleet: Fleet, costs: Costs, server: Server) -> float:
    """Looks a second when there is nothing to claim."""
    pause = pauses(fleet)
    clock = by_the_clock(fleet, costs, server)
    kept = sum(clock[what] for what in ("markers", "heartbeats", "recovery", "depth"))
    looks = fleet.nodes * server.load(costs.idle) / pause.idle_s
    return kept + looks


def start_s(fleet: Fleet, server: Server) -> float:
    """Seconds until the last of all workers has its first listing when all begin at once."""
    return fleet.nodes * server.load(listing(fleet.pending)) / server.per_s


def recovery_s(fleet: Fleet, costs: Costs, server: Server) -> float:
    """Seconds that one command needs to put back the claims of a whole fleet that is dead."""
    claim = costs.recovered + Counter(open=1, read=1)  # and its lease
    calls = sum(claim[kind] for kind in (*METADATA, "read", "write", "sync"))
    return fleet.nodes * (calls * server.round_trip_s + server.load(claim) / server.per_s)


# ------------------------------------------------------------------------------- simulation


class Desk:
    """A server's threads and the one queue before them.

    Args:
        env: The simulation.
        per_s: Looks a second of all threads together.
        threads: How many.
    """

    def __init__(self, env: simpy.Environment, per_s: float, threads: int) -> None:
        self._env = env
        self._threads = simpy.Resource(env, threads)
        self._a_look_s = threads / per_s
        self._count = threads
        self.load = 0.0
        self.busy_s = 0.0

    def ask(self, load: float) -> Generator[Any, Any, None]:
        """Waits for a thread and for the answer."""
        with self._threads.request() as turn:
            yield turn
            took_s = load * self._a_look_s
            yield self._env.timeout(took_s)
            self.load += load
            self.busy_s += took_s

    def used(self, seconds: float) -> float:
        """The share of the threads' time that was used."""
        return self.busy_s / (self._count * seconds)


@dataclass(kw_only=True)
class Simulated:
    """What a simulation saw, after its first tasks.

    Attributes:
        rate: Looks a second that the server answered.
        used: Share of its time.
        claim_s: Mean time from a slot that is free to a task that runs.
        claim_99_s: The time that one in a hundred takes longer than.
        efficiency: Share of the slots' time in which tasks ran.
        started_s: When the last worker had its first task.
    """

    rate: float
    used: float
    claim_s: float
    claim_99_s: float
    efficiency: float
    started_s: float


@dataclass
class _Seen:
    claims_s: list[float] = field(default_factory=list)
    ran_s: float = 0.0
    started_s: float = 0.0


def simulate(fleet: Fleet, costs: Costs, server: Server, *, seed: int = 1) -> Simulated:
    """Lets a fleet run that begins at once, until each slot has had some tasks.

    An act of a worker is one request to the server and as many round trips as it has calls.
    """
    env = simpy.Environment()
    desk = Desk(env, server.per_s, server.threads)
    chance = random.Random(seed)
    seen = _Seen()
    begins_s = start_s(fleet, server) + fleet.task_s
    cycle_s = fleet.task_s * (1 + rate(fleet, costs, server) / server.per_s)
    ends_s = begins_s + max(10.0, 3 * cycle_s)
    for _ in range(fleet.nodes * fleet.a_node):
        env.process(_worker(env, desk, fleet, costs, server, chance, seen, begins_s, ends_s))
    env.process(_clock(env, desk, fleet, costs, server))
    env.run(until=begins_s)
    load, busy_s = desk.load, desk.busy_s
    env.run(until=ends_s)
    span_s = ends_s - begins_s
    waits = sorted(seen.claims_s)
    return Simulated(
        rate=(desk.load - load) / span_s,
        used=min(1.0, (desk.busy_s - busy_s) / (server.threads * span_s)),
        claim_s=sum(waits) / len(waits) if waits else float("inf"),
        claim_99_s=waits[int(0.99 * len(waits))] if waits else float("inf"),
        efficiency=seen.ran_s / (span_s * fleet.nodes * fleet.a_node),
        started_s=seen.started_s,
    )


def _worker(  # noqa: PLR0917
    env: simpy.Environment,
    desk: Desk,
    fleet: Fleet,
    costs: Costs,
    server: Server,
    chance: random.Random,
    seen: _Seen,
    begins_s: float,
    ends_s: float,
) -> Generator[Any, Any, None]:
    pause = pauses_of(fleet)
    whole = task_cost(costs)
    load = server.load(whole)
    calls_s = server.round_trip_s * sum(whole[kind] for kind in (*METADATA, "read", "write"))
    again, first = server.load(listing(fleet.pending)), server.load(listing(0))
    lists_at = looks_at = 0.0
    left = 0.0
    while True:
        free_s = env.now
        # What the product does before it takes a candidate: both lanes, when their time has come.
        if env.now >= lists_at or left < 1.0:
            # After its first listing each is somewhere in its stride, as it is after a while.
            part = chance.random() if free_s == 0.0 else 1.0
            left = max(1.0, part * pause.stride)
            lists_at = env.now + part * pause.plain_s * chance.uniform(0.8, 1.2)
            yield from desk.ask(again)
        if env.now >= looks_at:
            looks_at = env.now + pause.first_s * chance.uniform(0.8, 1.2)
            yield from desk.ask(first)
        yield from desk.ask(0.6 * load)  # header, rename, log, last look; bash reads the record
        yield env.timeout(0.6 * calls_s)
        left -= 1.0
        if free_s == 0.0:
            seen.started_s = max(seen.started_s, env.now)
        elif begins_s <= free_s:
            seen.claims_s.append(env.now - free_s)
        lasts_s = fleet.task_s * chance.uniform(0.8, 1.2)
        seen.ran_s += max(0.0, min(env.now + lasts_s, ends_s) - max(env.now, begins_s))
        yield env.timeout(lasts_s)
        yield from desk.ask(0.4 * load)  # history, rename
        yield env.timeout(0.4 * calls_s)


_PAUSES: dict[Fleet, Pauses] = {}


def pauses_of(fleet: Fleet) -> Pauses:
    """As `pauses`, asked once a fleet."""
    if fleet not in _PAUSES:
        _PAUSES[fleet] = pauses(fleet)
    return _PAUSES[fleet]


def _clock(
    env: simpy.Environment, desk: Desk, fleet: Fleet, costs: Costs, server: Server
) -> Generator[Any, Any, None]:
    """What goes on by the clock on all nodes, evenly, in slices: jitter has spread it."""
    kinds = by_the_clock(fleet, costs, server)
    own = ("lane first", "listing again")  # which each worker does before it claims
    load = sum(value for kind, value in kinds.items() if kind not in own)
    while True:
        env.process(desk.ask(load * _SLICE_S))
        yield env.timeout(_SLICE_S)
