"""What the processes of a fleet do to a spool: real code, one function each.

Enqueuers, workers, recoverers, a canceller, a retrier, a promoter. Each gets the seam and returns
what its caller would have been told. Not here: when they step. The worker is the real claim and
the real attempt; only the process that it would start is a step instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, parse_log, task_of
from fleetcraft.process import Ended
from fleetcraft.spool import claims, control
from fleetcraft.spool.control import Canceller
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue, enqueue_batch
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import parse
from fleetcraft.spool.recovery import AskOwner, Liveness, Verdict, recover
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker import attempt
from fleetcraft.worker.outcome import StopReason
from tests.explore.model_fs import ROOT, ModelFS

Act = Callable[[ModelFS], Any]
JOB = "8812"
PLACE = attempt.Place(host="c1", job=JOB, step="0", bash="bash", grace_s=1.0)


def tree_on(fs: ModelFS) -> SpoolTree:
    return SpoolTree(ROOT, fs)


def spec(name: str, command: str = "true", **directives: Any) -> TaskSpec:
    return TaskSpec(name=name, command=command, project_dir="/p", **directives)


def enqueuer(task: TaskSpec, *, if_absent: bool = False) -> Act:
    def act(fs: ModelFS) -> str:
        published = enqueue(tree_on(fs), task, if_absent=if_absent)
        fs.note("enqueued", task.name)
        return published.value

    return act


def batch_enqueuer(tasks: list[TaskSpec]) -> Act:
    def act(fs: ModelFS) -> tuple[int, int, int]:
        report = enqueue_batch(tree_on(fs), tasks, if_absent=True)
        for task in tasks:
            fs.note("enqueued", task.name)
        return report.enqueued, report.completed, report.already_there

    return act


def worker(
    launch: str,
    *,
    claims_at_most: int = 1,
    rank: str = "0",
    outcomes: tuple[str, ...] = ("completed", "failed"),
    may_put_back: bool = False,
) -> Act:
    """A worker with one slot that takes what it finds, a few times."""

    def act(fs: ModelFS) -> list[str]:
        tree = tree_on(fs)
        did = []
        for number in range(1, claims_at_most + 1):
            owner = Owner(JOB, rank, "0", f"{launch}-{number}")
            held = claim_any(tree, owner)
            if held is None:
                break
            did.append(attend(tree, fs, held, outcomes, may_put_back=may_put_back))
        return did

    return act


def claim_any(tree: SpoolTree, owner: Owner) -> claims.Claim | None:
    """Claims the first task that is to be had, as a worker does: header first, then the rename."""
    for lane in LANES:
        folder = tree.paths.lane(lane)
        for file in sorted(tree.fs.listdir(folder)):
            name = task_of(file)
            held = None if name is None else _claim(tree, name, f"{folder}/{file}", owner)
            if held is not None:
                return held
    return None


def _claim(tree: SpoolTree, name: str, path: str, owner: Owner) -> claims.Claim | None:
    try:
        data = tree.fs.peek(path)
    except FileNotFoundError:
        return None
    return claims.claim(tree, name, path, owner, claims.Known(data, parse(data)))


class _Slot:
    """A slot whose processes are steps of the exploration."""

    environment: dict[str, str] = {}  # noqa: RUF012 - what a real slot has per instance
    gpu = ""
    gate = SimpleNamespace(held=False)

    def __init__(self, fs: ModelFS) -> None:
        self._fs = fs
        self.runner = self
        self.index = 0

    def start(self, *_: Any, **__: Any) -> int:
        name_and_attempt = parse_log(os.path.basename(self._fs.newest_log))
        assert name_and_attempt is not None
        self._fs.run_begin(*name_and_attempt)
        return 1


class _NoCaches:
    """Caches of which tasks are told nothing, as with ``caches.export: false``."""

    def variables(self, *_: Any) -> dict[bytes, bytes]:
        return {}


_NO_CACHES: Any = _NoCaches()


def attend(
    tree: SpoolTree,
    fs: ModelFS,
    held: claims.Claim,
    outcomes: tuple[str, ...],
    *,
    may_put_back: bool = False,
) -> str:
    """What a worker does with one claim, by the worker's own code, and how it ended."""
    closed = attempt.settle_without_running(tree, held, PLACE)
    if closed is not None:
        return f"settled {closed.line.outcome} mine={closed.mine} moved={closed.moved}"
    if may_put_back and fs.choose("go", "put back") == "put back":
        return f"put back {claims.put_back(tree, held)}"
    slot: Any = _Slot(fs)
    try:
        begun = attempt.begin(
            tree=tree, slot=slot, held=held, place=PLACE, env={}, caches=_NO_CACHES, oom_kills=None
        )
    except attempt.LogUnwritable:
        return "log unwritable"
    if begun is None:
        return "claim gone"
    if isinstance(begun, claims.Closed):
        return f"not started {begun.line.outcome} mine={begun.mine} moved={begun.moved}"
    how = fs.run_end(*outcomes)
    if how == "interrupted":
        begun.stopped = StopReason.INTERRUPTED
    ended = Ended(exit_code=int(how != "completed"), signal=None, cpu_s=0.0, max_rss_bytes=0)
    closed = attempt.finish(
        tree=tree, slot=slot, attempt=begun, ended=ended, place=PLACE,
        oom_kills=None, before_move=lambda line: None,
    )  # fmt: skip
    if closed is None:
        return f"{how}, claim gone"
    return f"{how} mine={closed.mine} moved={closed.moved}"


def judge(fs: ModelFS) -> AskOwner:
    """The liveness oracle: like `ask_this_machine`, an owner without a lease is unknown."""

    def ask(owner: Owner, lease: Lease | None) -> Verdict:
        if lease is None:
            return Verdict(liveness=Liveness.UNKNOWN, reason="no lease")
        return Verdict(liveness=Liveness(fs.verdict(owner.launch)), reason="asked")

    return ask


def recoverer(*, passes: int = 1) -> Act:
    def act(fs: ModelFS) -> list[tuple[int, int, int]]:
        reports = [recover(tree_on(fs), judge(fs)) for _ in range(passes)]
        return [(report.recovered, report.rolled_forward, report.unknown) for report in reports]

    return act


def canceller(name: str) -> Act:
    def act(fs: ModelFS) -> str:
        with Canceller(tree_on(fs)) as open_canceller:
            result = open_canceller.cancel(name)
        said = "cancelled" if result.cancelled else "requested" if result.requested else "seen"
        fs.note(said, name)
        return said

    return act


def retrier(name: str) -> Act:
    def act(fs: ModelFS) -> str:
        state = control.retry(tree_on(fs), name)
        fs.note("retried", name)
        return state.value

    return act


def promoter(*, passes: int = 1) -> Act:
    def act(fs: ModelFS) -> list[list[str]]:
        tree = tree_on(fs)
        return [control.promote(tree) for _ in range(passes)]

    return act
