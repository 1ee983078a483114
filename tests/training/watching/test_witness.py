"""What a ratio of throughputs suggests, in words."""

from __future__ import annotations

import pytest

from fleetcraft.training.records import RankProgress, RankState
from fleetcraft.training.watching.witness import alive_ratio, names_of


def drafters(*alive: bool | None) -> list[RankState]:
    return [
        RankState(rank=index, name=f"drafter-{index}", alive=one) for index, one in enumerate(alive)
    ]


def test_the_seeds_ratio_is_one_of_three_drafters_alive() -> None:
    text = alive_ratio(6.9 / 21.5, drafters(True, False, False))
    assert text == "0.32: one of three drafters alive"


def test_where_the_census_does_not_know_it_is_only_as_if() -> None:
    text = alive_ratio(6.9 / 21.5, drafters(None, None, None))
    assert text == "0.32: as if one of three drafters were alive"


@pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 0.85, 1.0, 1.4])
def test_a_ratio_near_no_share_suggests_nothing(ratio: float) -> None:
    assert alive_ratio(ratio, drafters(None, None, None)) == ""


def test_a_kind_of_which_the_census_knows_goes_before_one_that_only_fits() -> None:
    states = [*drafters(None, None), *drafters(True, False)]
    ranks = [
        RankState(rank=5 + index, name=f"critic_{index}", alive=one.alive)
        for index, one in enumerate(states[2:])
    ]
    assert alive_ratio(0.5, [*states[:2], *ranks]) == "0.50: one of two critics alive"


def test_ranks_without_names_are_ranks() -> None:
    states = [RankState(rank=index) for index in range(4)]
    assert alive_ratio(0.25, states) == "0.25: as if one of four ranks were alive"


def test_many_ranks_are_named_in_part() -> None:
    known = {index: RankProgress(rank=index) for index in range(20)}
    known[0] = RankProgress(rank=0, name="policy")
    text = names_of(list(range(20)), known)
    assert text.startswith("policy (rank 0), rank 1, ")
    assert text.endswith(" and 12 more")
    assert names_of([-1], {-1: RankProgress(rank=-1, name="log")}) == "log"
