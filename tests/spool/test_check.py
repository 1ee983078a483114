"""The examination of a spool: what it finds, what it repairs, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetcraft.layout import Lane, State
from fleetcraft.spool import check as examination
from fleetcraft.spool.check import CheckReport, check
from fleetcraft.spool.record import HistoryLine, Outcome, write_history
from fleetcraft.spool.tree import SpoolTree
from tests.spool.acts import new_owner, publish, run, spec, state_of, take
from tests.spool.test_enqueue import any_tree, cut_short  # noqa: F401 - the fixture


def kinds(report: CheckReport) -> list[tuple[str, str]]:
    return [(fault.kind, fault.name) for fault in report.faults]


def noticed(report: CheckReport) -> list[tuple[str, str]]:
    return [(notice.kind, notice.name) for notice in report.notices]


def test_a_spool_with_tasks_in_every_state_is_sound(tree: SpoolTree) -> None:
    for name in "abcd":
        publish(tree, name)
    publish(tree, "w", after=("x",))
    run(tree, "a")
    run(tree, "b", Outcome.FAILED)
    take(tree, "c")
    report = check(tree)
    assert report.ok
    assert report.tasks == 5
    assert report.notices == []


def test_looking_changes_nothing(tree: SpoolTree) -> None:
    publish(tree, "t")
    cut_short(tree, "u")
    before = sorted(Path(tree.paths.root).rglob("*"))
    check(tree)
    assert sorted(Path(tree.paths.root).rglob("*")) == before


@pytest.mark.parametrize("other", [State.DONE, State.FAILED])
def test_a_stray_link_in_a_second_state_is_found(tree: SpoolTree, other: State) -> None:
    publish(tree, "t")
    os.link(tree.find("t").path, tree.paths.finished_record("t", other))
    report = check(tree, repair=True)
    assert kinds(report) == [("in_two_states", "t")]
    assert "pending/t.sh" in report.faults[0].detail
    assert state_of(tree, "t") is State.PENDING


def test_a_second_claim_of_one_task_is_found(tree: SpoolTree) -> None:
    publish(tree, "t")
    held = take(tree, "t")
    os.link(held.path, tree.paths.claim("t", new_owner()))
    assert kinds(check(tree)) == [("in_two_states", "t")]


def test_a_copy_is_another_record_and_found(tree: SpoolTree) -> None:
    publish(tree, "t")
    path = tree.find("t").path
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)
    assert kinds(check(tree)) == [("identity_differs", "t")]


def test_a_name_without_a_record_is_found_and_not_repaired(tree: SpoolTree) -> None:
    publish(tree, "t")
    os.unlink(tree.find("t").path)
    assert kinds(check(tree, repair=True)) == [("record_missing", "t")]


def test_a_missing_name_is_linked_again_by_repair(tree: SpoolTree) -> None:
    publish(tree, "t")
    os.unlink(tree.paths.name("t"))
    assert kinds(check(tree)) == [("name_missing", "t")]
    report = check(tree, repair=True)
    assert report.ok
    assert [fault.kind for fault in report.repaired] == ["name_missing"]
    assert check(tree).ok
    assert os.path.samefile(tree.paths.name("t"), tree.find("t").path)


def test_a_missing_name_of_a_running_task_is_left_to_later(tree: SpoolTree) -> None:
    publish(tree, "t")
    take(tree, "t")
    os.unlink(tree.paths.name("t"))
    assert kinds(check(tree, repair=True)) == [("name_missing", "t")]


def test_an_enqueue_that_was_cut_short_is_noticed_and_completed(
    any_tree: SpoolTree,  # noqa: F811
) -> None:
    cut_short(any_tree, "t")
    report = check(any_tree)
    assert report.ok
    assert noticed(report) == [("unpublished", "t")]
    repaired = check(any_tree, repair=True)
    assert [notice.kind for notice in repaired.repaired] == ["unpublished"]
    assert state_of(any_tree, "t") is State.PENDING
    assert check(any_tree).notices == []


def test_a_record_that_lost_its_name_is_noticed_and_removed(tree: SpoolTree) -> None:
    publish(tree, "t")
    other = tree.paths.temporary("0" * 12)
    shutil.copy2(tree.find("t").path, other)
    data = Path(other).read_bytes()
    own_id = tree.read(other).id.encode()
    Path(other).write_bytes(data.replace(own_id, b"0" * 12))
    assert noticed(check(tree)) == [("lost_temporary", "t")]
    check(tree, repair=True)
    assert not os.path.exists(other)
    assert state_of(tree, "t") is State.PENDING


def test_a_record_that_took_no_name_is_noticed_and_kept(tree: SpoolTree) -> None:
    path = tree.paths.temporary("0" * 12)
    publish(tree, "t")
    shutil.move(tree.find("t").path, path)
    os.unlink(tree.paths.name("t"))
    assert noticed(check(tree, repair=True)) == [("unnamed_temporary", "0" * 12)]
    assert os.path.exists(path)


def test_garbage_is_found_wherever_it_lies(tree: SpoolTree) -> None:
    publish(tree, "t")
    publish(tree, "u")
    Path(tree.find("t").path).write_bytes(b"garbage")
    os.chmod(tree.find("u").path, 0o666)
    Path(tree.paths.temporary("x")).write_bytes(b"garbage")
    report = check(tree)
    assert ("unreadable_record", "t") in kinds(report)
    assert ("unreadable_record", "u") in kinds(report)
    assert ("bad_temporary", "x") in noticed(report)


def test_a_record_under_another_name_is_found(tree: SpoolTree) -> None:
    publish(tree, "t")
    os.rename(tree.find("t").path, tree.paths.pending_record("u", Lane.PLAIN))
    assert sorted(kinds(check(tree))) == [
        ("name_missing", "u"), ("record_missing", "t"), ("wrong_name", "u"),
    ]  # fmt: skip


def test_a_log_without_a_task_is_found_and_an_orphan_of_a_task_is_not(tree: SpoolTree) -> None:
    publish(tree, "t")
    for log in ("t.1.log", "t.2.log", "gone.1.log"):
        (Path(tree.paths.logs) / log).touch()
    assert kinds(check(tree)) == [("log_without_task", "gone")]


@pytest.mark.parametrize(
    ("attempts", "outcomes", "found"),
    [
        ([1, 2], ["failed", "completed"], []),
        ([2, 1], ["failed", "failed"], ["attempts_disordered"]),
        ([1, 1], ["failed", "failed"], ["attempts_disordered"]),
        ([1, 2], ["completed", "failed"], ["ran_after_completion"]),
        ([1, 0], ["completed", "lost"], []),
    ],
)
def test_a_history_that_cannot_be_is_found(
    tree: SpoolTree, attempts: list[int], outcomes: list[str], found: list[str]
) -> None:
    publish(tree, "t")
    with open(tree.find("t").path, "ab") as file:
        for number, (attempt, outcome) in enumerate(zip(attempts, outcomes, strict=True)):
            file.write(
                write_history(
                    HistoryLine(
                        claim=f"c-{number}", outcome=Outcome(outcome), to="pending", attempt=attempt
                    )
                )
            )
    assert [kind for kind, _ in kinds(check(tree))] == found


def test_a_torn_history_line_is_a_notice(tree: SpoolTree) -> None:
    publish(tree, "t")
    with open(tree.find("t").path, "ab") as file:
        file.write(b'#FLEET-RUN {"claim":"c-1","outc')
    report = check(tree)
    assert report.ok
    assert noticed(report) == [("damaged_history", "t")]


def test_a_journal_may_lack_its_last_line_and_no_other(tree: SpoolTree) -> None:
    journal = Path(tree.paths.journal("1.0.abc"))
    journal.write_bytes(b'{"event":"a"}\n{"event":')
    assert check(tree).ok
    journal.write_bytes(b'{"event":\n{"event":"a"}\n{"ev')
    assert kinds(check(tree)) == [("damaged_journal", "1.0.abc.jsonl")]


def test_a_task_that_moves_between_the_scans_is_no_fault(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tree, "t")
    os.link(tree.find("t").path, tree.paths.finished_record("t", State.DONE))
    listings = 0
    real = tree.fs.scan

    def scan(path: str) -> Iterator[list[str]]:
        nonlocal listings
        listings += path == tree.paths.waiting
        if listings == 2 and os.path.exists(tree.paths.pending_record("t", Lane.PLAIN)):
            os.unlink(tree.paths.pending_record("t", Lane.PLAIN))
        return real(path)

    monkeypatch.setattr(tree.fs, "scan", scan)
    assert check(tree).ok
    assert listings == 2


def test_a_damaged_identity_folder_is_found(any_tree: SpoolTree) -> None:  # noqa: F811
    from fleetcraft.spool.enqueue import enqueue

    enqueue(any_tree, spec("t"))
    name = any_tree.paths.name("t")
    if os.path.isfile(name):
        os.unlink(name)
        os.mkdir(name)
    else:
        shutil.rmtree(name)
        os.mkdir(name)
    assert kinds(check(any_tree)) == [("identity_differs", "t")]


def test_the_probe_of_an_init_that_was_cut_short_is_no_fault(tree: SpoolTree) -> None:
    for folder in (tree.paths.names, tree.paths.pending, tree.paths.done):
        tree.fs.create(f"{folder}/.probe-0123456789ab", b"probe\n")
    report = check(tree)
    assert report.ok
    assert report.tasks == 0


def test_a_large_spool_is_examined_in_parts_and_each_fault_is_told_once(
    tree: SpoolTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        publish(tree, f"t{n}")
    os.link(tree.find("t3").path, tree.paths.finished_record("t3", State.DONE))
    os.unlink(tree.paths.name("t11"))
    Path(tree.paths.done, "stray").touch()
    whole = check(tree)
    monkeypatch.setattr(examination, "_AT_A_TIME", 6)
    parts = check(tree)
    assert sorted(kinds(parts)) == sorted(kinds(whole))
    assert (parts.tasks, len(whole.faults)) == (whole.tasks, 3)
