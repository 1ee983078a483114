from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from fleetcraft.calibration.checks.batching import (
    decision_difference,
    noise_difference,
    output_difference,
)


def own(samples: Sequence[int], elements: int = 64) -> torch.Tensor:
    return torch.stack(
        [torch.randn(elements, generator=torch.Generator().manual_seed(100 + s)) for s in samples]
    )


def shared(samples: Sequence[int], elements: int = 64) -> torch.Tensor:
    source = torch.Generator().manual_seed(100 + samples[0])
    return torch.randn(len(samples), elements, generator=source)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 8])
def test_one_generator_a_sample_draws_the_same_in_every_batch(batch: int) -> None:
    differs, said = noise_difference(own, range(batch))

    assert differs is None
    assert "as" in said or "what they draw alone" in said


@pytest.mark.parametrize("batch", [2, 4])
def test_a_generator_that_is_shared_is_found(batch: int) -> None:
    differs, said = noise_difference(shared, range(batch))

    assert differs in (0, 1)
    assert "share a generator" in said


def test_a_shared_generator_agrees_with_itself_at_batch_one() -> None:
    assert noise_difference(shared, [0])[0] is None


def test_too_few_elements_to_show_anything_are_told() -> None:
    _, said = noise_difference(lambda samples: own(samples, 3), range(2))

    assert "with 3 elements a sample this shows little" in said


def test_the_same_noise_for_every_sample_is_found() -> None:
    differs, said = noise_difference(lambda samples: own([0] * len(samples)), range(3))

    assert differs == 1
    assert "that of another sample" in said


def test_a_wrong_number_of_rows_is_the_familys_mistake_and_named() -> None:
    with pytest.raises(TypeError, match=r"expected \[2, ...\]"):
        noise_difference(lambda samples: torch.zeros(1, 4), range(2))


def own_decisions(samples: Sequence[int]) -> list[list[int]]:
    signals = own(samples, 3)
    return [[int(value > 0) for value in row] for row in signals]


def mean_decision(samples: Sequence[int]) -> list[list[int]]:
    mean = own(samples, 3).mean(0)
    return [[int(value > 0) for value in mean]] * len(samples)


def test_decisions_of_each_sample_alone_agree() -> None:
    assert decision_difference(own_decisions, range(4))[0] is None


def test_a_decision_by_the_mean_of_the_batch_is_found_with_both_rows() -> None:
    differs, said = decision_difference(mean_decision, range(4))

    assert differs is not None
    assert "in a batch of 4 and [" in said


def test_an_output_within_the_declared_tolerance_passes_and_is_told() -> None:
    def drifts(samples: Sequence[int]) -> torch.Tensor:
        return own(samples) + 1e-3 * (len(samples) - 1)

    beyond, worst, said = output_difference(drifts, range(2), 0.01)
    assert beyond is None
    assert worst == pytest.approx(1e-3, rel=1e-2)
    assert "allowed is 0.01" in said

    assert output_difference(drifts, range(2), 0.0)[0] == 0


def test_an_output_that_is_not_finite_never_agrees() -> None:
    beyond, _, said = output_difference(lambda s: own(s) / 0.0, range(2), 1e9)

    assert beyond == 0
    assert "not finite" in said
