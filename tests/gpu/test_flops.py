"""The arithmetic of model FLOPs, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.errors import UsageError
from fleetcraft.gpu.flops import Model, assumptions, attention_fraction, flop_per_forward, mfu

ROLLOUT = Model(active_params=1.3e9, tokens=32760, layers=30, seq=32760, hidden=1536)
"""81 frames of a 1.3-billion-parameter video model. Source: the notes on MFU of the design."""


def test_the_forward_of_a_video_model_costs_what_was_worked_out_by_hand() -> None:
    assert flop_per_forward(ROLLOUT) == pytest.approx(282.99e12, rel=1e-4)
    assert attention_fraction(ROLLOUT) == pytest.approx(0.699, abs=5e-4)


@pytest.mark.parametrize(("peak", "share"), [(2.5e15, 0.330), (2.25e15, 0.366)])
def test_a_rollouts_share_depends_on_which_part_it_ran_on(peak: float, share: float) -> None:
    seconds = 3600 / 104.9
    assert mfu(100 * flop_per_forward(ROLLOUT), seconds, peak) == pytest.approx(share, abs=5e-4)


def test_training_counts_three_forwards() -> None:
    trained = Model(active_params=1e9, tokens=1000, training=True)
    assert flop_per_forward(trained) == 3 * 2 * 1e9 * 1000
    assert len(assumptions(training=True)) == len(assumptions(training=False)) + 1


def test_without_time_gpu_or_peak_there_is_no_share() -> None:
    assert mfu(1e12, 0.0, 1e12) is None
    assert mfu(1e12, 1.0, 0.0) is None
    assert mfu(1e12, 1.0, 1e12, gpus=0) is None
    assert mfu(1e12, float("inf"), 1e12) is None


def test_a_model_without_any_work_has_no_share_of_attention() -> None:
    assert attention_fraction(Model(active_params=0, tokens=0)) is None


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_number_that_cannot_be_is_refused_by_its_name(bad: float) -> None:
    with pytest.raises(UsageError, match="hidden"):
        flop_per_forward(Model(active_params=1, tokens=1, layers=1, seq=1, hidden=bad))


@given(st.floats(1, 1e12), st.floats(1, 1e7), st.integers(1, 64))
def test_twice_the_gpus_halve_the_share(params: float, tokens: float, gpus: int) -> None:
    flop = flop_per_forward(Model(active_params=params, tokens=tokens))
    one, two = mfu(flop, 10.0, 1e15, gpus), mfu(flop, 10.0, 1e15, 2 * gpus)
    assert one is not None
    assert two == pytest.approx(one / 2)
