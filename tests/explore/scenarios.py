"""The scenarios: who meets whom on which spool, and what may go wrong there.

Each is built by a function, so that a mutation is in force while its start is made as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fleetcraft.identity import Owner
from fleetcraft.layout import State
from fleetcraft.spool import claims, leases
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue, enqueue_batch
from fleetcraft.spool.record import HistoryLine, Outcome
from tests.explore import invariants
from tests.explore.actors import (
    JOB,
    attend,
    batch_enqueuer,
    canceller,
    claim_any,
    enqueuer,
    promoter,
    recoverer,
    retrier,
    spec,
    tree_on,
    worker,
)
from tests.explore.explorer import Actor, Budget, End, Scenario
from tests.explore.model_fs import DirectFS, World

_SETUP = 80


class Start:
    """A spool made by real code before anything is explored."""

    def __init__(self) -> None:
        self.fs = DirectFS(World(), _SETUP)
        self.tree = tree_on(self.fs)

    def lease(self, launch: str, rank: str = "0") -> Start:
        lease = replace_lease(launch, rank)
        leases.publish(self.tree, lease)
        return self

    def task(self, task: TaskSpec) -> Start:
        enqueue(self.tree, task)
        return self

    def batch(self, tasks: list[TaskSpec]) -> Start:
        enqueue_batch(self.tree, tasks)
        return self

    def claimed(self, launch: str, rank: str = "0") -> claims.Claim:
        held = claim_any(self.tree, Owner(JOB, rank, "0", f"{launch}-1"))
        assert held is not None
        return held

    def failed(self, outcome: str = "failed") -> Start:
        self.lease("past", "7")
        attend(self.tree, self.fs, self.claimed("past", "7"), (outcome,))
        return self

    def marker(self, name: str) -> Start:
        self.fs.create(self.tree.paths.cancel_marker(name), b"")
        return self

    def world(self) -> World:
        world = self.fs.world.copy()
        world.trace = ()
        return world


def replace_lease(launch: str, rank: str) -> leases.Lease:
    return leases.Lease(
        job=JOB, rank=rank, launch=launch, host="c1", boot_id="boot", pid_namespace="pid:[1]",
        pid=1, start_ticks=1, started_at="now", interval_s=30.0,
    )  # fmt: skip


def scenario(
    name: str,
    start: World,
    actors: list[Actor],
    budget: Budget,
    *,
    finally_: Callable[[End], str] = invariants.everything,
    always: Callable[[World], str] = lambda world: "",
    rename_flags: bool = True,
) -> Scenario:
    def rules(world: World, left: Budget) -> str:
        return invariants.running_rules(world, left, budget.verdicts) or always(world)

    return Scenario(name, start, tuple(actors), budget, finally_, rules, rename_flags)


def same_enqueuers(**budget: Any) -> Scenario:
    """Two enqueue one task at once, and a worker takes it as soon as it is seen."""
    start = Start().lease("w")
    task = spec("t")
    actors = [
        Actor("A", enqueuer(task)),
        Actor("B", enqueuer(task, if_absent=True)),
        Actor("W", worker("w", outcomes=("completed",)), launch="w"),
    ]
    return scenario("two enqueue the same", start.world(), actors, Budget(**budget))


def rival_enqueuers(**budget: Any) -> Scenario:
    """Two enqueue different tasks under one name; the first is tried again after a crash."""
    start = Start()
    actors = [
        Actor("A", enqueuer(spec("t", "echo a"))),
        Actor("B", enqueuer(spec("t", "echo b"))),
        Actor("A2", enqueuer(spec("t", "echo a"), if_absent=True), after=0),
    ]
    return scenario(
        "two enqueue different tasks of one name",
        start.world(), actors, Budget(**budget),
        finally_=invariants.both(invariants.everything, invariants.decided_once(0, 1)),
    )  # fmt: skip


def worker_and_restart(**budget: Any) -> Scenario:
    """A worker that may die, its restart under the same job and rank, and a recoverer."""
    start = Start().lease("w").lease("x").task(spec("t", retries=1))
    actors = [
        Actor("W", worker("w", claims_at_most=2), launch="w"),
        Actor("X", worker("x", claims_at_most=2), launch="x", after=0),
        Actor("R", recoverer()),
    ]
    return scenario("worker, restart, recoverer", start.world(), actors, Budget(**budget))


def two_workers(**budget: Any) -> Scenario:
    """Two workers want one task while a recoverer judges."""
    start = Start().lease("w").lease("x", "1").task(spec("t", retries=1))
    actors = [
        Actor("W", worker("w"), launch="w"),
        Actor("X", worker("x", rank="1"), launch="x"),
        Actor("R", recoverer()),
    ]
    return scenario("two workers, recoverer", start.world(), actors, Budget(**budget))


def put_back(**budget: Any) -> Scenario:
    """A worker puts a claim back that it did not run, beside another worker and a recoverer."""
    start = Start().lease("w").lease("x", "1").task(spec("t"))
    actors = [
        Actor("W", worker("w", may_put_back=True, outcomes=("completed",)), launch="w"),
        Actor("X", worker("x", rank="1", outcomes=("completed",)), launch="x"),
        Actor("R", recoverer()),
    ]
    return scenario(
        "put back, recoverer",
        start.world(), actors, Budget(**budget),
        finally_=invariants.numbers_may_repeat_after_a_wrong_verdict,
    )  # fmt: skip


def two_recoverers(**budget: Any) -> Scenario:
    """Two recover one claim of a dead worker, closed or not, while another worker is about."""
    start = Start().lease("dead", "5").lease("x", "1").task(spec("t", retries=1))
    start.claimed("dead", "5")
    actors = [
        Actor("R", recoverer()),
        Actor("S", recoverer()),
        Actor("X", worker("x", rank="1", claims_at_most=2), launch="x"),
    ]
    return scenario("two recoverers, worker", start.world(), actors, Budget(**budget))


def two_recoverers_of_a_closed_claim(**budget: Any) -> Scenario:
    """The dead worker had closed its claim as completed and not carried it out."""
    start = Start().lease("dead", "5").lease("x", "1").task(spec("t", retries=1))
    held = start.claimed("dead", "5")
    fd = start.fs.open_append(held.path)
    line = HistoryLine(claim=held.owner.token, outcome=Outcome.COMPLETED, to="done", attempt=1)
    start.fs.append(fd, claims.write_history(line))
    start.fs.close(fd)
    actors = [
        Actor("R", recoverer()),
        Actor("S", recoverer()),
        Actor("X", worker("x", rank="1"), launch="x"),
    ]
    return scenario("two recoverers, closed claim", start.world(), actors, Budget(**budget))


def cancel_beside_worker(**budget: Any) -> Scenario:
    """A canceller, a worker that requeues failures, and a recoverer."""
    start = Start().lease("w").task(spec("t", retries=1))
    actors = [
        Actor("C", canceller("t"), launch="C1"),
        Actor("W", worker("w", claims_at_most=2), launch="w"),
        Actor("R", recoverer()),
    ]
    return scenario("canceller, worker, recoverer", start.world(), actors, Budget(**budget))


def retry_and_cancel(**budget: Any) -> Scenario:
    """A failed, once cancelled task is retried and cancelled at once, beside a worker."""
    start = Start().lease("w").task(spec("t")).failed().marker("t")
    actors = [
        Actor("T", retrier("t")),
        Actor("C", canceller("t"), launch="C1"),
        Actor("W", worker("w"), launch="w"),
    ]
    return scenario(
        "retrier, canceller, worker",
        start.world(), actors, Budget(**budget),
        finally_=invariants.both(invariants.everything, invariants.a_request_stands),
    )  # fmt: skip


def retry_beside_worker(**budget: Any) -> Scenario:
    """A cancelled task is retried, and a worker takes it at once."""
    start = Start().lease("w").task(spec("t")).marker("t").failed()
    actors = [
        Actor("T", retrier("t")),
        Actor("W", worker("w"), launch="w"),
        Actor("R", recoverer()),
    ]
    return scenario("retrier, worker, recoverer", start.world(), actors, Budget(**budget))


def folders_for_names(**budget: Any) -> Scenario:
    """Two enqueue different tasks of one name where there are no hard links."""
    found = rival_enqueuers(**budget)
    return replace(found, name="two enqueue, no hard links", hard_links=False)


def _gen_after_all(world: World) -> str:
    """The generator is neither claimable nor run before all that its glob names are done.

    A recovered claim of a dead canceller lies in pending with its marker: as good as cancelled.
    """
    claimable = [s for s, _ in invariants.places(world, "gen") if s is State.PENDING]
    ran = world.trace and world.trace[-1][:2] == ("run", "gen")
    if not ran and (not claimable or "/s/cancel/gen" in world.names):
        return ""
    undone = [name for name in ("enc-1", "enc-2") if f"/s/done/{name}.sh" not in world.names]
    return f"gen runs or is claimable, but {undone} are not done" if undone else ""


def where_rename_has_no_flags(found: Scenario) -> Scenario:
    """The same on a mount without RENAME_NOREPLACE, as NFS is: there a rename is two steps."""
    return replace(found, name=f"{found.name}, no rename flags", rename_flags=False)


def waiting_task(**budget: Any) -> Scenario:
    """A waiting task is cancelled, retried and promoted while its dependency runs."""
    start = Start().lease("w").batch([spec("enc-1"), spec("enc-2"), spec("gen", after=("enc-*",))])
    start.lease("past", "7")
    attend(start.tree, start.fs, start.claimed("past", "7"), ("completed",))
    actors = [
        Actor("C", canceller("gen"), launch="C1"),
        Actor("P", promoter(passes=2)),
        Actor("W", worker("w", outcomes=("completed",)), launch="w"),
        Actor("R", recoverer()),
        Actor("T", retrier("gen"), after=0),
    ]
    return scenario(
        "waiting: canceller, promoter, worker, recoverer, retrier",
        start.world(), actors, Budget(**budget), always=_gen_after_all,
    )  # fmt: skip


def lost_canceller(**budget: Any) -> Scenario:
    """A waiting task whose canceller may die, another canceller, a recoverer, then a retrier."""
    start = Start().batch([spec("enc-1"), spec("enc-2"), spec("gen", after=("enc-*",))])
    actors = [
        Actor("C", canceller("gen"), launch="C1"),
        Actor("R", recoverer()),
        Actor("D", canceller("gen"), launch="D1", after=1),
        Actor("T", retrier("gen"), after=2),
    ]
    return scenario(
        "waiting: dead canceller, recoverer, canceller, retrier",
        start.world(), actors, Budget(**budget), always=_gen_after_all,
    )  # fmt: skip


def cut_short_batch(**budget: Any) -> Scenario:
    """A batch whose glob must see all of it, enqueued twice, with an eager worker and promoter."""
    start = Start().lease("w")
    tasks = [spec("enc-1"), spec("gen", after=("enc-*",)), spec("enc-2")]
    actors = [
        Actor("A", batch_enqueuer(tasks)),
        Actor("B", batch_enqueuer(tasks)),
        Actor("W", worker("w", outcomes=("completed",)), launch="w"),
        Actor("P", promoter(), after=2),
    ]
    return scenario(
        "a batch twice, worker, promoter",
        start.world(), actors, Budget(**budget), always=_gen_after_all,
    )  # fmt: skip


ALL: dict[str, Callable[..., Scenario]] = {
    function.__name__: function
    for function in (
        same_enqueuers, rival_enqueuers, folders_for_names, worker_and_restart, two_workers,
        put_back, two_recoverers, two_recoverers_of_a_closed_claim, cancel_beside_worker,
        retry_and_cancel, retry_beside_worker, waiting_task, lost_canceller, cut_short_batch,
    )
}  # fmt: skip
