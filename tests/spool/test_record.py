"""A record's text: read back as written whatever the task, never misread whatever the bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetcraft.errors import DataError, UsageError
from fleetcraft.layout import Lane
from fleetcraft.spool.directives import TaskSpec, check_spec
from fleetcraft.spool.record import (
    HISTORY_PREFIX,
    HistoryLine,
    Outcome,
    OutputFact,
    closing_lines,
    compose,
    parse,
    parse_history,
    write_history,
)
from tests.spool.strategies import (
    header_lines,
    history_lines,
    near_records,
    task_specs,
)


@given(task_specs(), st.from_regex(r"[0-9a-f]{12}", fullmatch=True))
def test_a_record_reads_back_as_the_task_that_was_written(spec: TaskSpec, record_id: str) -> None:
    record = parse(compose(spec, record_id))
    assert record.spec == spec
    assert record.id == record_id
    assert record.history == ()


@given(task_specs())
def test_the_identity_does_not_depend_on_the_id(spec: TaskSpec) -> None:
    assert parse(compose(spec, "1" * 12)).identity == parse(compose(spec, "2" * 12)).identity


@given(task_specs(name="t"), task_specs(name="t"))
def test_tasks_that_differ_have_different_identities(one: TaskSpec, other: TaskSpec) -> None:
    same = parse(compose(one, "1" * 12)).identity == parse(compose(other, "1" * 12)).identity
    assert same == (one == other)


@given(task_specs(), st.lists(history_lines(), max_size=6))
def test_history_is_read_back_in_order_and_leaves_the_rest_as_it_was(
    spec: TaskSpec, lines: list[HistoryLine]
) -> None:
    fresh = compose(spec, "1" * 12)
    record = parse(fresh + b"".join(map(write_history, lines)))
    assert record.history == tuple(lines)
    assert record.spec == spec
    assert record.identity == parse(fresh).identity
    assert record.history_offset == len(fresh)
    assert record.next_attempt == max((line.attempt for line in lines), default=0) + 1


@given(task_specs(), history_lines(), history_lines(), st.data())
def test_a_torn_line_loses_itself_and_nothing_else(
    spec: TaskSpec, torn: HistoryLine, whole: HistoryLine, data: st.DataObject
) -> None:
    text = write_history(torn)
    cut = data.draw(st.integers(1, len(text) - 2))
    fresh = compose(spec, "1" * 12)
    record = parse(fresh + text[:cut] + b"\n" + write_history(whole))
    assert record.history == (whole,)
    assert record.damaged == 1
    assert record.identity == parse(fresh).identity
    assert record.spec == spec


@given(near_records())
@example(b"#!\n#FLEET name: t\n#FLEET id: \xff\nexit\n")
@example(b"#!\n#FLEET name: t\n#FLEET id: 1\ncd -- 'open || exit 1\nexit\n")
@example(b"#!\n#FLEET name: t\n#FLEET id: 1\n#FLEET time: " + b"9" * 400 + b"h\nexit\n")
@example(b"#!\n#FLEET name: t\n#FLEET id: 1\n#FLEET time: " + b"9" * 5000 + b":00\nexit\n")
@example(b"#!\n#FLEET name: t\n#FLEET id: 1\n#FLEET retries: " + b"9" * 5000 + b"\nexit\n")
@example(b'#!\n#FLEET name: t\n#FLEET id: 1\nexit\n#FLEET-RUN {"x":' + b"[" * 100_000 + b"\n")
def test_bytes_that_are_no_record_are_refused_by_a_data_error_and_no_other(data: bytes) -> None:
    with contextlib.suppress(DataError):
        assert parse(data).spec.name


@given(st.binary(max_size=200))
def test_arbitrary_bytes_after_the_first_history_line_are_only_counted(data: bytes) -> None:
    lines, damaged = parse_history(HISTORY_PREFIX + data)
    assert len(lines) + damaged == sum(1 for part in (HISTORY_PREFIX + data).split(b"\n") if part)


@given(st.lists(header_lines(), max_size=5))
def test_a_header_is_read_or_refused_by_name(lines: list[str]) -> None:
    text = "\n".join(["#!/bin/bash", "#FLEET name: t", "#FLEET id: 1", *lines, "true", "exit", ""])
    with contextlib.suppress(DataError):
        assert parse(text.encode("utf-8", "surrogateescape")).spec.name == "t"


def test_an_unknown_directive_is_refused_with_a_near_one() -> None:
    with pytest.raises(DataError, match="unknown directive 'retry'") as refused:
        parse(b"#!/bin/bash\n#FLEET name: t\n#FLEET id: 1\n#FLEET retry: 2\ntrue\nexit\n")
    assert refused.value.hint == "did you mean 'retries'?"


@pytest.mark.parametrize("key", ["timed", "id", "name"])
def test_a_directive_that_stands_twice_is_refused(key: str) -> None:
    value = {"timed": "true", "id": "1", "name": "t"}[key]
    header = f"#FLEET name: t\n#FLEET id: 1\n#FLEET timed: true\n#FLEET {key}: {value}"
    with pytest.raises(DataError, match="stands twice"):
        parse(f"#!/bin/bash\n{header}\ntrue\nexit\n".encode())


@pytest.mark.parametrize(
    "spec",
    [
        TaskSpec(name="t", command=""),
        TaskSpec(name="t", command=" \n\t"),
        TaskSpec(name="t", command="a\0b"),
        TaskSpec(name="t", command="echo\n#FLEET-RUN {}"),
        TaskSpec(name="t", command="echo \\"),
        TaskSpec(name="t", command="echo \ud800"),
        TaskSpec(name="t", command="true", project_dir="/a\nb"),
        TaskSpec(name="t", command="true", project_dir="/\ud800"),
        TaskSpec(name="t", command="true", outputs=("a\nb",)),
        TaskSpec(name="t", command="true", outputs=("\udcff",)),
        TaskSpec(name="t", command="true", env_file=" leading"),
        TaskSpec(name="t", command="true", family="two words"),
        TaskSpec(name="t", command="true", retries=-1),
        TaskSpec(name="t", command="true", time_s=0),
        TaskSpec(name="t", command="true", timeout_s=367 * 86400),
        TaskSpec(name="t", command="true", after=("t",)),
        TaskSpec(name="t", command="true", after=("no/path",)),
    ],
)
def test_a_task_that_no_record_could_hold_is_refused(spec: TaskSpec) -> None:
    with pytest.raises(UsageError):
        check_spec(spec)


def test_the_first_line_of_a_claim_closes_it() -> None:
    first = HistoryLine(claim="a-1", outcome=Outcome.LOST, to="pending", attempt=1)
    late = HistoryLine(claim="a-1", outcome=Outcome.COMPLETED, to="done", attempt=1)
    other = HistoryLine(claim="b-1", outcome=Outcome.FAILED, to="failed", attempt=2)
    fresh = compose(TaskSpec(name="t", command="true"), "1")
    record = parse(fresh + b"".join(map(write_history, (first, late, other))))
    assert record.closing_line("a-1") == first
    assert record.closing_line("c-1") is None
    assert closing_lines(record) == [first, other]


def test_a_line_with_a_path_that_is_no_utf_8_is_written_all_the_same() -> None:
    line = HistoryLine(
        claim="a-1",
        outcome=Outcome.INCOMPLETE,
        to="failed",
        outputs=(OutputFact(path="\udcff.bin", problem="is missing"),),
    )
    lines, damaged = parse_history(write_history(line))
    assert damaged == 0
    assert lines[0].claim == "a-1"
    assert "udcff" in lines[0].outputs[0].path


@pytest.mark.parametrize("lane", Lane)
def test_the_plain_lane_is_not_written(lane: Lane) -> None:
    text = compose(TaskSpec(name="t", command="true", lane=lane), "1").decode()
    assert ("#FLEET lane:" in text) == (lane is not Lane.PLAIN)
