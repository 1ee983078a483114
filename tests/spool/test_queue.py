"""The order in which a worker meets pending tasks, and when it may say that there is none."""

from __future__ import annotations

import os

from fleetcraft import Spool
from fleetcraft.spool.queue import Queue
from fleetcraft.spool.tree import SpoolTree


def test_a_task_that_was_put_back_during_a_walk_is_met_before_nothing_is_said(
    tree: SpoolTree,
) -> None:
    spool = Spool(tree.paths.root)
    # Arrange: the walk has found the plain lane empty, and goes on in lane last.
    spool.enqueue("killer", "true")
    spool.enqueue("z-last", "true", lane="last")
    queue = Queue(tree)
    pending = f"{spool.root}/pending/killer.sh"
    for name in ("killer", "z-last"):
        queue.begin()
        candidate = queue.next()
        assert candidate is not None
        assert candidate.name == name
        os.rename(candidate.path, f"{spool.root}/running/{name}")  # this worker has won it
        queue.won()

    # Act: then the first one comes back.
    os.rename(f"{spool.root}/running/killer", pending)
    queue.begin()
    met = queue.next()

    # Assert
    assert met is not None
    assert met.path == pending


def test_a_look_ends_although_every_task_is_passed_over(tree: SpoolTree) -> None:
    spool = Spool(tree.paths.root)
    for n in range(20):
        spool.enqueue(f"t{n:02d}", "true")
    queue = Queue(tree, index=1, count=3)
    for _ in range(2):
        queue.begin()
        met = []
        while (candidate := queue.next()) is not None:
            met.append(candidate.name)
        assert len(set(met)) == 20
        assert len(met) <= 2 * 20 + 7  # its stride, and twice all of them at most
