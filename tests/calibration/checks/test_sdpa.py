from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from fleetcraft.calibration.checks.masks import poison_parity
from fleetcraft.calibration.checks.sdpa import (
    BACKENDS,
    active_backend,
    pinned,
    plain_attention,
    usable_backends,
)
from fleetcraft.errors import DeviceError, UsageError

USABLE = [name for name, reason in usable_backends().items() if not reason]


def test_a_cpu_runs_flash_and_math_and_says_why_not_the_others() -> None:
    assert active_backend() == "flash"
    assert USABLE == ["flash", "math"]
    assert all("backend" in usable_backends()[name] for name in ("efficient", "cudnn"))


@pytest.mark.parametrize("name", ["flash", "math"])
def test_what_is_pinned_runs_inside_and_not_after(name: str) -> None:
    with pinned(name) as ran:
        assert (ran, active_backend()) == (name, name)

    assert active_backend() == "flash"


def test_no_name_pins_nothing_and_says_what_runs() -> None:
    with pinned("") as ran:
        assert ran == "flash"


def test_a_backend_that_cannot_run_here_is_refused_by_name() -> None:
    with pytest.raises(DeviceError, match="'cudnn' cannot run on cpu") as caught, pinned("cudnn"):
        pass

    assert "flash, math" in caught.value.hint


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no attention backend 'flush'") as caught, pinned("flush"):
        pass

    assert caught.value.hint == f"one of {', '.join(BACKENDS)}"


@pytest.mark.parametrize("name", USABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kept_mask_lets_poison_change_exactly_nothing(name: str, dtype: torch.dtype) -> None:
    with pinned(name):
        found = poison_parity(plain_attention, dtype=dtype)

    assert found.ok, found.sentence()
    assert found.change == 0.0


@pytest.mark.parametrize("name", USABLE)
def test_a_dropped_mask_is_found_on_each_backend(name: str) -> None:
    def without_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor):
        return scaled_dot_product_attention(q, k, v)

    with pinned(name):
        found = poison_parity(without_mask)

    assert not found.ok
    assert found.change > 100
    assert "the key-padding mask is dropped" in found.sentence()


def test_a_mask_applied_to_the_keys_alone_is_no_mask() -> None:
    def zeroes_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor):
        return scaled_dot_product_attention(q, k * keep[:, None, :, None], v)

    assert not poison_parity(zeroes_keys).ok


def test_a_mask_that_is_turned_around_is_found() -> None:
    def inverted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor):
        return plain_attention(q, k, v, ~keep)

    assert not poison_parity(inverted).ok


def test_the_mask_of_the_first_sample_for_all_is_found() -> None:
    def first_for_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor):
        return plain_attention(q, k, v, keep[-1:].expand_as(keep))

    assert not poison_parity(first_for_all, batch=3).ok


def test_an_output_that_depends_on_no_key_passes_for_no_attention() -> None:
    def constant(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor):
        return torch.zeros_like(q)

    found = poison_parity(constant)

    assert found.change == 0.0
    assert not found.ok
    assert "no attention over its keys" in found.sentence()


def test_an_output_that_is_not_finite_fails() -> None:
    def breaks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor):
        return plain_attention(q, k, v, keep) / 0.0

    assert not poison_parity(breaks).ok


def test_rows_without_any_key_are_zero_on_each_backend() -> None:
    q = torch.randn(1, 1, 4, 16)
    for name in USABLE:
        with pinned(name):
            out = plain_attention(q, q, q, torch.zeros(1, 4, dtype=torch.bool))
        assert torch.equal(out, torch.zeros_like(out))
