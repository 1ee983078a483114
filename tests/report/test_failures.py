"""Attempts that did not complete, grouped, with the ends of their logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.report.failures import Ended, group_failures, read_tail
from fleetcraft.report.task_records import Attempt


def ended(number: int, *, reason: str = "", log: str = "", outcome: str = "failed") -> Ended:
    attempt = Attempt(
        task=f"gen-{number}",
        attempt=1,
        outcome=outcome,
        exit_code=1,
        host=f"node-{number % 7}",
        ended_at=f"2026-11-30T00:00:{number % 60:02d}Z",
        log=log,
    )
    return Ended(attempt=attempt, reason=reason)


def test_reasons_that_differ_in_their_numbers_alone_are_one_group() -> None:
    all_of_them = [ended(n, reason=f"output clip-{n}.mp4 is {n * 7} bytes") for n in range(9)]

    (group,), left_out, _ = group_failures(all_of_them, {"gen-1", "other"}, limit=5)

    assert (group.attempts, group.tasks, group.failed_tasks, left_out) == (9, 9, 1, 0)
    assert group.example.task == "gen-8"
    assert sum(group.hosts.values()) == 7
    assert group.other_hosts == 2


def test_without_a_reason_the_log_gives_one_and_is_marked_as_its_source(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("step 1\nTraceback (most recent call last):\nValueError: nan\ncleaning up\n")

    (group,), _, _ = group_failures([ended(1, log=str(log))], (), limit=5)

    assert (group.reason, group.from_log) == ("ValueError: nan", True)
    assert group.log_tail.endswith("cleaning up")


def test_groups_whose_tasks_failed_for_good_come_first_and_the_rest_is_counted() -> None:
    many = [ended(n, reason="came and went") for n in range(20)]
    one = ended(99, reason="stayed")

    groups, left_out, _ = group_failures([*many, one], {"gen-99"}, limit=1)

    assert [group.reason for group in groups] == ["stayed"]
    assert left_out == 1


def test_at_most_so_many_logs_are_read_for_reasons_the_newest_first(tmp_path: Path) -> None:
    logs = []
    for number in range(6):
        path = tmp_path / f"{number}.log"
        path.write_text(f"error: number {chr(97 + number)}\n")
        logs.append(ended(number, log=str(path)))

    groups, _, not_read = group_failures(logs, (), limit=9, read_logs=2)

    assert not_read == 4
    reasons = {group.reason: group.attempts for group in groups}
    assert reasons == {
        "error: number f": 1,
        "error: number e": 1,
        "its log was not read": 4,
    }


def test_only_the_end_of_a_large_log_is_read_and_long_lines_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * 5_000_000 + b"\n" + b"y" * 3000 + b"\nlast \xff word\r")

    tail, problem = read_tail(str(path))

    assert problem == ""
    assert len(tail) < 1000
    assert tail.endswith("last \\xff word")


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "missing"])
def test_what_is_no_regular_log_is_not_read_and_says_why(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "folder":
        path.mkdir()

    tail, problem = read_tail(str(path))

    assert tail == ""
    assert problem.startswith("the log ")
