"""What acts cost at two sizes, and what many workers cost: flat, by exact count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.spool.check import check
from tests.crash.disturbing import folder_in_memory
from tests.scale.acts import Found, Subject, globs
from tests.scale.counting import CountingFS, asked
from tests.scale.counts import BOUNDED_BY_SIZE
from tests.scale.kernel import compare, of_seam
from tests.scale.makers import (
    Shape,
    empty_spool,
    enqueue_truly,
    fill,
    half_done,
    write_pending,
)
from tests.scale.simulated import Fleet

SMALL, LARGE = 200, 2_000


@pytest.fixture(scope="module")
def room() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="module")
def acts(room: Path) -> dict[str, tuple[Found, Found]]:
    """Every act at both sizes."""
    small, large = (
        {found.act: found for found in Subject(room / str(size), size).all()}
        for size in (SMALL, LARGE)
    )
    assert small.keys() <= large.keys() | {act for act in small if "dead" in act}
    return {act: (small[act], large[act]) for act in small.keys() & large.keys()}


def test_what_concerns_one_task_costs_the_same_in_a_spool_of_any_size(
    acts: dict[str, tuple[Found, Found]],
) -> None:
    seen = 0
    for act, (small, large) in acts.items():
        if act.startswith((*BOUNDED_BY_SIZE, "`recover`", "`cancel`", "`retry`")):
            continue
        seen += 1
        ours = {kind: n for kind, n in small.counts.items() if kind != "names"}
        theirs = {kind: n for kind, n in large.counts.items() if kind != "names"}
        if small.tasks == large.tasks:
            assert ours == theirs, act
        else:
            assert asked(small.counts) / small.tasks == asked(large.counts) / large.tasks, act
    assert seen == 9


@pytest.mark.parametrize("act", ["`cancel` of many, pending", "`retry` of many"])
def test_steering_many_tasks_costs_no_more_for_each_than_steering_few(
    acts: dict[str, tuple[Found, Found]], act: str
) -> None:
    small, large = acts[act]
    assert asked(large.counts) / large.tasks <= asked(small.counts) / small.tasks
    assert asked(large.counts) / large.tasks < 10
    assert large.counts["list"] == 0  # none of them lists running/, however many are claimed


def test_a_task_costs_a_worker_seven_operations_besides_listings(
    acts: dict[str, tuple[Found, Found]],
) -> None:
    small, large = acts["claim, begin and finish, one worker, listings apart"]
    assert asked(small.counts) == 7 * small.tasks
    assert asked(large.counts) == 7 * large.tasks


def test_check_reads_each_record_once_and_looks_at_each_name_once(
    acts: dict[str, tuple[Found, Found]],
) -> None:
    small, large = acts["check"]
    assert (small.counts["open"], small.counts["stat"]) == (SMALL, SMALL)
    assert (large.counts["open"], large.counts["stat"]) == (LARGE, LARGE)
    assert small.counts["list"] == large.counts["list"]


def test_a_pass_of_recovery_reads_no_lease_that_it_has_read(
    acts: dict[str, tuple[Found, Found]],
) -> None:
    first, following = (acts[f"recovery, none dead, {turn} pass"][1] for turn in ("first", "next"))
    assert first.counts["open"] == 64
    assert asked(following.counts) == following.counts["list"] == 1


def test_a_watcher_that_looks_again_looks_once_at_what_all_of_them_wait_for(
    acts: dict[str, tuple[Found, Found]], room: Path
) -> None:
    for found in acts["promotion, next look"]:
        assert asked(found.counts) <= 3
    first, following, status = (
        {found.act: found.counts for found in globs(room / f"globs-{size}", size)}
        for size in (SMALL, LARGE, 4 * LARGE)
    )
    act = "promotion behind a glob, next look"
    assert asked(first[act]) == asked(following[act]) == asked(status[act]) == 2
    # A listing of names/, one of done/ and one of waiting/, however much the glob matches.
    act = "promotion behind a glob, first look"
    assert first[act]["list"] <= following[act]["list"] == status[act]["list"] == 3


def test_status_reads_no_record_of_what_is_done_or_pending(room: Path) -> None:
    fs = CountingFS()
    tree = empty_spool(room / "status", fs)
    fill(tree, Shape(done=1_500, pending=500))
    from fleetcraft.spool import views

    with fs.counted() as counts:
        view = views.status(tree)
    assert view.counts["done"] == 1_500
    assert view.counts["pending"] == 500
    assert counts["open"] == 2  # the two markers
    assert counts["names"] == 2_000 + 2  # and the two folders of lanes


def test_sixty_four_workers_ask_for_little_more_a_task_than_one(room: Path) -> None:
    cost = {}
    for ranks in (1, 64):
        fs = CountingFS()
        tree = empty_spool(room / f"ranks-{ranks}", fs)
        write_pending(tree, 600)
        fleet = Fleet(tree, ranks)
        counts = fleet.run(10_000)  # until the queue is empty: the races of the end are in it
        assert fleet.done == 600
        cost[ranks] = asked(counts) / fleet.done
    assert cost[64] < 10.5
    assert cost[64] < 1.35 * cost[1]


@pytest.mark.parametrize("ranks", [8, 64])
def test_a_task_costs_many_workers_the_same_in_a_deeper_queue(room: Path, ranks: int) -> None:
    cost = []
    for pending in (700, 2_100):
        tree = empty_spool(room / f"deep-{ranks}-{pending}", CountingFS())
        write_pending(tree, pending)
        fleet = Fleet(tree, ranks)
        fleet.run(2 * ranks)
        before = fleet.done
        counts = fleet.run(3 * ranks)
        cost.append(asked(counts) / (fleet.done - before))
    assert cost[0] == pytest.approx(cost[1], rel=0.01)


def test_both_makers_write_the_same_spool(room: Path) -> None:
    made = []
    for make in (enqueue_truly, write_pending):
        tree = empty_spool(room / make.__name__)
        make(tree, 30, 7)
        folder = Path(tree.paths.root)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        made.append(
            [
                (
                    str(path.relative_to(folder)),
                    path.stat().st_mode,
                    path.stat().st_nlink,
                    [line for line in path.read_bytes().split(b"\n") if b"FLEET id: " not in line],
                )
                for path in files
            ]
        )
        assert len(files) == 60
    assert made[0] == made[1]


def test_a_spool_that_was_written_directly_is_whole(room: Path) -> None:
    tree = empty_spool(room / "whole")
    fill(tree, half_done(400))
    report = check(tree)
    assert (report.faults, report.notices, report.tasks) == ([], [], 400)


def test_the_seam_counts_what_the_kernel_counts(tmp_path: Path) -> None:
    found = compare(tmp_path, 150)
    if isinstance(found, str):
        pytest.skip(found)
    differ = [act for act, (seam, kernel) in found.items() if of_seam(seam) != +kernel]
    # It follows journals by descriptors of its own.
    assert differ == ["`top`, first look", "`top`, next look"]
