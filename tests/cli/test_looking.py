"""``fleetcraft status``, ``show`` and ``logs``."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Fleet, environment

Put = Callable[..., None]


@pytest.fixture
def mixed(fleet: Fleet, put: Put) -> Fleet:
    """Tasks that completed, failed, were cancelled, wait and are pending."""
    put("good", "echo fine")
    put("bad", "echo oops; exit 3", "--retries", "1")
    put("never", "true")
    put("blocked", "true", "--after", "bad")
    put("orphan", "true", "--after", "nobody")
    put("file", "true", "--after-file", "ready.txt")
    fleet.ok("cancel", "never")
    assert fleet("run", "--json").code == 1
    put("later", "true", "--lane", "last")
    return fleet


def test_status_counts_and_names_what_needs_attention(mixed: Fleet) -> None:
    value = mixed.ok("status", "--json").json
    assert value["schema"] == "fleetcraft.status/1"
    assert value["counts"] == {"waiting": 3, "pending": 1, "running": 0, "done": 1, "failed": 2}
    assert value["lanes"] == {"first": 0, "plain": 0, "last": 1}
    failed = {item["name"]: item for item in value["failed"]}
    assert failed["bad"]["outcome"] == "failed"
    assert (failed["bad"]["attempt"], failed["bad"]["exit_code"]) == (2, 3)
    assert Path(failed["bad"]["log"]).read_text() == "oops\n"
    assert failed["never"]["outcome"] == "cancelled"
    assert failed["never"]["reason"] == "cancelled before it ran"
    blocked = {item["name"]: item for item in value["blocked"]}
    assert blocked["blocked"] == {"name": "blocked", "blocker": "bad", "blocker_state": "failed"}
    assert blocked["orphan"]["blocker_state"] == "missing"
    assert blocked["file"]["blocker_state"] == "file"


def test_status_says_the_same_for_people(mixed: Fleet) -> None:
    out = mixed.ok("status").out
    assert "waiting 3   pending 1   running 0   done 1   failed 2   (of pending: 1 last)" in out
    assert "  bad    attempt 2  failed, exit code 3" in out
    assert "  never  never ran  cancelled: cancelled before it ran" in out
    assert "  blocked  waits for bad (failed)" in out
    assert "  orphan   waits for nobody (nobody enqueued it)" in out
    assert "(no such file)" in out
    assert "\x1b" not in out


def test_lists_of_status_are_bounded_and_say_by_how_much(mixed: Fleet) -> None:
    value = mixed.ok("status", "--json", "--limit", "1").json
    assert (len(value["failed"]), value["failed_left_out"]) == (1, 1)
    assert (len(value["blocked"]), value["blocked_left_out"]) == (1, 2)
    out = mixed.ok("status", "--limit", "1").out
    assert "  ... and 1 more" in out
    assert "  ... and 2 more" in out


def test_status_names_markers_and_who_wrote_them(fleet: Fleet) -> None:
    fleet.ok("drain", "--reason", "lunch")
    (fleet.spool / "STOP").write_text("by hand\x1b[31m\n")
    value = fleet.ok("status", "--json").json
    assert value["markers"]["DRAIN"].endswith(": lunch")
    out = fleet.ok("status").out
    assert "STOP written by hand: by hand\\x1b[31m" in out


def test_status_reports_a_cycle(fleet: Fleet, put: Put) -> None:
    put("a", "true", "--after", "b-*")
    put("c", "true", "--after", "a")
    # A long way round is not seen at enqueue; here the record is staged by hand.
    put("b-1", "true", "--after", "zzz")
    record = fleet.spool / "waiting/b-1.sh"
    record.write_text(record.read_text().replace("after: zzz", "after: c"))
    value = fleet.ok("status", "--json").json
    assert sorted(value["cycles"][0]) == ["a", "b-1", "c"]
    assert "these wait for one another" in fleet.ok("status").out


def test_status_shows_workers_and_what_runs(fleet: Fleet, put: Put) -> None:
    put("long", "sleep 60")
    with subprocess.Popen(
        fleet.command("worker", "--idle", "60"), env=environment(), stderr=subprocess.DEVNULL
    ) as process:
        try:
            await_state(fleet, "long", "running")
            value = fleet.ok("status", "--json").json
            text = fleet.ok("status").out
            shown = fleet.ok("show", "long", "--json").json
        finally:
            process.terminate()
    (worker,) = value["workers"]
    assert (worker["state"], worker["pid"], worker["slots"]) == ("alive", process.pid, 1)
    (running,) = value["running"]
    assert (running["name"], running["host"]) == ("long", worker["host"])
    assert running["claimed_at"].endswith("Z")
    assert "alive" in text
    assert "  long  " in text
    (attempt,) = shown["attempts"]
    assert (attempt["attempt"], attempt["outcome"], attempt["wall_s"]) == (1, None, None)
    assert shown["owner"] == running["owner"]
    assert fleet.state("long") == "pending"


def await_state(fleet: Fleet, name: str, state: str) -> None:
    deadline = time.monotonic() + 30
    while fleet.state(name) != state:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_status_with_watch_prints_again_and_again(fleet: Fleet) -> None:
    with subprocess.Popen(
        fleet.command("status", "--watch", "0.5", "--json"),
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        values = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.kill()
    assert [value["schema"] for value in values] == ["fleetcraft.status/1"] * 2


def test_show_tells_every_attempt(mixed: Fleet) -> None:
    value = mixed.ok("show", "bad", "--json").json
    assert {"name", "state", "command", "attempts"} <= set(value)
    assert (value["name"], value["state"]) == ("bad", "failed")
    first, second = value["attempts"]
    for attempt, number, to in ((first, 1, "pending"), (second, 2, "failed")):
        keys = {"attempt", "outcome", "exit_code", "host", "started_at", "wall_s", "log"}
        assert keys <= set(attempt)
        assert (attempt["attempt"], attempt["outcome"], attempt["exit_code"]) == (
            number, "failed", 3,
        )  # fmt: skip
        assert attempt["to"] == to
        assert attempt["started_at"] < attempt["ended_at"]
        assert Path(attempt["log"]).is_absolute()
    text = mixed.ok("show", "bad").out
    assert text.startswith("bad  failed\n")
    assert "  1  failed, exit code 3" in text
    assert f"  2: log {second['log']}" in text


def test_show_tells_why_a_task_ended_before_it_ran(mixed: Fleet) -> None:
    value = mixed.ok("show", "never", "--json").json
    assert value["attempts"] == []
    (line,) = value["ended_before_start"]
    assert (line["outcome"], line["reason"]) == ("cancelled", "cancelled before it ran")
    assert "cancelled before it ran" in mixed.ok("show", "never").out


def test_show_says_whom_a_task_waits_for(mixed: Fleet) -> None:
    value = mixed.ok("show", "blocked", "--json").json
    assert value["waits_for"] == {"blocker": "bad", "blocker_state": "failed"}


def test_show_prints_the_record_as_it_is(fleet: Fleet, put: Put) -> None:
    put("a", "echo hi")
    assert fleet.ok("show", "a", "--record").out == fleet.record("a")
    assert fleet.ok("show", "a", "--record", "--json").json["text"] == fleet.record("a")


def test_a_record_that_cannot_be_parsed_is_exit_7_but_can_be_printed(
    fleet: Fleet, put: Put
) -> None:
    put("a", "echo hi")
    record = fleet.spool / "pending/a.sh"
    record.write_text(record.read_text().replace("#FLEET name", "#FLEET nmae"))
    error = fleet("show", "a", "--json").error
    assert (error["type"], error["exit_code"]) == ("DataError", 7)
    assert "unknown directive 'nmae'" in error["message"]
    assert "nmae" in fleet.ok("show", "a", "--record").out


def test_an_unknown_task_is_answered_with_a_near_name(fleet: Fleet, put: Put) -> None:
    put("gen-00017")
    for verb in ("show", "logs", "cancel", "retry"):
        error = fleet(verb, "gen-0017", "--json").error
        assert error["exit_code"] == 5
        assert "no task named 'gen-0017'" in error["message"]
        assert error["hint"] == "did you mean gen-00017?"


def test_logs_prints_the_last_attempt_or_the_one_asked_for(fleet: Fleet, put: Put) -> None:
    put("a", "echo attempt $FLEET_ATTEMPT; exit 1", "--retries", "1")
    fleet("run")
    assert fleet.ok("logs", "a").out == "attempt 2\n"
    assert fleet.ok("logs", "a", "--attempt", "1").out == "attempt 1\n"
    value = fleet.ok("logs", "a", "--json").json
    assert (value["attempt"], value["text"], value["left_out_bytes"]) == (2, "attempt 2\n", 0)
    error = fleet("logs", "a", "--attempt", "3", "--json").error
    assert error["message"] == "task 'a' has no log of attempt 3"
    assert error["hint"] == "attempts with a log: 1, 2"


def test_a_task_without_a_log_yet_is_exit_1(fleet: Fleet, put: Put) -> None:
    put("a")
    called = fleet("logs", "a")
    assert (called.code, called.out) == (1, "")
    assert "has no log yet: it is pending" in called.err
    error = fleet("logs", "a", "--json").error
    assert error["facts"] == {"name": "a", "state": "pending"}
    assert error["hint"].endswith("logs -f a")


@pytest.mark.timeout(30)
def test_following_a_log_that_will_never_be_is_no_success(fleet: Fleet, put: Put) -> None:
    put("never", "true")
    fleet.ok("cancel", "never")
    put("ran", "echo hello")
    fleet.ok("run")
    plain, followed = fleet("logs", "never"), fleet("logs", "never", "-f")
    assert (plain.code, followed.code) == (1, 1)
    assert "has no log: it is failed" in plain.err
    assert "logs -f" not in plain.err
    assert followed.err == plain.err
    assert fleet("logs", "ran", "-f", "--attempt", "5").code == 5
    assert fleet.ok("logs", "ran", "-f").out == "hello\n"


@pytest.fixture
def written(fleet: Fleet, put: Put) -> Callable[[bytes], Path]:
    """A log with this content."""
    put("a")
    fleet.ok("run")
    path = fleet.spool / "logs/a.1.log"

    def write(content: bytes) -> Path:
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize(
    ("content", "tail", "expected"),
    [
        (b"1\n2\n3\n", 2, b"2\n3\n"),
        (b"1\n2\n3", 2, b"2\n3"),
        (b"1\n2\n3\n", 5, b"1\n2\n3\n"),
        (b"1\n2\n3\n", 0, b""),
        (b"1\n2\n3", 0, b""),
        (b"\n\n\n", 1, b"\n"),
        (b"", 3, b""),
        (b"x" * 200_000 + b"\nlast\n", 1, b"last\n"),
        (b"x" * 200_000 + b"\nlast\n", 2, b"x" * 200_000 + b"\nlast\n"),
        (b"line\n" * 100_000, 20_000, b"line\n" * 20_000),
    ],
)
def test_the_tail_of_a_log_is_so_many_lines(
    fleet: Fleet, written: Callable[[bytes], Path], content: bytes, tail: int, expected: bytes
) -> None:
    written(content)
    assert fleet.ok("logs", "a", "--tail", str(tail)).out.encode() == expected


def test_a_long_log_is_cut_and_stderr_says_by_how_much(
    fleet: Fleet, written: Callable[[bytes], Path]
) -> None:
    path = written(b"line\n" * 12_000)
    called = fleet.ok("logs", "a")
    assert called.out == "line\n" * 10_000
    assert called.err.startswith(f"left out: the first 10000 bytes of {path}")
    assert fleet.ok("logs", "a", "--all").out == "line\n" * 12_000


def test_a_log_of_one_endless_line_is_bounded_in_bytes(
    fleet: Fleet, written: Callable[[bytes], Path]
) -> None:
    path = written(b"")
    with open(path, "r+b") as file:
        file.truncate(1 << 30)  # sparse: a gigabyte that takes no room
    called = fleet.ok("logs", "a")
    assert len(called.out) == 16 << 20
    assert f"the first {(1 << 30) - (16 << 20)} bytes" in called.err


def test_bytes_of_a_log_pass_unchanged_where_there_is_no_terminal(
    fleet: Fleet, written: Callable[[bytes], Path]
) -> None:
    content = b"\x1b[31mred\x1b[0m\r\n\xff\xfe\x00\n"
    written(content)
    done = subprocess.run(
        fleet.command("logs", "a"), env=environment(), capture_output=True, check=True
    )
    assert done.stdout == content


def test_escapes_of_a_log_are_spelled_out_on_a_terminal(
    fleet: Fleet, written: Callable[[bytes], Path]
) -> None:
    written(b"\x1b]0;title\x07\x1b[31mred\x1b[0m 50%\r100%\r\n caf\xc3\xa9 \xc2\x9b31m \xff\n")
    shown = on_a_terminal(fleet, "logs", "a")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown
    assert "\\x1b]0;title\\x07\\x1b[31mred" in shown
    assert "50%\r\n100%\r\n" in shown
    assert "café \\x9b31m \\xff" in shown


def test_colour_is_only_for_terminals_that_want_it(fleet: Fleet, put: Put) -> None:
    put("a", "false")
    fleet("run")
    assert "\x1b[31m1\x1b[0m" in on_a_terminal(fleet, "status")
    assert "\x1b" not in on_a_terminal(fleet, "status", NO_COLOR="1")
    assert "\x1b" not in on_a_terminal(fleet, "status", TERM="dumb")


def on_a_terminal(fleet: Fleet, *words: str, **extra: str) -> str:
    """What a terminal is sent."""
    ours, theirs = os.openpty()
    try:
        variables = {"TERM": "xterm", "COLUMNS": "100", **extra}
        done = subprocess.Popen(
            fleet.command(*words), env=environment(**variables), stdin=theirs, stdout=theirs
        )
        os.close(theirs)
        chunks = []
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
        assert done.wait(30) == 0
        return b"".join(chunks).decode()
    finally:
        os.close(ours)


def test_following_a_log_goes_on_until_the_task_has_ended(fleet: Fleet, put: Put) -> None:
    wait = "until [ -e go ]; do sleep 0.05; done"
    put("a", f"echo attempt $FLEET_ATTEMPT; {wait}; echo end; exit 1", "--retries", "1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen(fleet.command("logs", "a", "-f"), env=environment(), **pipes) as logs,
        subprocess.Popen(fleet.command("run"), env=environment(), **pipes) as run,
    ):
        assert logs.stdout is not None
        assert logs.stdout.readline() == "attempt 1\n"
        (fleet.root.parent / "go").touch()
        out, err = logs.communicate(timeout=30)
        run.communicate(timeout=30)
    assert (logs.returncode, run.returncode) == (0, 1)
    assert out == "end\nattempt 2\nend\n"
    assert err == "--- attempt 2 ---\n"


def test_following_one_attempt_ends_with_it(fleet: Fleet, put: Put) -> None:
    put("a", "echo attempt $FLEET_ATTEMPT; exit 1", "--retries", "1")
    fleet("run")
    assert fleet.ok("logs", "a", "-f", "--attempt", "1").out == "attempt 1\n"
    lines = fleet.ok("logs", "a", "-f", "--attempt", "1", "--json").out.splitlines()
    (chunk,) = [json.loads(line) for line in lines]
    assert (chunk["attempt"], chunk["text"]) == (1, "attempt 1\n")
