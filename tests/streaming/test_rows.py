"""What becomes of lines of ranks and of the journal: which rows, which values, and what never."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.streaming.event_rows import event_row
from fleetcraft.streaming.progress_rows import Ranks, rows_of, told_lines
from fleetcraft.streaming.rows import Row, key_of, word
from fleetcraft.training.records import EVENT_SCHEMA
from tests.streaming.material import SECRET, T, at


def rows(
    ranks: Ranks, *told: tuple[int, dict[str, Any]], wrong: Counter[str] | None = None
) -> list[Row]:
    lines = [one for rank, line in told for one in told_lines(rank, [json.dumps(line).encode()])]
    return rows_of(lines, ranks, 1, Counter() if wrong is None else wrong)


def line(step: int, t_s: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "at": at(T + t_s), **more}


def test_a_line_is_a_row_with_its_step_time_and_epoch() -> None:
    (row,) = rows(Ranks(), (0, line(3, 5, loss=2.5, metrics={"reward": 0.5})))
    assert row == {
        "train/step": 3, "train/loss": 2.5, "metrics/reward": 0.5, "train/epoch": 1,
        "_timestamp": T + 5,
    }  # fmt: skip


def test_tokens_per_second_are_those_of_all_ranks_that_were_heard_of_lately() -> None:
    ranks = Ranks()
    told = [(rank, line(n, 10 * n - rank, tokens=1000)) for n in (1, 2) for rank in (0, 1, 2)]
    last = rows(ranks, *told)[-1]
    assert (last["train/tokens_per_s"], last["train/ranks_heard"]) == (300.0, 3)
    alone = rows(ranks, *[(0, line(n, 10 * n, tokens=1000)) for n in range(3, 12)])[-1]
    assert (alone["train/tokens_per_s"], alone["train/ranks_heard"]) == (100.0, 1)


def test_without_times_there_is_no_throughput_rather_than_a_zero() -> None:
    found = rows(Ranks(), *[(0, {"step": n, "tokens": 1000}) for n in (1, 2, 3)])
    assert [row["train/step"] for row in found] == [1, 2, 3]
    assert not any("train/tokens_per_s" in row or "_timestamp" in row for row in found)


def test_a_new_process_of_a_rank_has_not_worked_while_it_was_away() -> None:
    ranks = Ranks()
    rows(ranks, *[(0, line(n, 10 * n, tokens=1000)) for n in (1, 2)])
    hello = (0, {"hello": 1, "at": at(T + 1000)})
    (row,) = rows(ranks, hello, (0, line(3, 1001, tokens=1000)))
    assert "train/tokens_per_s" not in row


def test_what_several_ranks_say_is_taken_from_the_lowest_and_its_own_from_each() -> None:
    ranks = Ranks()
    found = rows(
        ranks,
        (1, line(1, 1, loss=9.0, queues={"q_pre": [26, 50]})),
        (0, line(1, 2, loss=1.0)),
        (1, line(2, 3, loss=9.0, queues={"q_pre": [25, 50]})),
    )
    assert [row.get("train/loss") for row in found] == [9.0, 1.0, None]
    assert found[2]["queues/q_pre_fill_fraction"] == 0.5
    assert found[2]["train/step"] == 2


def test_a_loss_that_is_no_number_is_sent_as_such() -> None:
    (row,) = rows(Ranks(), (0, line(1, 1, loss="nan")))
    assert math.isnan(float(row["train/loss"]))


def test_lines_that_say_nothing_are_counted_and_names_are_bounded() -> None:
    wrong: Counter[str] = Counter()
    rows_of(told_lines(0, [b"no json", b"{}"]), Ranks(), 1, wrong)
    assert wrong == {"no JSON": 1, "says nothing known": 1}
    ranks = Ranks()
    for n in range(8):
        rows(ranks, (0, line(n, n, metrics={f"m{n}-{i}": 1.0 for i in range(60)})), wrong=wrong)
    assert len(ranks.owners) == 256
    assert wrong["more than 256 names"] > 0


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_no_line_whatever_it_holds_is_more_than_a_row_or_a_count(lines: list[bytes]) -> None:
    wrong: Counter[str] = Counter()
    for row in rows_of(told_lines(0, lines), Ranks(), 1, wrong):
        assert all(type(value) in (int, float, str) for value in row.values())


def event(kind: str, **facts: Any) -> bytes:
    value = {"schema": EVENT_SCHEMA, "at": at(T), "run": "r", "generation": 1, "epoch": 2}
    return json.dumps({**value, "event": kind, **facts}).encode()


def test_states_crashes_and_rungs_become_rows() -> None:
    rung = {"kind": "knob", "knob": "max_anchors", "before": 1024, "after": 768}
    assert event_row(event("state", state="HEALTHY", **{"from": "WARMUP"})) == (
        T,
        {"event": "state", "event/state": "HEALTHY", "event/from": "WARMUP", "train/epoch": 2,
         "_timestamp": T},
    )  # fmt: skip
    crashed = event_row(event("diagnosis", attempt=2, diagnosis={"class": "CUDA_OOM"}))
    assert crashed is not None
    assert crashed[1]["event/class"] == "CUDA_OOM"
    lowered = event_row(event("rung", rung=rung))
    assert lowered is not None
    assert (lowered[1]["event/knob_before"], lowered[1]["event/knob_after"]) == (1024, 768)


def test_no_sentence_command_path_or_log_line_of_the_journal_becomes_part_of_a_row() -> None:
    raw = event(
        "diagnosis",
        why=f"it said {SECRET}",
        command=["python", SECRET],
        state=f"/home/{SECRET}/x",
        diagnosis={"class": "CODE_ERROR", "evidence": [{"text": SECRET}], "advice": [SECRET]},
        rung={"kind": "first", "knob": f"{SECRET}\n"},
    )
    told = event_row(raw)
    assert told is not None
    assert SECRET not in str(told)


@pytest.mark.parametrize("raw", [b"", b"torn {", b"[]", b'{"schema":"other/1","event":"state"}'])
def test_what_is_no_event_is_none(raw: bytes) -> None:
    assert event_row(raw) is None


def test_keys_and_words_are_plain() -> None:
    assert key_of("metrics", "a/b\x1b[2J\n") == "metrics/a_b__2J_"
    assert word("CUDA_OOM") == "CUDA_OOM"
    assert word("/home/me") is None
    assert word(3) is None
