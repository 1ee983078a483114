from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from fleetcraft.calibration import DiT, family
from fleetcraft.calibration.flop_count import count_flops, side_by_side

META = SimpleNamespace(device="meta")


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_counts_what_its_two_products_cost(device: str) -> None:
    q = torch.zeros(2, 4, 32, 16, device=device)

    counted = count_flops(lambda: scaled_dot_product_attention(q, q, q))

    assert counted == 2 * (2 * 4 * 32 * 32 * 16) * 2


def test_a_linear_layer_counts_twice_its_weights_for_each_token() -> None:
    layer = torch.nn.Linear(8, 24, bias=False, device="meta")

    assert count_flops(lambda: layer(torch.zeros(5, 8, device="meta"))) == 2 * 8 * 24 * 5


def forwards(ctx: object) -> None:
    layer = torch.nn.Linear(128, 128, bias=False, device="meta")
    for _ in range(4):
        layer(torch.zeros(10, 128, device="meta"))


def declared(active_params: float, **more: object):
    flops = DiT(active_params=active_params, layers=0, hidden=128, seq=10, forwards=4, backwards=2)
    return family("f", flops=flops, **more)(lambda ctx, batch: None)


def test_both_numbers_agree_for_an_honest_declaration() -> None:
    found = side_by_side(declared(128 * 128, count_flops=forwards), META)

    assert found.analytic_flop == 2 * 128 * 128 * 10 * (4 + 2 * 2)
    assert found.counted_flop == found.analytic_flop
    assert found.detail == ""


def test_more_than_a_tenth_apart_is_warned_with_both_numbers() -> None:
    found = side_by_side(declared(1.2 * 128 * 128, count_flops=forwards), META)

    assert found.disagreement_fraction == pytest.approx(1 / 1.2 - 1)
    assert "-16.7%" in found.detail


def test_what_was_not_declared_is_none_with_the_reason() -> None:
    nothing = side_by_side(family("f")(lambda ctx, batch: None), META)
    assert (nothing.analytic_flop, nothing.counted_flop) == (None, None)
    assert nothing.detail == "the family declares no forwards to count"


def test_forwards_that_fail_are_told_in_their_own_words() -> None:
    def fails(ctx: object) -> None:
        raise RuntimeError("no weights here")

    found = side_by_side(declared(1, count_flops=fails), META)

    assert found.counted_flop is None
    assert found.analytic_flop is not None
    assert "RuntimeError: no weights here" in found.detail
