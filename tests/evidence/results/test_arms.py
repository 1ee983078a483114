"""An arm is one measurement, or it is told in what it is several."""

from __future__ import annotations

from typing import Any

import pytest

from fleetcraft.evidence.results.arms import FIELDS, UNKNOWN, judge_arm, not_stated
from tests.evidence.result_rows import result


def test_records_of_one_kind_are_one_arm() -> None:
    same = {"batch": 4, "attention_backend": "cudnn", "stack": {"torch": "2.13"}, "family": "wan"}
    assert judge_arm(result(seed=seed, **same) for seed in range(3)) == ()
    assert judge_arm([]) == ()


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [
        ("batched", {"batch": 1}, {"batch": 4}),
        ("batch", {"batch": 8}, {"batch": 4}),
        ("batch_table", {"batch_table_sha256": "a" * 64}, {"batch_table_sha256": "b" * 64}),
        ("timed", {"timed": True}, {"timed": False}),
        ("attention_backend", {"attention_backend": "cudnn"}, {"attention_backend": "flash"}),
        ("stack", {"stack": {"torch": "2.13"}}, {"stack": {"torch": "2.12"}}),
        ("encoder", {"encoder_sha256": "a" * 64}, {"encoder_sha256": "b" * 64}),
        ("device", {"device": "GH200"}, {"device": "A100"}),
        ("grid", {"grid_sha256": "a" * 64}, {"grid_sha256": "b" * 64}),
    ],
)
def test_each_fact_that_differs_makes_an_arm_mixed(
    field: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    [mixed] = judge_arm([result(**one), result(**one), result(**other)])

    assert (mixed.field, mixed.certain) == (field, True)
    assert sorted(mixed.values.values()) == [1, 2]
    assert mixed.sentence.startswith(f"{field}")


def test_a_fact_that_only_some_state_is_mixed_but_not_certain() -> None:
    [mixed] = judge_arm([result(device="GH200"), result()])

    assert (mixed.certain, mixed.values) == (False, {UNKNOWN: 1, "GH200": 1})


def test_a_fact_that_is_not_stated_hides_no_difference() -> None:
    [mixed] = judge_arm([result(device="GH200"), result(), result(device="A100")])
    assert mixed.certain


def test_families_have_batches_of_their_own_but_batched_is_batched() -> None:
    wan, hunyuan = result(family="wan", batch=8), result(family="hunyuan", batch=2)
    assert judge_arm([wan, hunyuan]) == ()

    [mixed] = judge_arm([wan, hunyuan, result(family="wan", batch=4)])
    assert (mixed.field, mixed.where) == ("batch", "wan")
    assert mixed.sentence == "batch of family wan: 4 (1), 8 (1)"

    assert [m.field for m in judge_arm([wan, result(family="hunyuan", batch=1)])] == ["batched"]


def test_records_that_do_not_state_a_fact_are_counted() -> None:
    rows = [result(batch=1), result(), result(device="x")]
    assert not_stated(rows, ["batch", "device", "timed"]) == {"batch": 2, "device": 2}
    assert set(FIELDS) >= {"batch", "stack", "encoder"}
