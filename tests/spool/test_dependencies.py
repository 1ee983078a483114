"""Waiting tasks: what makes one ready, who blocks whom, and cycles that are refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import UsageError
from fleetcraft.identity import Owner
from fleetcraft.layout import Lane, State
from fleetcraft.spool import views
from fleetcraft.spool.dependencies import blocked_tasks, refuse_cycles
from fleetcraft.spool.enqueue import enqueue_batch
from fleetcraft.spool.promotion import Promoter
from fleetcraft.spool.record import Outcome
from fleetcraft.spool.tree import SpoolTree
from tests.quick_fs import QuickFS
from tests.spool.acts import publish, run, spec, state_of, take


def test_a_task_is_ready_when_all_it_names_are_done(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "b")
    publish(tree, "t", after=("a", "b"))
    promoter = Promoter(tree)
    assert promoter.refresh() == []
    run(tree, "a")
    assert promoter.refresh() == []
    run(tree, "b")
    assert promoter.refresh() == ["t"]
    assert state_of(tree, "t") is State.PENDING


def test_a_dependency_that_nobody_enqueued_yet_blocks(tree: SpoolTree) -> None:
    publish(tree, "t", after=("later",))
    promoter = Promoter(tree)
    assert promoter.refresh() == []
    publish(tree, "later")
    run(tree, "later")
    assert promoter.refresh() == ["t"]


def test_a_failed_dependency_blocks_until_it_is_done(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "t", after=("a",))
    run(tree, "a", Outcome.FAILED)
    assert Promoter(tree).refresh() == []
    assert state_of(tree, "t") is State.WAITING


def test_a_glob_needs_a_match_and_every_match_done(tree: SpoolTree) -> None:
    publish(tree, "t", after=("enc-*",))
    promoter = Promoter(tree)
    assert promoter.refresh() == []
    publish(tree, "enc-1")
    publish(tree, "enc-2")
    run(tree, "enc-1")
    assert promoter.refresh() == []
    run(tree, "enc-2")
    assert promoter.refresh() == ["t"]


def test_a_glob_does_not_count_the_task_that_asks(tree: SpoolTree) -> None:
    publish(tree, "w-last", after=("w-*",))
    publish(tree, "w-1")
    run(tree, "w-1")
    assert Promoter(tree).refresh() == ["w-last"]


def test_a_glob_that_matches_only_the_task_that_asks_is_not_met(tree: SpoolTree) -> None:
    publish(tree, "w-last", after=("w-*",))
    assert Promoter(tree).refresh() == []


def test_a_file_is_awaited_relative_to_the_project(tree: SpoolTree, tmp_path: Path) -> None:
    publish(tree, "t", after_files=("ready/marker",), project_dir=str(tmp_path))
    promoter = Promoter(tree)
    assert promoter.refresh() == []
    (tmp_path / "ready").mkdir()
    (tmp_path / "ready" / "marker").touch()
    assert promoter.refresh() == ["t"]


def test_a_task_goes_to_its_lane(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "t", after=("a",), lane=Lane.FIRST)
    run(tree, "a")
    Promoter(tree).refresh()
    assert tree.find("t").lane is Lane.FIRST


def test_whoever_finishes_a_task_promotes_what_waited_for_it(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "b")
    publish(tree, "t", after=("a",))
    publish(tree, "u", after=("a", "b"))
    promoter = Promoter(tree)
    promoter.refresh()
    run(tree, "a")
    assert promoter.finished("a") == ["t"]
    assert promoter.finished("a") == []
    run(tree, "b")
    assert promoter.finished("b") == ["u"]
    assert len(promoter) == 0


def test_a_chain_is_promoted_link_by_link(tree: SpoolTree) -> None:
    enqueue_batch(tree, [spec("a"), spec("b", after=("a",)), spec("c", after=("b",))])
    promoter = Promoter(tree)
    promoter.refresh()
    for name, following in (("a", ["b"]), ("b", ["c"])):
        run(tree, name)
        assert promoter.finished(name) == following


def test_a_waiting_task_that_was_taken_away_is_forgotten(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "t", after=("a",))
    promoter = Promoter(tree)
    promoter.refresh()
    os.unlink(tree.paths.waiting_record("t"))
    run(tree, "a")
    assert promoter.finished("a") == []
    assert promoter.refresh() == []
    assert len(promoter) == 0


class _FailsOnce(QuickFS):
    """The first rename out of `waiting` fails."""

    failed = False

    def rename_new(self, source: str, destination: str) -> None:
        if "/waiting/" in source and not self.failed:
            self.failed = True
            raise OSError(errno.EIO, "Input/output error", source)
        super().rename_new(source, destination)


@pytest.mark.parametrize("through", ["finished", "refresh"])
def test_an_error_at_one_task_keeps_no_other_waiting_for_ever(
    tree: SpoolTree, through: str
) -> None:
    publish(tree, "a")
    for name in ("t", "u", "v"):
        publish(tree, name, after=("a",))
    promoter = Promoter(SpoolTree(tree.paths.root, _FailsOnce()))
    promoter.refresh()
    run(tree, "a")
    with pytest.raises(OSError, match="Input/output error"):
        promoter.finished("a") if through == "finished" else promoter.refresh()
    assert promoter.refresh() == ["t", "u", "v"]


def test_names_of_blockers_that_are_done_are_not_kept(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "t", after=("a",))
    promoter = Promoter(tree)
    promoter.refresh()
    run(tree, "a")
    promoter.refresh()
    promoter.refresh()
    assert promoter._waiters == {}


def test_a_record_that_cannot_be_read_waits_and_hinders_nobody(tree: SpoolTree) -> None:
    publish(tree, "a")
    publish(tree, "t", after=("a",))
    publish(tree, "u", after=("a",))
    with open(tree.paths.waiting_record("t"), "wb") as file:
        file.write(b"garbage\n")
    run(tree, "a")
    assert Promoter(tree).refresh() == ["u"]
    assert os.path.exists(tree.paths.waiting_record("t"))


def test_who_blocks_whom_is_said_with_the_blockers_state(tree: SpoolTree) -> None:
    publish(tree, "bad")
    publish(tree, "slow")
    run(tree, "bad", Outcome.FAILED)
    publish(tree, "t1", after=("slow", "bad"))
    publish(tree, "t2", after=("nobody",))
    publish(tree, "t3", after=("none-*",))
    publish(tree, "t4", after_files=("no/file",))

    def look(name: str) -> str:
        location = tree.locate(name)
        return location.state.value if location else ""

    blocked, cycles, left_out = blocked_tasks(tree, look, limit=3)
    assert [(b.task, b.blocker, b.blocker_state) for b in blocked] == [
        ("t1", "bad", "failed"),
        ("t2", "nobody", "missing"),
        ("t3", "none-*", "missing"),
    ]
    assert cycles == []
    assert left_out == 1
    blocked, _, _ = blocked_tasks(tree, look, limit=3, only="t4")
    assert [(b.blocker, b.blocker_state) for b in blocked] == [("no/file", "file")]


@pytest.mark.parametrize(
    "batch",
    [
        [spec("a", after=("b",)), spec("b", after=("a",))],
        [spec("a", after=("b",)), spec("b", after=("c",)), spec("c", after=("a",))],
        [spec("w-1", after=("w-*",)), spec("w-2", after=("w-*",))],
    ],
)
def test_tasks_that_would_wait_for_one_another_are_refused(tree: SpoolTree, batch: Any) -> None:
    with pytest.raises(UsageError, match="wait for one another"):
        refuse_cycles(tree, batch)


def test_a_cycle_through_tasks_that_wait_already_is_refused(tree: SpoolTree) -> None:
    publish(tree, "a", after=("b",))
    publish(tree, "b", after=("c",))
    with pytest.raises(UsageError, match="->") as refused:
        refuse_cycles(tree, [spec("c", after=("a",))])
    assert set(refused.value.facts["cycle"]) == {"a", "b", "c"}  # type: ignore[call-overload]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14))
def test_a_batch_is_refused_exactly_if_it_goes_in_a_circle(edges: list[tuple[int, int]]) -> None:
    after: dict[int, set[int]] = {number: set() for number in range(8)}
    for task, dependency in edges:
        if task != dependency:
            after[task].add(dependency)
    batch = [
        spec(f"n{task}", after=tuple(f"n{d}" for d in sorted(needed)))
        for task, needed in after.items()
    ]
    tree = SpoolTree("/nowhere", QuickFS())
    circular = _has_cycle(after)
    try:
        refuse_cycles(tree, batch)
    except UsageError:
        assert circular
    else:
        assert not circular


def _has_cycle(after: dict[int, set[int]]) -> bool:
    left = {task: set(needed) for task, needed in after.items()}
    while free := [task for task, needed in left.items() if not needed & left.keys()]:
        for task in free:
            del left[task]
    return bool(left)


def test_a_blocker_that_is_claimed_while_status_looks_is_not_missing(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tree, "a")
    publish(tree, "w", after=("a",))
    claims_of = tree.claims

    def claimed_right_after() -> list[tuple[str, Owner]]:
        found = claims_of()
        monkeypatch.setattr(tree, "claims", claims_of)
        take(tree, "a")
        return found

    monkeypatch.setattr(tree, "claims", claimed_right_after)
    (blocked,) = views.status(tree).blocked
    assert (blocked.task, blocked.blocker, blocked.blocker_state) == ("w", "a", "running")
