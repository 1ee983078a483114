"""What the journals of both spools say about a span of time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetcraft.spool.tree import SpoolTree
from fleetcraft.telemetry.queue import Queue, read_queue
from tests.telemetry.journals import Launch, depth, make_spool

T = 1_800_000_000.0


@pytest.fixture
def tree(tmp_path: Path) -> SpoolTree:
    return make_spool(tmp_path / "taskq_gpu")


def read(tree: SpoolTree, since_s: float | None = None, until_s: float | None = None) -> Queue:
    return read_queue({"inner": tree.paths.root}, since_s=since_s, until_s=until_s)


def test_a_start_and_its_end_are_one_run_on_the_gpu_of_its_slot(tree: SpoolTree) -> None:
    launch = Launch(tree, T, host="n9", job="41", slots=2)
    launch.write("arrive", T, slots=2, host="n9", job="41", gpus=2, slot_gpus=["GPU-a", "GPU-b"])
    claim = launch.run("one", T + 1, T + 61, slot=1, family="train")
    (run,) = read(tree).runs
    assert (run.spool, run.task, run.family, run.host, run.job) == (
        *("inner", "one", "train", "n9", "41"),
    )
    assert (run.claim, run.slot, run.gpus) == (claim, 1, ("GPU-b",))
    assert (run.start_s, run.end_s, run.outcome) == (T + 1, T + 61, "completed")


def test_a_journal_of_before_takes_host_and_job_from_its_lease(tree: SpoolTree) -> None:
    launch = Launch(tree, T, host="old", job="40", gpus=4).write("arrive", T, slots=1)
    launch.run("one", T + 1, T + 2)
    queue = read(tree)
    (run,) = queue.runs
    assert (run.host, run.job, run.family, run.gpus) == ("old", "40", "", ())
    assert [(worker.host, worker.gpus) for worker in queue.workers] == [("old", 4)]


def test_a_start_without_end_stays_open_and_a_worker_that_left_makes_it_a_problem(
    tree: SpoolTree,
) -> None:
    Launch(tree, T, launch="stillhere").write("arrive", T).run("runs", T + 1)
    gone = Launch(tree, T, launch="gonehome").write("arrive", T)
    gone.run("lost", T + 1)
    gone.write("leave", T + 9, reason="walltime")
    queue = read(tree)
    assert [(run.task, run.end_s, run.outcome) for run in queue.runs] == [
        *(("lost", None, ""), ("runs", None, "")),
    ]
    (problem,) = queue.problems
    assert "1 started and have no end" in problem


def test_what_has_no_end_ran_no_longer_than_until_its_worker_left(tree: SpoolTree) -> None:
    gone = Launch(tree, T, launch="gonehome").write("arrive", T)
    gone.run("lost", T + 1)
    gone.write("leave", T + 9, reason="walltime")
    assert [run.task for run in read(tree, T + 5, T + 100).runs] == ["lost"]
    later = read(tree, T + 10, T + 100)
    assert (later.runs, later.running_spans("inner", T + 10, T + 100)) == ([], [])
    assert len(later.problems) == 1


def test_an_end_in_another_journal_closes_the_run(tree: SpoolTree) -> None:
    died = Launch(tree, T, launch="dddddddd")
    claim = died.run("one", T + 1)
    other = Launch(tree, T, launch="aaaaaaaa", host="n2")
    other.write("end", T + 50, task="one", claim=claim, outcome="lost", wall_s=None)
    (run,) = read(tree).runs
    assert (run.lease, run.start_s, run.end_s, run.outcome) == (died.name, T + 1, T + 50, "lost")


def test_an_end_without_a_start_lasted_as_long_as_it_says(tree: SpoolTree) -> None:
    Launch(tree, T).write("end", T + 30, task="one", claim="x-1", outcome="failed", wall_s=10.0)
    (run,) = read(tree).runs
    assert (run.start_s, run.end_s, run.slot) == (T + 20, T + 30, None)


def test_only_what_touches_the_span_is_kept_and_the_depth_before_it(tree: SpoolTree) -> None:
    launch = Launch(tree, T).write("arrive", T)
    for number, (start, end) in enumerate([(0, 10), (5, 110), (150, 160), (290, None), (400, 410)]):
        launch.run(f"t{number}", T + start, None if end is None else T + end, number=number)
    for at in (10, 90, 120, 300, 330):
        launch.write("depth", T + at, **depth(pending=at))
    queue = read(tree, T + 100, T + 300)
    assert [run.task for run in queue.runs] == ["t1", "t2", "t3"]
    assert [d.pending for d in queue.depths] == [90, 120, 300]
    assert queue.depth_at("inner", T + 100).pending == 90  # type: ignore[union-attr]
    assert queue.depth_at("inner", T + 299).pending == 120  # type: ignore[union-attr]
    assert queue.depth_at("outer", T + 299) is None


def test_a_worker_is_there_from_arrive_to_leave_and_a_silent_one_until_its_last_beat(
    tree: SpoolTree,
) -> None:
    Launch(tree, T, launch="left").write("arrive", T, slots=1, gpus=2).write("leave", T + 100)
    Launch(tree, T, launch="alive", gpus=4).write("arrive", T, slots=1)
    Launch(tree, T, launch="silent").write("arrive", T, slots=1)
    os.utime(tree.paths.lease("7.0.silent"), (T + 50, T + 50))
    os.utime(tree.paths.lease("7.0.alive"), (T + 1000, T + 1000))
    workers = {worker.lease: worker for worker in read(tree).workers}
    there = {
        at: [name for name, worker in workers.items() if worker.overlaps(T + at, T + at + 10)]
        for at in (60, 120, 200)
    }
    assert workers["7.0.left"].end_s == T + 100
    assert workers["7.0.alive"].end_s is None
    assert there[60] == ["7.0.alive", "7.0.left", "7.0.silent"]
    assert there[120] == ["7.0.alive", "7.0.silent"]  # 50 s and three intervals of 30 s
    assert there[200] == ["7.0.alive"]


def test_a_launch_that_left_long_before_is_not_opened(tree: SpoolTree) -> None:
    Launch(tree, T, launch="long", left_s=T + 10).raw("{torn")
    Launch(tree, T, launch="late", left_s=T + 9000).raw("{torn")
    queue = read(tree, since_s=T + 10_000)
    assert (queue.journals, queue.damaged_lines) == (1, 1)


def test_commands_are_no_workers(tree: SpoolTree) -> None:
    Launch(tree, T, role="command")
    assert read(tree).workers == []


def test_damaged_lines_are_counted_and_the_others_read(tree: SpoolTree) -> None:
    launch = Launch(tree, T).raw(b"\0\0\0\n").raw("[1]\n").raw('{"event":"start","at":"noon"}\n')
    launch.write("start", T, task="no claim").write("depth", T, pending=1)
    launch.raw('{"event":"start","at":"2026-01-01T00:00:00Z","slot":"x"}\n')
    launch.run("one", T, T + 1)
    launch.raw('{"event":"start","at":"2026-')
    queue = read(tree)
    assert [run.task for run in queue.runs] == ["one"]
    assert queue.damaged_lines == 7


def test_a_line_of_nothing_but_brackets_is_a_damaged_one(tree: SpoolTree) -> None:
    deep = '{"event":"end","x":' + "[" * 100_000 + "]" * 100_000 + "}"
    Launch(tree, T).raw(f"{deep}\n").run("one", T, T + 1)
    queue = read(tree)
    assert [run.task for run in queue.runs] == ["one"]
    assert queue.damaged_lines == 1


def test_events_and_fields_of_later_versions_are_passed_over(tree: SpoolTree) -> None:
    Launch(tree, T).write("dance", T, steps=[1]).write("note", T, text="x").run(
        "one", T, T + 1, colour={"a": 1}
    )
    queue = read(tree)
    assert len(queue.runs) == 1
    assert queue.damaged_lines == 0


def test_a_clock_that_was_set_back_makes_no_negative_time(tree: SpoolTree) -> None:
    Launch(tree, T).run("one", T + 100, T + 40)
    (run,) = read(tree).runs
    assert run.end_s == run.start_s


def test_a_missing_spool_is_a_problem_in_words(tmp_path: Path) -> None:
    queue = read_queue({"outer": str(tmp_path / "taskq")})
    assert queue.journals == 0
    (problem,) = queue.problems
    assert problem.startswith("outer spool not read: no spool at")


def test_a_spool_that_others_can_write_is_not_read(tree: SpoolTree) -> None:
    Launch(tree, T).run("one", T, T + 1)
    Path(tree.paths.workers).chmod(0o777)
    queue = read(tree)
    assert queue.runs == []
    assert "others can write it" in queue.problems[0]


def test_a_journal_that_others_can_write_or_that_is_a_link_is_not_read(
    tree: SpoolTree, tmp_path: Path
) -> None:
    Launch(tree, T, launch="open").run("one", T, T + 1)
    Path(tree.paths.journal("7.0.open")).chmod(0o666)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text('{"event":"arrive","at":"2026-01-01T00:00:00Z"}\n')
    Path(tree.paths.journal("7.0.link")).symlink_to(elsewhere)
    queue = read(tree)
    assert queue.runs == []
    assert len(queue.problems) == 2


def test_both_spools_are_read_on_one_time_axis(tmp_path: Path) -> None:
    outer, inner = make_spool(tmp_path / "taskq"), make_spool(tmp_path / "taskq_gpu")
    Launch(outer, T).write("depth", T + 2, **depth(pending=1)).run("pack", T + 3)
    Launch(inner, T).write("depth", T + 1, **depth(pending=2)).run("one", T + 4)
    queue = read_queue({"outer": outer.paths.root, "inner": inner.paths.root})
    assert [(d.spool, d.pending) for d in queue.depths] == [("inner", 2), ("outer", 1)]
    assert [(run.spool, run.task) for run in queue.runs] == [("outer", "pack"), ("inner", "one")]


@given(noise=st.lists(st.binary(max_size=60), max_size=8))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_bytes_in_a_journal_are_a_failure(tree: SpoolTree, noise: list[bytes]) -> None:
    launch = Launch(tree, T)
    launch.path.unlink(missing_ok=True)
    for line in noise:
        launch.raw(line.replace(b"\n", b"") + b"\n")
    launch.run("one", T, T + 1)
    assert [run.task for run in read(tree).runs] == ["one"]
