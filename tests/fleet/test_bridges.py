"""Bridges: how many packs are added, from what was seen, and by several controllers at once."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.fleet import bridges
from fleetcraft.fleet.bridges import Bridges, NodeGpus, NodeUse, bridges_to_add, plan_bridges
from fleetcraft.identity import Owner
from fleetcraft.layout import Lane
from fleetcraft.spool import leases
from fleetcraft.spool.claims import claim, close_own
from fleetcraft.spool.enqueue import enqueue_batch
from fleetcraft.spool.leases import Lease
from fleetcraft.spool.record import HistoryLine, Outcome
from fleetcraft.spool.store import Spool
from fleetcraft.spool.tree import SpoolTree

REPO = Path(__file__).resolve().parents[2]


def node(host: str, gpus: int | None, use: NodeUse, age_s: float | None = 1.0) -> NodeGpus:
    return NodeGpus(host=host, gpus=gpus, use=use, age_s=age_s, reason="a test says so")


def live(running: int = 0, waiting: int = 0, failed: int = 0) -> Bridges:
    names = [f"pack-00000000-{number}" for number in range(1, running + waiting + 1)]
    return Bridges(
        running=tuple(names[:running]),
        waiting=tuple(names[running:]),
        failed_in_a_row=failed,
        next_number=len(names) + 1,
    )


MIXED = [
    *(node(f"one{n}", 1, NodeUse.FREE) for n in range(3)),
    *(node(f"two{n}", 2, NodeUse.FREE) for n in range(2)),
    *(node(f"three{n}", 3, NodeUse.FREE) for n in range(1)),
]


# -- the rule


@pytest.mark.parametrize(
    ("free", "running", "pending", "cap", "expected"),
    [
        (8, 0, 20, 12, 8),  # one for each free GPU, whatever the nodes' shapes
        (8, 3, 20, 12, 5),
        (40, 0, 100, 12, 12),  # the cap
        (40, 10, 100, 12, 2),
        (8, 0, 5, 12, 5),  # no more than there is work
        (0, 0, 5, 12, 0),
        (2, 5, 5, 12, 0),  # never below zero
        (8, 20, 5, 12, 0),
        (8, 0, 5, 0, 0),
    ],
)
def test_the_rule(free: int, running: int, pending: int, cap: int, expected: int) -> None:
    assert bridges_to_add(free_gpus=free, live=running, pending=pending, cap=cap) == expected


def test_the_rule_never_leaves_its_bounds() -> None:
    numbers = [0, 1, 2, 11, 12, 13, 1000]
    for free, alive, pending, cap in itertools.product(numbers, repeat=4):
        add = bridges_to_add(free_gpus=free, live=alive, pending=pending, cap=cap)
        assert 0 <= add <= max(0, min(pending, free - alive, cap - alive))


def test_a_mixed_fleet_gets_a_pack_for_each_free_gpu_not_for_each_three() -> None:
    plan = plan_bridges(MIXED, live(), pending=100, cap=12)
    assert (plan.free_gpus, plan.add) == (10, 10)
    assert plan.reason == "no more GPUs are seen free"


def test_packs_that_run_do_not_keep_idle_nodes_from_getting_theirs() -> None:
    # Two of four one-GPU nodes have a pack: the two others are still free.
    nodes = [
        node("n1", 1, NodeUse.BRIDGED),
        node("n2", 1, NodeUse.BRIDGED),
        node("n3", 1, NodeUse.FREE),
        node("n4", 1, NodeUse.FREE),
    ]
    assert plan_bridges(nodes, live(running=2), pending=9, cap=12).add == 2
    # Until packs wait for them already.
    assert plan_bridges(nodes, live(running=2, waiting=1), pending=9, cap=12).add == 1
    assert plan_bridges(nodes, live(running=2, waiting=2), pending=9, cap=12).add == 0
    # The cap counts them all.
    assert plan_bridges(nodes, live(running=2), pending=9, cap=3).add == 1


@pytest.mark.parametrize(
    "seen",
    [
        node("n1", 4, NodeUse.UNKNOWN),
        node("n1", None, NodeUse.FREE),
        node("n1", 4, NodeUse.FREE, age_s=None),
        node("n1", 4, NodeUse.FREE, age_s=301.0),
        node("n1", 4, NodeUse.WORKING),
    ],
)
def test_what_is_not_known_to_be_free_is_not_counted(seen: NodeGpus) -> None:
    plan = plan_bridges([seen], live(), pending=9, cap=12, max_age_s=300.0)
    assert (plan.free_gpus, plan.add) == (0, 0)
    assert plan.unknown == (seen.use is not NodeUse.WORKING)


def test_packs_that_all_fail_are_not_published_for_ever() -> None:
    assert plan_bridges(MIXED, live(failed=9), pending=100, cap=12).add == 10
    plan = plan_bridges(MIXED, live(failed=10), pending=100, cap=12)
    assert plan.add == 0
    assert "the last 10 packs failed" in plan.reason


def test_a_marker_stops_the_bridges() -> None:
    plan = plan_bridges(MIXED, live(), pending=100, cap=12, stopped="DRAIN stands")
    assert (plan.add, plan.reason) == (0, "DRAIN stands")


# -- what the spool tells


@pytest.fixture
def outer(tmp_path: Path) -> Spool:
    return Spool.create(str(tmp_path / "scratch/taskq"), project_dir=str(tmp_path))


@pytest.fixture
def inner(tmp_path: Path, outer: Spool) -> Spool:
    return Spool.create(str(tmp_path / "scratch/taskq_gpu"), project_dir=str(tmp_path))


def worker(spool: Spool, monkeypatch: pytest.MonkeyPatch, host: str, gpus: int) -> Lease:
    """The lease of a worker that beats."""
    monkeypatch.setenv("SLURMD_NODENAME", host)
    lease = leases.new_lease(rank="0", interval_s=30.0, gpus=gpus)
    leases.publish(spool.tree, lease)
    return lease


def hold(spool: Spool, lease: Lease, name: str, number: int = 1) -> None:
    owner = Owner(lease.job, lease.rank, "0", f"{lease.launch}-{number}")
    assert claim(spool.tree, name, spool.tree.find(name).path, owner) is not None


def states(spool: Spool) -> dict[str, tuple[int | None, str]]:
    return {seen.host: (seen.gpus, seen.use.value) for seen in bridges.observe_workers(spool.tree)}


def test_nodes_are_free_only_while_their_worker_is_heard_and_holds_nothing(
    outer: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer.enqueue("train", "true")
    outer.enqueue("pack-0123abcd-1", "true", lane="last")
    worker(outer, monkeypatch, "idle", 3)
    hold(outer, worker(outer, monkeypatch, "trains", 2), "train")
    hold(outer, worker(outer, monkeypatch, "packed", 1), "pack-0123abcd-1")
    worker(outer, monkeypatch, "shapeless", 0)
    silent = worker(outer, monkeypatch, "silent", 4)
    long_ago = time.time() - 100.0
    os.utime(outer.tree.paths.lease(silent.name), (long_ago, long_ago))
    gone = worker(outer, monkeypatch, "gone", 4)
    gone.left_at = "2026-11-29T20:33:05.123Z"
    leases.publish(outer.tree, gone)
    assert states(outer) == {
        "idle": (3, "free"),
        "trains": (2, "working"),
        "packed": (1, "bridged"),
        "shapeless": (None, "unknown"),
        "silent": (4, "unknown"),
    }
    assert os.listdir(outer.tree.paths.tmp) == []


def test_only_work_that_a_pack_can_run_is_counted(inner: Spool) -> None:
    inner.enqueue("a-plain", "true")
    inner.enqueue("b-gpu", "true", slot="gpu")
    inner.enqueue("c-timed", "true", timed=True)
    inner.enqueue("d-other", "true", slot="tpu")
    inner.enqueue("e-waits", "true", after=("a-plain",))
    inner.enqueue("f-last", "true", lane="last")
    inner.enqueue("g-first", "true", lane="first")
    Path(inner.tree.paths.pending_record("h-strange", Lane.PLAIN)).write_text("no record")
    assert bridges.count_packable(inner.tree, 12) == 4
    assert bridges.count_packable(inner.tree, 3) == 3
    declared = inner.spec("z-declared", "true", lane="last")
    inner.bind_grid(inner.freeze_grid([declared]))
    inner.enqueue("z-declared", "true", lane="last")
    # f-last is in lane last, and the grid does not have it.
    assert bridges.count_packable(inner.tree, 12) == 4


# -- publishing


def publish(outer: Spool, add: int, command: str = "true") -> tuple[list[str], int]:
    task = bridges.pack_task(outer.tree, command, outer.project_dir)
    found = bridges.find_bridges(outer.tree, bridges.kind_of(task))
    free = [node("n", add, NodeUse.FREE)]
    plan = plan_bridges(free, found, pending=100, cap=12)
    names, report = bridges.publish_bridges(outer.tree, task, plan)
    return names, report.enqueued


def test_packs_are_timed_and_come_after_the_work_of_whole_nodes(outer: Spool) -> None:
    [name], published = publish(outer, 1)
    assert published == 1
    record = outer.show(name).record
    assert (record.spec.timed, record.spec.lane) == (True, Lane.LAST)


def test_where_lane_last_is_bound_packs_are_not_work_and_take_the_plain_lane(outer: Spool) -> None:
    declared = outer.spec("panel", "true", lane="last")
    outer.bind_grid(outer.freeze_grid([declared]))
    [name], _ = publish(outer, 1)
    assert outer.show(name).record.spec.lane is Lane.PLAIN


def test_numbers_go_on_and_finished_packs_make_room(outer: Spool) -> None:
    first, _ = publish(outer, 3)
    assert [name.rpartition("-")[2] for name in first] == ["1", "2", "3"]
    assert publish(outer, 3) == ([], 0)
    outer.cancel(first[0])  # it is in failed now
    second, _ = publish(outer, 3)
    assert [name.rpartition("-")[2] for name in second] == ["4"]


def test_another_kind_of_pack_has_numbers_of_its_own_and_shares_the_cap(outer: Spool) -> None:
    publish(outer, 8)
    other, published = publish(outer, 30, command="false")
    assert (len(other), published) == (4, 4)
    assert other[0].endswith("-1")


def test_two_that_planned_from_the_same_sight_publish_the_same_packs(outer: Spool) -> None:
    task = bridges.pack_task(outer.tree, "true", outer.project_dir)
    found = bridges.find_bridges(outer.tree, bridges.kind_of(task))
    plan = plan_bridges([node("n", 5, NodeUse.FREE)], found, pending=100, cap=12)
    one, first = bridges.publish_bridges(outer.tree, task, plan)
    other, second = bridges.publish_bridges(outer.tree, task, plan)
    assert one == other
    assert (first.enqueued, second.enqueued, second.already_there) == (5, 0, 5)
    assert outer.counts()["pending"] == 5


def end(outer: Spool, name: str, outcome: Outcome) -> None:
    owner = Owner("L0", "0", "0", f"abcdefgh-{name.rpartition('-')[2]}")
    held = claim(outer.tree, name, outer.tree.find(name).path, owner)
    assert held is not None
    to = "done" if outcome is Outcome.COMPLETED else "failed"
    close_own(outer.tree, held, HistoryLine(claim=owner.token, outcome=outcome, to=to, attempt=1))


def test_failures_are_counted_since_the_last_pack_that_ended_well(outer: Spool) -> None:
    names, _ = publish(outer, 6)
    task = bridges.pack_task(outer.tree, "true", outer.project_dir)

    def in_a_row() -> int:
        return bridges.find_bridges(outer.tree, bridges.kind_of(task)).failed_in_a_row

    end(outer, names[0], Outcome.FAILED)
    end(outer, names[2], Outcome.FAILED)
    assert in_a_row() == 2
    end(outer, names[1], Outcome.COMPLETED)
    assert in_a_row() == 1
    outer.cancel(names[3])
    end(outer, names[4], Outcome.FAILED)
    assert in_a_row() == 2


class CutShort(FileSystem):
    """Dies before anything is published."""

    def rename_new(self, source: str, destination: str) -> None:
        raise KeyboardInterrupt


def test_packs_of_a_controller_that_died_are_counted_and_completed(outer: Spool) -> None:
    task = bridges.pack_task(outer.tree, "true", outer.project_dir)
    dying = SpoolTree(outer.root, CutShort())
    plan = plan_bridges(
        [node("n", 3, NodeUse.FREE)],
        bridges.find_bridges(dying, bridges.kind_of(task)),
        pending=9,
        cap=12,
    )
    with pytest.raises(KeyboardInterrupt):
        bridges.publish_bridges(dying, task, plan)
    assert outer.counts()["pending"] == 0
    assert publish(outer, 4)[1] == 1
    assert outer.counts()["pending"] == 4
    assert outer.check().ok


RACE = """
import os, random, sys, time
from fleetcraft.fleet import bridges
from fleetcraft.fleet.bridges import NodeUse, NodeGpus, plan_bridges
from fleetcraft.spool.tree import SpoolTree
outer = SpoolTree(sys.argv[1]).check_safe()
task = bridges.pack_task(outer, "true", "/")
while not os.path.exists(sys.argv[2]):
    found = bridges.find_bridges(outer, bridges.kind_of(task))
    time.sleep(random.uniform(0.0, 0.02))
    seen = NodeGpus(host="n", gpus=random.randrange(30), use=NodeUse.FREE, age_s=0.0, reason="")
    plan = plan_bridges([seen], found, pending=random.randrange(30), cap=12)
    bridges.publish_bridges(outer, task, plan)
"""


@pytest.fixture
def enough(tmp_path: Path) -> Path:
    """The file at which the racers end."""
    return tmp_path / "enough"


@pytest.fixture
def racers(outer: Spool, enough: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", RACE, outer.root, str(enough)]
    started = [
        subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPO)}) for _ in range(4)
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_controllers_that_race_never_have_more_packs_than_the_cap(
    outer: Spool, racers: list[subprocess.Popen[bytes]], enough: Path
) -> None:
    ended: set[str] = set()
    most = 0
    dice = random.Random(7)
    give_up_at = time.monotonic() + 90
    while any(process.poll() is None for process in racers):
        assert time.monotonic() < give_up_at
        if len(ended) > 40 and most > 6:
            enough.touch()
        # Packs end meanwhile, as they do when they find no work.
        names = set(outer.tree.fs.listdir(outer.tree.paths.names))
        pending = outer.tree.records(outer.tree.paths.lane(Lane.LAST))
        most = max(most, len(names - ended))
        for name in dice.sample(sorted(pending), min(len(pending), dice.randrange(3))):
            outer.cancel(name)
            ended.add(name)
    assert [process.returncode for process in racers] == [0] * 4
    assert 6 < most <= 12
    assert len(ended) > 40
    assert outer.check().ok


def test_the_command_of_a_pack_reaches_the_same_spools(tmp_path: Path) -> None:
    root = "/scratch/it's me"
    program = ["/opt/my tools/fleetcraft"]
    usual = bridges.pack_command(program, root, f"{root}/taskq_gpu", idle_s=60.0)
    assert usual == (
        "exec '/opt/my tools/fleetcraft' --root '/scratch/it'\"'\"'s me' "
        "worker --spool gpu --slots gpu --idle 60"
    )
    shown = tmp_path / "fleetcraft"
    shown.write_text('#!/bin/bash\nprintf "%s\\n" "$FLEET_ROOT" "$FLEET_SPOOL_GPU_DIR" "$@"\n')
    shown.chmod(0o755)
    apart = bridges.pack_command([str(shown)], root, "/else where/gpu", idle_s=60.0)
    done = subprocess.run(["bash", "-c", apart], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == [root, "/else where/gpu"]
    assert "--root" not in lines


def test_batches_of_other_tasks_are_none_of_its_business(outer: Spool) -> None:
    enqueue_batch(outer.tree, [outer.spec(f"pack-{n}", "true") for n in ("x", "1-2", "0123abcd")])
    assert bridges.find_bridges(outer.tree, "0123abcd").live == 0
