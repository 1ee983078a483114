"""Two arms are compared pair by pair, or it is said why they are not."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from fleetcraft.errors import DataError
from fleetcraft.evidence.results.comparing import (
    Comparison,
    ComparisonRefusedError,
    How,
    Side,
    compare,
)
from fleetcraft.evidence.results.sets import Result
from tests.evidence.result_rows import result


def _compare(a: list[Result], b: list[Result], **more: Any) -> Comparison:
    return compare(Side("full", a, set="s"), Side("cached", b, set="s"), "score", **more)


def _arms(a: list[float], b: list[float], **facts: Any) -> tuple[list[Result], list[Result]]:
    return (
        [result("full", seed, value, **facts) for seed, value in enumerate(a)],
        [result("cached", seed, value, **facts) for seed, value in enumerate(b)],
    )


def test_ratios_are_of_the_second_arm_to_the_first_and_their_mean_is_geometric() -> None:
    made = _compare(*_arms([1.0, 2.0, 4.0], [2.0, 2.0, 16.0]))

    assert [pair.value for pair in made.values] == [2.0, 1.0, 4.0]
    assert made.estimate == pytest.approx(2.0)
    assert (made.median, made.least, made.greatest) == (2.0, 1.0, 4.0)
    assert (made.b_higher, made.b_lower, made.pairs) == (2, 0, 3)
    assert (made.a.mean, made.b.mean) == (pytest.approx(7 / 3), pytest.approx(20 / 3))


def test_differences_may_be_of_any_sign() -> None:
    made = _compare(*_arms([1.0, -1.0, 0.0], [0.0, 2.0, 0.5]), how=How.DIFFERENCE)

    assert made.estimate == pytest.approx(2.5 / 3)
    assert [pair.value for pair in made.values] == [-1.0, 3.0, 0.5]


def test_a_value_that_has_no_ratio_is_told_with_what_helps() -> None:
    with pytest.raises(DataError, match="no ratio") as told:
        _compare(*_arms([1.0, 0.0], [1.0, 1.0]))
    assert "--difference" in told.value.hint


def test_the_interval_is_the_same_every_time_and_in_any_order() -> None:
    source = random.Random(1)
    a = [source.uniform(1, 2) for _ in range(40)]
    b = [value * source.uniform(0.9, 1.3) for value in a]
    full, cached = _arms(a, b)

    one, other = _compare(full, cached), _compare(full[::-1], cached[::-1])

    assert (one.low, one.high, one.draws) == (other.low, other.high, other.draws)
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.estimate < one.high


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    # 60 experiments of 30 pairs: of a 95% interval, fewer than 49 hits have a chance below 1e-5.
    source = random.Random(7)
    hits = 0
    for _ in range(60):
        ratios = [1.1 * math.exp(source.gauss(0, 0.2)) for _ in range(30)]
        made = _compare(*_arms([1.0] * 30, ratios))
        assert made.low is not None
        assert made.high is not None
        hits += made.low <= 1.1 <= made.high
    assert hits >= 49


def test_two_pairs_have_an_estimate_and_no_interval() -> None:
    made = _compare(*_arms([1.0, 1.0], [1.1, 1.2]))
    assert (made.low, made.high, made.draws, made.pairs) == (None, None, 0, 2)


def test_what_has_no_partner_or_no_metric_is_counted() -> None:
    full, cached = _arms([1.0, 1.0, 1.0], [1.0, 1.0])
    full.append(result("full", 9, None))
    cached.append(result("cached", 8, 1.0))

    made = _compare(full, cached)

    assert (made.a.unmatched, made.b.unmatched) == (1, 1)
    assert (made.a.without_metric, made.b.without_metric) == (1, 0)
    assert made.a.records == 4


def test_pairs_are_of_one_candidate_and_one_seed() -> None:
    full = [result("full", 0, 1.0, candidate="x"), result("full", 0, 2.0, candidate="y")]
    cached = [result("cached", 0, 4.0, candidate="y"), result("cached", 1, 9.0, candidate="x")]

    made = _compare(full, cached)

    assert [(p.candidate, p.seed, p.value) for p in made.values] == [("y", 0, 2.0)]


def test_a_record_that_is_said_again_counts_once_and_one_that_differs_is_refused() -> None:
    full, cached = _arms([1.0, 1.0], [1.0, 1.0])

    assert _compare([*full, result("full", 0, 1.0)], cached).a.repeated == 1
    with pytest.raises(ComparisonRefusedError, match="different records of 0") as told:
        _compare([*full, result("full", 0, 1.5)], cached)
    assert told.value.facts["certain"] is True


@pytest.mark.parametrize(
    ("theirs", "said", "certain"),
    [
        ({"encoder_sha256": "b" * 64}, "encoder", True),
        ({"encoder_sha256": ""}, "encoder", False),
        ({"encoder_sha256": "a" * 64, "timed": True}, "timed", True),
    ],
)
def test_other_encoders_and_timing_are_not_compared(
    theirs: dict[str, Any], said: str, certain: bool
) -> None:
    full = [result("full", 0, 1.0, encoder_sha256="a" * 64)]
    cached = [result("cached", 0, 1.0, **theirs)]

    with pytest.raises(ComparisonRefusedError, match=f"{said}: ") as told:
        _compare(full, cached)
    assert told.value.facts["certain"] is certain


def test_a_mixed_arm_is_refused_with_every_reason() -> None:
    full = [result("full", 0, 1.0, batch=1), result("full", 1, 1.0, batch=4, device="A100")]

    with pytest.raises(ComparisonRefusedError) as told:
        _compare(full, [result("cached", 0, 1.0)])
    reasons = str(told.value.facts["reasons"])
    assert "full mixes batched" in reasons
    assert "full mixes device" in reasons


def test_other_facts_that_differ_are_told_beside_the_numbers() -> None:
    made = _compare([result("full", 0, 1.0, batch=4)], [result("cached", 0, 2.0, batch=1)])
    assert made.differs == ("batch: 4 against 1",)


def test_what_cannot_be_compared_at_all_says_why() -> None:
    full, cached = _arms([1.0], [1.0])
    with pytest.raises(DataError, match="no record of arm"):
        _compare(full, [])
    with pytest.raises(DataError, match="no candidate and seed in common"):
        _compare(full, [result("cached", 5, 1.0)])
    with pytest.raises(DataError, match="'fps'") as told:
        compare(Side("full", full), Side("cached", cached), "fps")
    assert told.value.hint == "it has score"


def test_one_arm_of_two_sets_is_called_by_both_names() -> None:
    one, other = _arms([1.0], [1.0])
    with pytest.raises(ComparisonRefusedError, match="first:full and again:full"):
        compare(
            Side("full", [result("full", 0, 1.0, timed=True)], set="first"),
            Side("full", one, set="again"),
            "score",
        )
    assert other
