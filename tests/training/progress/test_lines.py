"""One line of a progress file, from whatever language wrote it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.training.progress.lines import MAX_NAMES, _unusual, parse_line

HELLO = {
    "hello": 1, "rank": 0, "name": "d", "pid": 12, "start_ticks": 34, "host": "n1",
    "boot_id": "b", "pid_namespace": "pid:[1]", "nonce": "x", "world_size": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "no JSON"),
        ('{"step": 3', "no JSON"),
        ("step 3", "no JSON"),
        ("[3]", "no JSON object"),
        ("3", "no JSON object"),
        ("{}", "says nothing known"),
        ('{"Step": 3}', "says nothing known"),
        ('{"step": -1}', "step: no whole number from 0"),
        ('{"step": 1.5}', "step: no whole number from 0"),
        ('{"step": true}', "step: no whole number from 0"),
        ('{"step": "3"}', "step: no whole number from 0"),
        ('{"step": 1e300}', "step: no whole number from 0"),
        ('{"step": NaN}', "step: no whole number from 0"),
        ('{"tokens": -5}', "tokens: no amount"),
        ('{"loss": "low"}', "loss: no number"),
        ('{"queues": [1, 2]}', "queues: no names with values"),
        ('{"queues": {"q": [1, 2, 3]}}', "queues: a queue is a depth, or depth and capacity"),
        ('{"phase": 3}', "phase: no text"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_by_kind(text: str, wrong: str) -> None:
    assert parse_line(text.encode()).wrong == wrong


def test_a_damaged_value_takes_nothing_else_of_its_line_with_it() -> None:
    line = parse_line(b'{"step": 7, "loss": "low", "tokens": 5, "queues": {"q": "x"}}')
    assert (line.step, line.tokens, line.loss, line.queues) == (7, 5.0, None, None)
    assert line.wrong == "loss: no number"


@pytest.mark.parametrize("text", ["NaN", '"nan"', '"NaN"'])
def test_a_loss_that_is_not_a_number_is_read_in_every_spelling(text: str) -> None:
    line = parse_line(f'{{"step": 1, "loss": {text}}}'.encode())
    assert line.step == 1
    assert line.loss is not None
    assert math.isnan(line.loss)


def test_null_is_not_told_and_a_whole_float_is_a_step() -> None:
    line = parse_line(b'{"step": 12.0, "loss": null, "queues": {"q": [3, null]}}')
    assert (line.step, line.loss, line.queues, line.wrong) == (12, None, {"q": (3, None)}, "")


def test_too_many_names_are_refused_so_that_memory_stays_bounded() -> None:
    many = {f"m{index}": 1.0 for index in range(MAX_NAMES + 1)}
    line = parse_line(json.dumps({"step": 1, "metrics": many}).encode())
    assert (line.step, line.metrics) == (1, None)
    assert line.wrong == f"metrics: more than {MAX_NAMES}"


@pytest.mark.parametrize("missing", ["pid", "start_ticks", "host", "boot_id", "pid_namespace"])
def test_who_introduces_itself_in_part_is_nobody_in_particular(missing: str) -> None:
    assert parse_line(json.dumps(HELLO).encode()).process is not None
    told = {name: value for name, value in HELLO.items() if name != missing}
    line = parse_line(json.dumps(told).encode())
    assert line.hello
    assert line.process is None
    assert (line.name, line.world_size, line.wrong) == ("d", 4, "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
NAMES = st.sampled_from([
    "hello", "name", "world_size", "step", "tokens", "loss", "queues", "metrics",
    "device_memory_bytes", "phase", "pid", "start_ticks", "host", "nonce", "other",
])  # fmt: skip


@given(st.dictionaries(NAMES, JSON, max_size=6))
def test_no_object_of_json_makes_the_parser_fail(value: dict[str, object]) -> None:
    line = parse_line(json.dumps(value).encode())
    assert line.step is None or 0 <= line.step < 2**63
    assert line.tokens is None or math.isfinite(line.tokens)


USUAL = st.fixed_dictionaries(
    {"step": st.integers(-1, 9) | st.integers(2**62 - 1, 2**64) | st.just(2.0)},
    optional={
        "tokens": st.integers(-1, 9) | st.floats(),
        "loss": st.floats() | st.just("nan"),
        "queues": st.dictionaries(
            st.text(max_size=66), st.integers(-1, 9) | st.lists(st.integers(0, 3), max_size=3)
        ),
        "metrics": st.dictionaries(st.text(max_size=66), st.floats() | st.none()),
        "device_memory_bytes": st.integers(-1, 9) | st.just(3.0),
        "name": st.text(max_size=66),
        "at": st.text(max_size=3),
        "phase": st.sampled_from(["", "save", None]),
    },
)


@given(USUAL)
def test_the_quick_way_reads_what_the_slow_one_does(value: dict[str, object]) -> None:
    data = json.dumps(value).encode()
    quick, slow = parse_line(data), _unusual(data)
    assert repr(quick) == repr(slow)  # NaN equals nothing


@given(st.binary(max_size=60))
def test_no_bytes_make_the_parser_fail(data: bytes) -> None:
    parse_line(data)


def test_deep_nesting_is_no_json_rather_than_a_crash() -> None:
    assert parse_line(b'{"step":' + b"[" * 100_000).wrong == "no JSON"
