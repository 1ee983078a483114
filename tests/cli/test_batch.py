"""``fleetcraft enqueue`` of many tasks: JSON Lines, a table, lines on stdin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Fleet


def jsonl(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def command_of(fleet: Fleet, name: str) -> str:
    return str(fleet.ok("show", name, "--json").json["command"])


def test_objects_with_directives_become_tasks(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "my tasks.jsonl").write_bytes(
        jsonl(
            {"name": "a", "command": "echo 'a b'\necho ☃", "timeout": "00:10:00", "retries": 2},
            {"name": "b", "command": "true", "after": ["a"], "outputs": "o.txt", "lane": "first"},
        )
    )
    value = fleet.ok("enqueue", "--from", "my tasks.jsonl", "--json").json
    assert value["schema"] == "fleetcraft.enqueue_batch/1"
    assert (value["enqueued"], value["completed"], value["already_there"]) == (2, 0, 0)
    assert (value["names"], value["names_left_out"]) == (["a", "b"], 0)
    assert command_of(fleet, "a") == "echo 'a b'\necho ☃"
    assert fleet.ok("show", "b", "--json").json["directives"]["outputs"] == ["o.txt"]
    assert (fleet.state("a"), fleet.state("b")) == ("pending", "waiting")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": "b", "command": "true", "timout": "00:10:00"}, "timout"),
        ({"name": "b"}, "the object has no 'command'"),
        ({"command": "true"}, "the object has no 'name'"),
        ({"name": "b", "command": "true", "time": "10"}, "not a usable duration"),
        ({"name": "b", "command": "true", "retries": "two"}, "retries"),
        ({"name": "b", "command": "true", "lane": "middle"}, "unknown lane 'middle'"),
        (["b", "true"], "object"),
    ],
)
def test_a_row_that_is_no_task_is_named_by_its_line(
    fleet: Fleet, row: object, message: str
) -> None:
    data = jsonl({"name": "a", "command": "true"}) + b"\n" + jsonl(row)
    called = fleet("enqueue", "--from", "-", "--format", "jsonl", stdin=data)
    assert called.code == 2
    assert "line 3" in called.err
    assert message in called.err
    assert fleet.names() == []


def test_broken_json_is_named_by_its_line(fleet: Fleet) -> None:
    called = fleet("enqueue", "--from", "-", "--format", "jsonl", stdin=b'{"name": "a"\n')
    assert (called.code, "line 1" in called.err) == (2, True)


@pytest.mark.parametrize(
    "row",
    [
        {"name": "b c", "command": "true"},
        {"name": "b", "command": ""},
        {"name": "a", "command": "x"},
    ],
)
def test_one_bad_task_keeps_the_whole_batch_out(fleet: Fleet, row: object) -> None:
    data = jsonl({"name": "a", "command": "true"}, row)
    called = fleet("enqueue", "--from", "-", "--format", "jsonl", stdin=data)
    assert (called.code, fleet.names()) == (2, [])
    assert list((fleet.spool / "tmp").iterdir()) == []


def test_a_table_fills_the_templates(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_bytes(
        b'\xef\xbb\xbfseed,prompt,scale\r\n7,"it\'s a; cat",0.50\r\n12,"two\nlines",1\r\n'
    )
    template = "python gen.py --seed {seed} --prompt {prompt} --scale {scale:.1f} ${{HOME}} # {n}"
    called = fleet.ok(
        "enqueue", "--from", "sweep.csv", "--name", "gen-{seed:05d}", "--outputs", "{seed}.mp4",
        template,
    )  # fmt: skip
    assert called.out == "enqueued: 2 tasks (gen-00007, gen-00012)\n"
    expected = """python gen.py --seed 7 --prompt 'it'"'"'s a; cat' --scale 0.5 ${HOME} # 1"""
    assert command_of(fleet, "gen-00007") == expected
    assert "--prompt 'two\nlines'" in command_of(fleet, "gen-00012")
    assert fleet.ok("show", "gen-00012", "--json").json["directives"]["outputs"] == ["12.mp4"]


@pytest.mark.parametrize(
    ("table", "name", "command", "message"),
    [
        ("seed\n1\n", "g-{sead}", "true", "asks for {sead}, which no column has"),
        ("seed\n1\n", "g-{seed}", "echo {seed.__class__}", "no column has"),
        ("seed\n1\n", "g-{seed}", "echo {seed", "cannot fill the template"),
        ("seed\nx\n", "g-{seed:05d}", "true", "cannot fill the template"),
        ("seed\n1,2\n", "g-{seed}", "true", "line 2 of the table"),
        ("", "g-{seed}", "true", "no header line"),
        ("seed\n", "g-{seed}", "true", "the input holds no task"),
        ("seed\n1\n1\n", "g-{seed}", "true", "two tasks of this batch are called 'g-1'"),
        ("seed\n1\n", "g {seed}", "true", "bad task name 'g 1'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    fleet: Fleet, table: str, name: str, command: str, message: str
) -> None:
    words = ["enqueue", "--from", "-", "--format", "csv", "-n", name, command]
    for dry in ([], ["--dry-run"]):
        called = fleet(*words, *dry, stdin=table.encode())
        assert (called.code, fleet.names()) == (2, [])
        assert message in called.err


def test_lines_of_stdin_are_commands(fleet: Fleet) -> None:
    data = b"echo 'one' {not a field}\n\n  echo two\r\n-x\n"
    called = fleet.ok("enqueue", "--stdin", "--name", "t-{n:06d}", stdin=data)
    assert called.out == "enqueued: 3 tasks (t-000001, t-000002, t-000003)\n"
    assert command_of(fleet, "t-000001") == "echo 'one' {not a field}"
    assert command_of(fleet, "t-000002") == "  echo two"
    assert command_of(fleet, "t-000003") == "-x"


def test_directives_of_options_hold_for_every_row(fleet: Fleet) -> None:
    fleet.ok("enqueue", "--stdin", "-n", "t-{n}", "--retries", "3", stdin=b"true\nfalse\n")
    for name in ("t-1", "t-2"):
        assert fleet.ok("show", name, "--json").json["directives"]["retries"] == 3


def test_bytes_that_are_no_text_reach_the_record_unchanged(fleet: Fleet) -> None:
    fleet.ok("enqueue", "--stdin", "-n", "t-{n}", stdin=b"echo \xff\xfe\n")
    assert b"\necho \xff\xfe\nexit\n" in (fleet.spool / "pending/t-1.sh").read_bytes()


def test_a_long_command_comes_through_every_way_in(fleet: Fleet) -> None:
    long = "true " + "x" * (200 << 10)
    fleet.ok("enqueue", "--stdin", "-n", "s-{n}", stdin=long.encode())
    fleet.ok(
        "enqueue", "--from", "-", "--format", "jsonl",
        stdin=jsonl({"name": "j", "command": long}),
    )  # fmt: skip
    assert command_of(fleet, "s-1") == long
    assert command_of(fleet, "j") == long


def test_the_same_batch_again_is_refused_or_accepted(fleet: Fleet) -> None:
    words = ("enqueue", "--stdin", "-n", "t-{n}")
    fleet.ok(*words, stdin=b"true\n")
    assert fleet(*words, stdin=b"true\nfalse\n").code == 5
    assert fleet.names() == ["t-1"]
    value = fleet.ok(*words, "--if-absent", "--json", stdin=b"true\nfalse\n").json
    assert (value["enqueued"], value["already_there"]) == (1, 1)
    called = fleet.ok(*words, "--if-absent", stdin=b"true\nfalse\n")
    assert called.out.endswith("already there: 2 tasks\n")


def test_a_cycle_inside_a_batch_is_refused(fleet: Fleet) -> None:
    data = jsonl(
        {"name": "a", "command": "true", "after": "b"},
        {"name": "b", "command": "true", "after": "a"},
    )
    called = fleet("enqueue", "--from", "-", "--format", "jsonl", stdin=data)
    assert (called.code, fleet.names()) == (2, [])
    assert "wait for one another" in called.err


def test_a_dry_run_shows_the_first_tasks_and_how_many_more(fleet: Fleet) -> None:
    words = ("enqueue", "--stdin", "-n", "t-{n:02d}", "--after", "x", "--dry-run")
    data = b"".join(b"echo %d\n" % n for n in range(13))
    called = fleet.ok(*words, stdin=data)
    lines = called.out.splitlines()
    assert lines[0] == f"would enqueue 13 tasks in {fleet.spool}:"
    assert lines[1] == "  t-01: echo 0  (after x)"
    assert lines[-1] == "  ... and 3 more"
    assert called.err == "nothing was enqueued (--dry-run)\n"
    value = fleet.ok(*words, "--json", stdin=data).json
    assert (value["would_enqueue"], len(value["names"]), value["names_left_out"]) == (13, 10, 3)
    assert fleet.names() == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "/no/such.jsonl"], "cannot read /no/such.jsonl: No such file"),
        (["--from", "/tmp", "--format", "csv", "-n", "a", "true"], "cannot read /tmp"),
        (["--from", "tasks.txt"], "cannot tell what 'tasks.txt' holds"),
        (["--from", "-"], "cannot tell what '-' holds"),
        (["--stdin"], "no name template was given"),
        (["--stdin", "-n", "a", "true"], "a command was given"),
        (["--stdin", "-n", "a"], "the input holds no task"),
        (["--stdin", "--from", "x.csv", "-n", "a", "true"], "name two inputs"),
        (["--from", "-", "--format", "csv", "-n", "a"], "a table needs a command template"),
    ],
)
def test_a_batch_with_wrong_words_is_a_usage_error(
    fleet: Fleet, words: list[str], message: str
) -> None:
    called = fleet("enqueue", *words)
    assert called.code == 2
    assert message in called.err
