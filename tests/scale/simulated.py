"""Many workers in one process: the worker's own claiming, beginning and filing, in turns.

What would be a process is a number of rounds instead, and time is counted in rounds, so that a run
is the same each time. Invariant: everything that touches the spool is the product's code; only the
processes, the gate and the clock are ours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from fleetcraft.process import Ended
from fleetcraft.spool import leases, queue
from fleetcraft.spool.claims import Claim
from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.queue import Queue
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker import attempt
from fleetcraft.worker.attempt import Attempt
from fleetcraft.worker.claiming import Claimer
from fleetcraft.worker.eligibility import Eligibility
from fleetcraft.worker.limits import Walltime
from fleetcraft.worker.settings import WorkerSettings
from tests.scale.counting import CountingFS, Counts

ROUND_S = 1.0
_JOB = "4712"
_ENDED = Ended(exit_code=0, signal=None, cpu_s=0.1, max_rss_bytes=1 << 20)


class _Gate:
    """A node that any task may have."""

    held = False
    waits = False

    def enter_shared(self) -> bool:
        return True

    def enter_alone(self) -> bool:
        return True

    def leave(self) -> None:
        pass


class _Slot:
    """A slot whose processes take rounds."""

    index = 0
    gpu = ""
    batch: Any = None

    def __init__(self) -> None:
        self.environment: dict[bytes, bytes] = {}
        self.gate = _Gate()
        self.runner = self
        self.attempt: Attempt | None = None

    def start(self, *_: Any, **__: Any) -> int:
        return 1


class _NoCaches:
    """Caches of which tasks are told nothing, as with ``caches.export: false``."""

    def variables(self, *_: Any) -> dict[bytes, bytes]:
        return {}


class Worker:
    """One worker with one slot.

    ``busy_until`` is the round in which its task ends; ``idle`` that its last look was in vain.
    """

    def __init__(self, tree: SpoolTree, rank: int, ranks: int) -> None:
        self._tree = tree
        self.lease = leases.new_lease(rank=str(rank), interval_s=30.0)
        self.lease.job, self.lease.host = _JOB, f"n{rank:05d}"
        self.lease.launch = f"w{ranks % 1000:03d}{rank:04d}"
        leases.publish(tree, self.lease)
        self._slot: Any = _Slot()
        settings = WorkerSettings(spool_dir=tree.paths.root, root="/", rank=rank, ranks=ranks)
        self._claimer = Claimer(
            tree,
            self.lease,
            Queue(tree, rank, ranks),
            Eligibility(tree, self.lease, Walltime(None, None), in_pack=False),
            lambda text: None,
            settings=settings,
        )
        self._place = attempt.Place(
            host=self.lease.host, job=_JOB, step="0", bash="bash", grace_s=1.0
        )
        self.promoter = Promoter(tree, rank, ranks)
        self.busy_until = 0
        self.idle = False

    def finish(self) -> None:
        """Files what it ran."""
        begun = self._slot.attempt
        assert begun is not None
        self._slot.attempt = None
        begun.ended()
        name = begun.held.name
        closed = attempt.finish(
            self._tree, self._slot, begun, _ENDED, self._place, oom_kills=None,
            before_move=lambda line: None,
        )  # fmt: skip
        assert closed is not None, name
        assert (closed.mine, closed.moved) == (True, True), name
        self.promoter.finished(name)

    @property
    def busy(self) -> bool:
        """Whether it has a task."""
        return self._slot.attempt is not None

    def take(self, lasts: int, now: int) -> bool:
        """Claims and begins a task, if it finds one; it then runs for so many rounds."""
        held = self._claimer.take(self._slot)
        self.idle = not isinstance(held, Claim)
        if not isinstance(held, Claim):
            return False
        closed = attempt.settle_without_running(self._tree, held, self._place)
        assert closed is None
        caches: Any = _NoCaches()
        begun = attempt.begin(
            self._tree, self._slot, held, place=self._place, env={}, caches=caches, oom_kills=None
        )
        assert isinstance(begun, Attempt)
        self._slot.attempt = begun
        self.busy_until = now + lasts
        return True


class Fleet:
    """Workers that take their turns, one after the other in each round.

    Args:
        tree: The spool.
        ranks: How many.
        seed: Of the lengths of tasks, which are from 1 to 3 rounds.
    """

    def __init__(self, tree: SpoolTree, ranks: int, seed: int = 1) -> None:
        self.fs = tree.fs
        assert isinstance(self.fs, CountingFS)
        self._random = random.Random(seed)
        self.now = 0
        self.done = 0
        self.claimed = 0
        self.looks_in_vain = 0
        self.workers = [Worker(tree, rank, ranks) for rank in range(ranks)]

    def round(self) -> None:
        """One round: whoever's task has ended files it and looks for another."""
        for worker in self.workers:
            if worker.busy and worker.busy_until > self.now:
                continue
            if worker.busy:
                worker.finish()
                self.done += 1
            if worker.take(self._random.randint(1, 3), self.now):
                self.claimed += 1
            else:
                self.looks_in_vain += 1
        self.now += 1

    def run(self, tasks: int) -> Counts:
        """Goes on until so many more tasks are done, or there are none; what it asked for."""
        goal = self.done + tasks
        with clock(self), self.fs.counted() as counts:  # type: ignore[attr-defined]
            while self.done < goal:
                self.round()
                if not any(worker.busy for worker in self.workers):
                    break
        return counts


@contextmanager
def clock(fleet: Fleet) -> Iterator[None]:
    """Rounds instead of seconds for whatever paces itself; its jitter is the same each time."""
    seconds = SimpleNamespace(monotonic=lambda: fleet.now * ROUND_S)
    chance = random.Random(2)
    with (
        mock.patch.object(queue, "time", seconds),
        mock.patch.object(queue, "random", SimpleNamespace(uniform=chance.uniform)),
    ):
        yield
