"""Many tasks from a table, lines or JSON: what a value becomes in a command, a name and a task."""

from __future__ import annotations

import csv
import io
import json
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.errors import UsageError
from fleetcraft.layout import Lane
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.sweep import expand, from_csv, from_jsonl, from_lines, read_lane

BASE = TaskSpec(name="base", command="", project_dir="/p", retries=2)
values = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        st.sampled_from("'\"\\`$!*?[]{}()<>|&;#~ \t\n"),
    ),
    max_size=20,
)


def table(*rows: list[str]) -> io.StringIO:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return io.StringIO(text.getvalue(), newline="")


def argv_of(command: str) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    return done.stdout.decode().split("\0")[:-1]


@given(values, values)
@example("$(exit 3)", "'; exit 3; '")
@example("", "-n")
def test_a_value_is_one_argument_of_the_command_whatever_it_holds(one: str, two: str) -> None:
    rows = table(["one", "two"], [one, two])
    tasks = list(from_csv(rows, name="t-{n}", command=r"printf '%s\0' {one} x{two}y", base=BASE))
    assert argv_of(tasks[0].command) == [one, f"x{two}y"]


@given(values)
def test_a_json_value_is_one_argument_of_the_command_whatever_it_holds(value: str) -> None:
    line = json.dumps({"v": value}).encode()
    task = next(from_jsonl([line], name="t-{n}", command=r"printf '%s\0' {v}", base=BASE))
    assert argv_of(task.command) == [value]


def test_numbers_are_numbers_for_a_format_code_and_text_without_one() -> None:
    rows = table(["seed", "rate"], ["17", "0.50"])
    task = next(
        from_csv(rows, name="gen-{seed:05d}", command="run {seed} {rate} {rate:.3f}", base=BASE)
    )
    assert task.name == "gen-00017"
    assert task.command == "run 17 0.50 0.500"


def test_everything_but_the_command_is_filled_raw() -> None:
    base = TaskSpec(
        name="b", command="", after=("enc-{k}",), outputs=("out/{k} x",), family="f-{k}"
    )
    task = next(from_csv(table(["k"], ["a b"]), name="t{n}", command="run {k}", base=base))
    assert task.after == ("enc-a b",)
    assert task.outputs == ("out/a b x",)
    assert task.family == "f-a b"
    assert task.command == "run 'a b'"


def test_rows_are_counted_and_other_directives_come_from_the_base() -> None:
    tasks = list(from_csv(table(["a"], ["x"], ["y"]), name="t{n}", command="run {a}", base=BASE))
    assert [(task.name, task.retries, task.project_dir) for task in tasks] == [
        ("t1", 2, "/p"), ("t2", 2, "/p"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "no header"),
        ([["a", " "], ["1", "2"]], "without a name"),
        ([["a", "b"], ["1"]], "another number of values"),
        ([["a"], ["1", "2"]], "another number of values"),
    ],
)
def test_a_table_that_is_none_is_refused_with_its_line(rows: list[list[str]], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        list(from_csv(table(*rows), name="t{n}", command="run", base=BASE))


@pytest.mark.parametrize(
    "template", ["{missing}", "{a.__class__}", "{a[0]}", "{", "{a:q}", "{a!r:05d}", "{}"]
)
def test_a_template_that_does_not_fit_is_refused(template: str) -> None:
    with pytest.raises(UsageError):
        expand(template, {"a": "text"}, quote=False)


def test_doubled_braces_are_literal() -> None:
    assert expand("{{{a}}}", {"a": "x y"}, quote=True) == "{'x y'}"


def test_lines_are_commands_as_they_stand_and_empty_ones_are_passed_over() -> None:
    tasks = list(from_lines(["echo {x}\r\n", "\n", "  \n", "true"], name="l-{n}", base=BASE))
    assert [(task.name, task.command) for task in tasks] == [("l-1", "echo {x}"), ("l-2", "true")]


def test_a_json_object_sets_directives_by_their_record_names() -> None:
    line = (
        b'{"name":"a","command":"echo hi","after":["b","c-*"],"after-file":"f",'
        b'"timeout":"00:10:00","lane":"first","env-file":"e","timed":true,"retries":4,"outputs":["o"]}'
    )
    task = next(from_jsonl([b"\n", line], name=None, command=None, base=BASE))
    assert task == TaskSpec(
        name="a", command="echo hi", project_dir="/p", after=("b", "c-*"), after_files=("f",),
        timeout_s=600, lane=Lane.FIRST, env_file="e", timed=True, retries=4, outputs=("o",),
    )  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"{}", b'{"name":"a"}', b'{"name":"a","command":"c","colour":"red"}',
     b'{"name":"a","command":"c","retries":"x"}', b'{"name":"a","command":"c","timeout":"x"}',
     b'{"name":"a","command":"c","lane":"middle"}', b"\xff"],
)  # fmt: skip
def test_a_line_that_is_no_task_is_refused_with_its_number(line: bytes) -> None:
    with pytest.raises(UsageError, match="line 2"):
        list(from_jsonl([b"\n", line], name=None, command=None, base=BASE))


def test_the_lanes_are_the_ones_there_are() -> None:
    assert [read_lane(text) for text in ("", "first", "last")] == [
        Lane.PLAIN, Lane.FIRST, Lane.LAST,
    ]  # fmt: skip
    with pytest.raises(UsageError):
        read_lane("middle")
