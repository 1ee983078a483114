"""The order in which a worker meets pending tasks, and when it may say that there is none."""

from __future__ import annotations

import os

import pytest

from fleetcraft import Spool
from fleetcraft.spool import queue as order
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


def test_a_look_goes_on_behind_what_a_worker_keeps_of_a_list(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Arrange: as if very many were pending, none of which this worker may claim.
    monkeypatch.setattr(order, "_WINDOW", 7)
    monkeypatch.setattr(order, "_LEAST_STRIDE", 1)
    spool = Spool(tree.paths.root)
    for n in range(20):
        spool.enqueue(f"t{n:02d}", "true")
    queue = Queue(tree, index=1, count=3)
    for _ in range(2):
        # Act
        queue.begin()
        met = []
        while (candidate := queue.next()) is not None:
            met.append(candidate.name)
        # Assert
        assert len(set(met)) == 20
        assert len(met) <= 2 * 20 + 7


def test_what_a_fleet_lists_in_a_second_does_not_grow_with_its_workers(tree: SpoolTree) -> None:
    queues = {count: Queue(tree, 0, count) for count in (1, 1_000, 10_000, 100_000)}
    for queue in queues.values():
        queue._plain._listed = 100_000
    assert queues[1]._first.pause_s(2.0) == 2.0
    assert all(count / queue._first.pause_s(2.0) <= 1_000 for count, queue in queues.items())
    assert all(
        count * 100_000 / queue._plain.pause_s(4.0) <= 250_000 for count, queue in queues.items()
    )
