"""What each command and each chore asks of a spool of some size, one function an act.

Each makes or takes a spool, does the act by the product's code, and returns what was asked for and
for how many tasks. Invariant: an act that changes the spool is done on tasks that no other act
needs, so that one spool of a size serves them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fleetcraft.identity import this_host
from fleetcraft.layout import State
from fleetcraft.report.scope import Scope
from fleetcraft.report.tasks import Limits, gather_spool
from fleetcraft.spool import control, leases, views
from fleetcraft.spool.check import check
from fleetcraft.spool.control import Canceller
from fleetcraft.spool.dependencies import refuse_cycles
from fleetcraft.spool.enqueue import enqueue, enqueue_batch
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.queue import Queue
from fleetcraft.spool.recovery import RememberedLeases, ask_this_machine, recover
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.live.spool import LiveSpool
from fleetcraft.worker.heartbeat import Heartbeat
from tests.scale.counting import CountingFS, Counts
from tests.scale.makers import Shape, empty_spool, fill, half_done, spec_of, task_name
from tests.scale.simulated import Fleet

BATCH = 1_000
SOME = 50
CLAIMS = 64
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one act asked for.

    ``tasks`` is by how many the counts are divided in tables; 1 for an act on the whole spool.
    """

    act: str
    size: int
    counts: Counts
    tasks: float = 1.0


class Subject:
    """One spool of a size in the middle of its work, and the acts on it."""

    def __init__(self, folder: Path, tasks: int, say: Say = lambda text: None) -> None:
        self.fs = CountingFS()
        self.tree = empty_spool(folder, self.fs)
        self.size = tasks
        self.shape = half_done(tasks, claims=CLAIMS)
        self.leases = fill(self.tree, self.shape, say)

    def all(self, *, records: bool = True) -> Iterator[Found]:
        """Every act, those first that only look.

        Args:
            records: Also those that read every record, which takes long.
        """
        yield from self.looks()
        if records:
            yield self._whole("check", lambda: check(self.tree))
            yield self._report()
        yield from self.steering()
        yield from self.enqueues()
        yield from self.promotions()
        yield from self.recoveries()
        yield self.claims()

    def _whole(self, act: str, do: Callable[[], object], tasks: float = 1.0) -> Found:
        with self.fs.counted() as counts:
            do()
        return Found(act=act, size=self.size, counts=counts, tasks=tasks)

    # -- looking

    def looks(self) -> Iterator[Found]:
        """Listings, `status`, `show`, `logs`, an idle poll, a heartbeat, `top`."""
        tree = self.tree
        yield self._whole("depth note (`counts`)", lambda: views.counts(tree))
        yield self._whole("`status`", lambda: views.status(tree))
        for state, number in (("done", 0), ("pending", -1), ("running", self.shape.done)):
            name = self._name(state, number)
            yield self._whole(f"`show`, {state}", lambda name=name: views.show(tree, name))
        yield self._whole("`logs`, done", lambda: self._logs(task_name(0)))
        yield self._whole("listing of a worker's stride", lambda: Queue(tree, 0, 8).next())
        yield self._whole("heartbeat, one task", self._beat)
        with self.fs.everywhere():
            live = LiveSpool("outer", tree.paths.root, 3600.0)
            yield self._whole("`top`, first look", live.look)
            yield self._whole("`top`, next look", live.look)

    def _name(self, state: str, number: int) -> str:
        if state == "running":
            return task_name(self.shape.done + self.shape.failed)
        last = self.size - self.shape.waiting - 1
        return task_name(number if state == "done" else last)

    def _logs(self, name: str) -> None:
        attempts = views.show(self.tree, name).attempts
        self.tree.fs.exists(self.tree.paths.log(name, attempts[-1].attempt))

    def _beat(self) -> None:
        lease = leases.new_lease(rank="9", interval_s=30.0)
        heartbeat = Heartbeat(self.tree, lease, lambda: None)
        heartbeat.watch(task_name(0), self.tree.paths.finished_record(task_name(0), State.DONE))
        heartbeat._beat()

    def _report(self) -> Found:
        with self.fs.everywhere():
            return self._whole(
                "`report`",
                lambda: gather_spool(
                    "outer", self.tree.paths.root, Scope(), now_s=None,
                    limits=Limits(quote_logs=False),
                ),
            )  # fmt: skip

    # -- steering

    def steering(self) -> Iterator[Found]:
        """`cancel` and `retry` of many."""
        last = self.size - self.shape.waiting - 2
        some = min(SOME, self.shape.pending // 4)
        pending = [task_name(number) for number in range(last - some, last)]
        yield self._whole("`cancel` of many, pending", lambda: self._cancel(pending), some)
        some = min(SOME, self.shape.failed)
        failed = [task_name(self.shape.done + number) for number in range(some)]
        yield self._whole(
            "`retry` of many", lambda: [control.retry(self.tree, name) for name in failed], some
        )

    def _cancel(self, names: list[str]) -> None:
        with Canceller(self.tree) as canceller:
            for name in names:
                canceller.cancel(name)

    # -- enqueueing

    def enqueues(self) -> Iterator[Found]:
        """One, one that waits for a glob, and a batch."""
        tree = self.tree
        yield self._whole("enqueue, one", lambda: enqueue(tree, spec_of("one")))
        waits = spec_of("one-more", after=("task-*",))

        def enqueue_waiting() -> None:
            refuse_cycles(tree, [waits])
            enqueue(tree, waits)

        yield self._whole("enqueue, one after a glob", enqueue_waiting)
        specs = [spec_of(task_name(number, "batch")) for number in range(BATCH)]
        yield self._whole("enqueue, batch of 1,000", lambda: enqueue_batch(tree, specs), BATCH)

    # -- promoting

    def promotions(self) -> Iterator[Found]:
        """A worker's watch over what waits: its first look, its next, and one on a glob.

        The waiting tasks are those of the spool, and one that waits for a glob over all of it.
        """
        promoter = Promoter(self.tree)
        yield self._whole("promotion, first look", promoter.refresh)
        yield self._whole("promotion, next look", promoter.refresh)
        waits = len(promoter)
        name = next(iter(promoter._waiters))
        yield self._whole(
            "promotion, a task that nobody waited for", lambda: promoter.finished("x")
        )
        assert waits >= self.shape.waiting
        assert name

    # -- recovering

    def recoveries(self) -> Iterator[Found]:
        """A pass with no dead owner, again by the same watcher, with ten dead, and with all."""
        tree, here = self.tree, this_host()
        remembered = RememberedLeases(("4712", "0"), a_pass=10**6)

        def look() -> None:
            remembered.begin_pass()
            recover(tree, ask_this_machine(), read_lease=remembered.read)

        for lease in self.leases:
            self._place(lease, "another-host")
        yield self._whole("recovery, none dead, first pass", look)
        yield self._whole("recovery, none dead, next pass", look)
        dead = self.leases[:10]
        for lease in dead:
            self._place(lease, here.host)
        ask = ask_this_machine()
        yield self._whole(
            f"`recover`, {len(dead)} of {len(self.leases)} dead, a dead one",
            lambda: recover(tree, ask), len(dead),
        )  # fmt: skip
        for lease in self.leases:
            self._place(lease, here.host)
        left = max(1, self.shape.running - len(dead))
        yield self._whole("`recover`, all dead, a claim", lambda: recover(tree, ask), left)

    def _place(self, lease: Lease, host: str) -> None:
        lease.host = host
        leases.publish(self.tree, lease)

    # -- claiming

    def claims(self) -> Found:
        """One worker's tasks, from claim to filing, on the depth that the spool has."""
        fleet = Fleet(self.tree, 1)
        with self.fs.counted():
            fleet.run(5)  # the first listing is a row of its own
        tasks = min(200, self.shape.pending // 2)
        before = fleet.done
        counts = fleet.run(tasks)
        counts["list"] = counts["names"] = 0
        return Found(
            act="claim, begin and finish, one worker, listings apart",
            size=self.size, counts=+counts, tasks=fleet.done - before,
        )  # fmt: skip


def idle_poll(folder: Path) -> Found:
    """What a worker asks for that finds nothing: its three lanes, and what waits."""
    fs = CountingFS()
    tree = empty_spool(folder, fs)
    fill(tree, Shape(waiting=5))
    queue, promoter = Queue(tree), Promoter(tree)
    for _ in range(2):
        promoter.refresh()
    with fs.counted() as counts:
        queue.begin()
        assert queue.next() is None
        promoter.refresh()
    return Found(act="idle poll", size=100, counts=counts)


def markers(folder: Path) -> Found:
    """What a look at DRAIN and STOP asks for."""
    fs = CountingFS()
    tree = empty_spool(folder, fs)
    with fs.counted() as counts:
        tree.fs.exists(tree.paths.stop_marker)
        tree.fs.exists(tree.paths.drain_marker)
    return Found(act="look at markers", size=0, counts=counts)


def globs(folder: Path, tasks: int, say: Say = lambda text: None) -> Iterator[Found]:
    """Waiting tasks behind a glob over all others: `status`, and a watcher's looks."""
    fs = CountingFS()
    tree = empty_spool(folder, fs)
    waiting = max(2, tasks // 100)
    fill(tree, Shape(done=tasks // 2, pending=tasks - tasks // 2 - waiting, waiting=waiting,
                     glob=True), say)  # fmt: skip
    promoter = Promoter(tree)
    for act, do in (
        ("promotion behind a glob, first look", promoter.refresh),
        ("promotion behind a glob, next look", promoter.refresh),
        ("`status` behind a glob", lambda: views.status(tree)),
    ):
        with fs.counted() as counts:
            do()
        yield Found(act=act, size=tasks, counts=counts)


def crowd(tree: SpoolTree, ranks: int, tasks: int) -> tuple[Counts, int, Fleet]:
    """Many workers that have begun: what so many further tasks ask for, their number, the fleet."""
    fleet = Fleet(tree, ranks)
    fleet.run(2 * ranks)
    before = fleet.done
    counts = fleet.run(tasks)
    return counts, fleet.done - before, fleet
