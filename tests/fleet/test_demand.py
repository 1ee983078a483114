"""Demand as read from real spools, and what present fleets are reckoned to take of it.

Not here: what is decided from it; test_control has that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fleetcraft import Spool
from fleetcraft.fleet.renewal import demand
from fleetcraft.fleet.renewal.demand import Demand, DemandReader, Kind, need_of, took_work
from fleetcraft.fleet.renewal.supply import Supply, fleets_of
from fleetcraft.fleet.shapes import parse_shape
from fleetcraft.layout import Lane
from fleetcraft.slurm.queue import Jobs
from fleetcraft.spool.leases import Journal
from tests.fleet.renewals import FOUR, ROOT, a_job, pending


@pytest.fixture
def outer(tmp_path: Path) -> Spool:
    (tmp_path / "r").mkdir(mode=0o700)
    return Spool.create(f"{tmp_path}/r/taskq", project_dir=str(tmp_path))


@pytest.fixture
def inner(tmp_path: Path, outer: Spool) -> Spool:
    return Spool.create(f"{tmp_path}/r/taskq_gpu", project_dir=str(tmp_path))


def look(outer: Spool, inner: Spool | None = None) -> Demand:
    return DemandReader(outer.tree, inner.tree if inner else None).look()


def test_pending_tasks_count_by_time_spool_and_slot_in_every_lane(
    outer: Spool, inner: Spool
) -> None:
    outer.enqueue("a", "true", time_s=600)
    outer.enqueue("b", "true", time_s=600, lane="first")
    outer.enqueue("c", "true", lane="last", slot="gpu")
    inner.enqueue("d", "true")
    found = look(outer, inner)
    assert found.kinds == {
        Kind(600, False, ""): 2,
        Kind(None, False, "gpu"): 1,
        Kind(None, True, ""): 1,
    }
    assert (found.pending, found.unread, found.unfit) == (4, 0, 0)


def test_what_waits_or_is_no_work_for_a_new_fleet_does_not_count(
    outer: Spool, inner: Spool
) -> None:
    outer.enqueue("first", "true")
    outer.enqueue("second", "true", after=("first",))
    outer.enqueue("unwanted", "true")
    Path(outer.tree.paths.cancel_marker("unwanted")).touch()
    outer.enqueue("pack-0123abcd-7", "fleetcraft worker", timed=True)
    inner.enqueue("timed", "true", timed=True)
    Path(outer.tree.paths.pending, "garbage.sh").write_text("rm -rf /")
    found = look(outer, inner)
    assert found.kinds == {Kind(None, False, ""): 1}
    assert (found.pending, found.unfit) == (5, 4)


def test_tasks_of_an_inner_spool_that_no_pack_may_drain_are_no_demand(
    outer: Spool, inner: Spool
) -> None:
    inner.enqueue("a", "true")
    inner.drain("the disk is full")
    found = look(outer, inner)
    assert (found.kinds.total(), found.pending, found.unfit) == (0, 1, 1)
    Path(inner.tree.paths.drain_marker).unlink()
    assert look(outer, inner).kinds.total() == 1


def test_a_record_is_read_once_and_a_look_reads_so_many_at_most(outer: Spool) -> None:
    for number in range(7):
        outer.enqueue(f"t{number}", "true")
    reader = DemandReader(outer.tree, None)
    peek = mock.Mock(wraps=outer.tree.fs.peek)
    with (
        mock.patch.object(demand, "_READS_A_LOOK", 3),
        mock.patch.object(outer.tree.fs, "peek", peek),
    ):
        looks = [reader.look() for _ in range(4)]
    seen = [(found.kinds.total(), found.unread) for found in looks]
    assert seen == [(3, 4), (6, 1), (7, 0), (7, 0)]
    assert peek.call_count == 7


def test_a_task_that_is_moved_while_it_is_read_is_read_by_the_next_look(outer: Spool) -> None:
    outer.enqueue("t", "true")
    reader = DemandReader(outer.tree, None)

    def gone(path: str) -> bytes:
        raise FileNotFoundError(2, "claimed meanwhile", path)

    with mock.patch.object(outer.tree.fs, "peek", gone):
        assert reader.look().unread == 1
    assert reader.look().kinds.total() == 1


def test_a_folder_that_cannot_be_listed_is_no_empty_queue(outer: Spool) -> None:
    def stale(path: str) -> list[str]:
        raise OSError(116, os.strerror(116), path)

    with mock.patch.object(outer.tree.fs, "listdir", stale), pytest.raises(OSError, match="tale"):
        look(outer)


def test_a_job_took_work_when_a_journal_of_its_workers_has_a_start(
    outer: Spool, inner: Spool
) -> None:
    trees = [outer.tree, inner.tree]
    Journal(outer.tree, "812.0.abcd2345").write({"event": "claim"})
    Journal(outer.tree, "81.0.abcd2345").write({"event": "start"})
    assert took_work(trees, "812") is False
    Journal(inner.tree, "812.3.wxyz2345").write({"event": "start", "task": "t"})
    assert took_work(trees, "812") is True


# ------------------------------------------------------------------------------------- reckoning


def need(tasks: Any, *supply: Supply, **rules: Any) -> tuple[int, float, bool]:
    """Tasks taken by supply, nodes that the rest justifies, and whether that is a whole fleet."""
    seen = Demand(kinds=tasks, pending=tasks.total(), unread=0, unfit=0, seen_s=0.0)
    given = {"tasks_per_node": 1, "gpus_per_node": 1, "slots": "1", **rules}
    found = need_of(given.pop("shape", FOUR), seen, list(supply), **given)
    return found.taken, found.open_nodes, found.justified


def fleet(nodes: int, left_s: int | None, limit_s: int | None = 43200) -> Supply:
    return Supply(job_id="7", lane="", state="RUNNING", nodes=nodes, limit_s=limit_s, left_s=left_s)


@pytest.mark.parametrize(
    ("supply", "expected"),
    [
        ([], (0, 4.0, True)),
        ([fleet(4, 43200)], (4, 0.0, False)),
        ([fleet(1, 43200)], (1, 3.0, False)),
        ([fleet(4, 10800 + 180)], (1, 3.0, False)),
        ([fleet(4, 60)], (0, 4.0, True)),
        ([fleet(1, None)], (4, 0.0, False)),
        ([fleet(1, 43200, None)], (4, 0.0, False)),
        ([fleet(1, 43200), fleet(2, 43200)], (3, 1.0, False)),
    ],
    ids=["none", "whole", "one node", "a quarter left", "at its end", "no end", "no limit", "two"],
)
def test_tasks_without_a_time_use_an_equal_share_of_a_fleet(
    supply: list[Supply], expected: tuple[int, float, bool]
) -> None:
    assert need(pending(plain=4), *supply) == expected


def test_tasks_that_declare_their_time_use_so_much_of_a_node() -> None:
    assert need(pending(s600=100), fleet(1, 6180))[0] == 10
    assert need(pending(s600=100), fleet(1, 6180), slots="2")[0] == 20
    assert need(pending(s600=100), fleet(1, 600))[0] == 0
    assert need(pending(s7200=100), fleet(9, 7200))[0] == 0


@pytest.mark.parametrize(
    ("kind", "slots", "fits"),
    [
        (Kind(None, False, "gpu"), "1", False),
        (Kind(None, False, "gpu"), "gpu", True),
        (Kind(None, False, "big"), "gpu", False),
        (Kind(None, True, "gpu"), "1", True),
        (Kind(43020, False, ""), "1", True),
        (Kind(43021, False, ""), "1", False),
    ],
    ids=str,
)
def test_a_task_fits_a_lane_whose_workers_could_claim_it(
    kind: Kind, slots: str, fits: bool
) -> None:
    tasks = pending()
    tasks[kind] = 9
    assert need(tasks, slots=slots)[2] is fits
    shape = parse_shape(f"4x12:00:00/{slots}")
    assert need(tasks, shape=shape, slots="1")[2] is fits


def test_fleets_are_known_by_the_mark_of_their_tree(tmp_path: Path) -> None:
    mark = f"fleetcraft root={ROOT}"
    jobs = {
        "1": a_job("1", comment=mark, nodes=3),
        "2": a_job("2", comment=f"{mark} lane=4x12:00:00 intent=abcd2345", state="RUNNING",
                   time_limit_s=43200, time_left_s=100),
        "3": a_job("3", comment=mark, state="COMPLETED"),
        "4": a_job("4", comment="fleetcraft root=ffffffffffff"),
        "5": a_job("5", comment=None, name="fleet"),
        "6": a_job("6", comment=mark, state="REQUEUED", time_left_s=None),
    }  # fmt: skip
    found = fleets_of(Jobs(cluster="test", age_s=0.0, jobs=jobs), ROOT)
    said = [(job.job_id, job.waits, job.is_of(FOUR), job.left_s) for job in found]
    assert said == [
        ("1", True, False, 3600), ("2", False, True, 100), ("6", True, False, 3600),
    ]  # fmt: skip


def test_what_lane_last_admits_is_judged_by_its_binding_at_each_look(outer: Spool) -> None:
    outer.enqueue("a", "true", lane=Lane.LAST)  # fleetcraft.layout
    reader = DemandReader(outer.tree, None)
    assert reader.look().kinds.total() == 1

    binding = Path(outer.tree.paths.last_grid)
    binding.touch(0o600)
    binding.write_text("0" * 64 + "\n")  # of a grid that cannot be read
    assert (reader.look().kinds.total(), reader.look().unfit) == (0, 1)

    binding.unlink()
    assert reader.look().kinds.total() == 1
