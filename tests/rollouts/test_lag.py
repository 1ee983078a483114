"""Lag, and which lengths of prompt are discarded for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.rollouts.lag import Bucket, bucket_of, is_too_old, lag_of, tabulate


def test_a_record_of_the_current_policy_is_not_behind() -> None:
    assert lag_of(0, 0) == 0


@pytest.mark.parametrize(("version", "too_old"), [(12, False), (4, False), (3, True), (0, True)])
def test_exactly_the_allowed_lag_is_allowed(version: int, too_old: bool) -> None:
    assert is_too_old(version, 12, max_lag=8) is too_old


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [(0, "not told"), (1, "up to 64"), (64, "up to 64"), (65, "65 to 128"), (1025, "1025 to 2048")],
)
def test_buckets_are_powers_of_two(tokens: int, bucket: str) -> None:
    assert bucket_of(tokens) == bucket


@given(st.integers(1, 10**7))
def test_a_length_lies_in_its_bucket(tokens: int) -> None:
    low, _, high = bucket_of(tokens).replace("up to", "1 to").partition(" to ")
    assert int(low) <= tokens <= int(high)


def test_discards_are_shown_by_length_short_ones_first() -> None:
    committed = [bucket_of(50)] * 3 + [bucket_of(2000)]
    discarded = [bucket_of(2000)] * 3 + [bucket_of(0)]

    rows = tabulate(committed, discarded)

    assert rows == (
        Bucket(bucket="up to 64", committed=3, discarded=0),
        Bucket(bucket="1025 to 2048", committed=1, discarded=3),
        Bucket(bucket="not told", committed=0, discarded=1),
    )
    assert [row.discarded_fraction for row in rows] == [0.0, 0.75, 1.0]
    assert Bucket(bucket="x", committed=0, discarded=0).discarded_fraction is None
