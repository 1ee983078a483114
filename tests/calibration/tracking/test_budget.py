"""An emulated device that is too small: who hears of it, in which words, and what is left."""

from __future__ import annotations

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.calibration.tracking.ledger import Ledger
from fleetcraft.calibration.tracking.refusal import refusal_text
from fleetcraft.diagnosis.device_oom import judge_device_oom, parse_device_oom
from tests.calibration.tracking.toys import KIB, floats, tracking, train_step, transformer


def test_an_op_whose_result_does_not_fit_raises_the_devices_own_error() -> None:
    with tracking(budget_bytes=20 * KIB) as ledger:
        first = floats(12)
        with pytest.raises(torch.OutOfMemoryError) as caught:
            floats(12)
        found = parse_device_oom(str(caught.value))
        assert found is not None
        assert found.request_bytes == 12 * KIB
        assert found.capacity_bytes == 20 * KIB
        assert found.free_bytes == 8 * KIB
        assert found.allocated_bytes == found.process_bytes == 12 * KIB
        assert found.reserved_unallocated_bytes == 0
        assert judge_device_oom(found) == "capacity"
        assert ledger.live_bytes == 12 * KIB
    del first


def test_what_fits_to_the_byte_is_allowed() -> None:
    with tracking(budget_bytes=20 * KIB) as ledger:
        whole = floats(12), floats(8)
        assert ledger.live_bytes == 20 * KIB
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(1)
    del whole


def test_a_refused_result_is_neither_kept_nor_counted() -> None:
    refused: list[int] = []

    class Watching(Ledger):
        def _refusal(self, request_bytes: int) -> torch.OutOfMemoryError:
            refused.append(sum(_sizes_in_memory()))
            return super()._refusal(request_bytes)

    ledger = Watching("cpu", 20 * KIB)
    with ledger:
        ledger.begin_phase("decode")
        kept = floats(12)
        before = sum(_sizes_in_memory())
        with pytest.raises(torch.OutOfMemoryError):
            floats(4096)
        found = ledger.end_phase()
    assert refused == [before]
    assert found.peak_bytes == 12 * KIB
    del kept


def _sizes_in_memory() -> list[int]:
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    return [tensor.nbytes for tensor in tensors if tensor.device.type == "cpu"]


def test_of_several_results_the_first_that_does_not_fit_is_the_request() -> None:
    source = floats(8)
    with tracking(budget_bytes=20 * KIB) as ledger:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.sort(source)  # values of 8 KiB, then indices of 16
        found = parse_device_oom(str(caught.value))
        assert found is not None
        assert found.request_bytes == 16 * KIB
        del caught
        assert ledger.live_bytes == 8 * KIB


def test_a_storage_that_may_not_grow_stays_as_it_was() -> None:
    with tracking(budget_bytes=20 * KIB) as ledger:
        tensor = floats(8)
        with pytest.raises(torch.OutOfMemoryError):
            tensor.untyped_storage().resize_(32 * KIB)
        assert tensor.untyped_storage().nbytes() == ledger.live_bytes == 8 * KIB


def peak_of(layers: int, steps: int) -> int:
    tokens = torch.randn(2, 64, 64)
    model = transformer(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    with tracking() as ledger:
        ledger.begin_phase("train")
        for _ in range(steps):
            train_step(model, optimizer, tokens)
        return ledger.end_phase().peak_bytes


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_a_failed_trial_leaves_nothing_once_its_except_block_is_left(where: str) -> None:
    tokens = torch.randn(2, 64, 64)
    reached: list[str] = []
    inside_bytes: list[int] = []
    with tracking() as ledger:

        def reach(part: str) -> None:
            reached.append(part)
            if part == where:
                ledger.budget_bytes = ledger.live_bytes + 40 * KIB

        def trial() -> None:
            model = transformer(4)
            optimizer = torch.optim.AdamW(model.parameters())
            ledger.own("model", model)
            reach("forward")
            loss = model(tokens).square().mean()
            reach("backward")
            loss.backward()
            reach("step")
            optimizer.step()

        ledger.adopt(tokens)
        before = ledger.live_bytes
        ledger.begin_phase("train")
        try:
            trial()
        except torch.OutOfMemoryError:
            gc.collect()
            inside_bytes.append(ledger.live_bytes)
        found = ledger.end_phase()
    assert reached[-1] == where
    assert inside_bytes[0] > before  # the traceback holds the frames while somebody looks at it
    assert found.live_end_bytes == ledger.live_bytes == before
    assert sum(owner.bytes for owner in found.owners) == found.peak_bytes
    assert "model" in {owner.name for owner in found.owners}


def test_the_second_step_fails_where_the_first_one_fitted() -> None:
    budget_bytes = (peak_of(4, 1) + peak_of(4, 2)) // 2
    tokens = torch.randn(2, 64, 64)
    with tracking(budget_bytes) as ledger:
        model = transformer(4)
        optimizer = torch.optim.AdamW(model.parameters())
        ledger.own("optimizer", optimizer)
        train_step(model, optimizer, tokens)
        with pytest.raises(torch.OutOfMemoryError):
            train_step(model, optimizer, tokens)


def test_owners_at_a_failure_are_those_that_lived_then() -> None:
    class Probe:
        def __init__(self) -> None:
            self.kv: list[torch.Tensor] = []

    with tracking(budget_bytes=64 * KIB) as ledger:

        def trial() -> None:
            probe = Probe()
            ledger.own("probe.kv", probe)
            while True:
                probe.kv.append(floats(16))

        ledger.begin_phase("probe")
        with pytest.raises(torch.OutOfMemoryError):
            trial()
        found = ledger.end_phase()
    assert [(o.name, o.bytes, o.live_end_bytes) for o in found.owners] == [
        ("probe.kv", 64 * KIB, 0)
    ]


@given(
    request_bytes=st.integers(1, 1 << 42),
    budget_bytes=st.integers(1, 1 << 42),
    live_bytes=st.integers(0, 1 << 42),
)
def test_the_words_read_back_as_capacity_and_never_as_enough(
    request_bytes: int, budget_bytes: int, live_bytes: int
) -> None:
    if live_bytes + request_bytes <= budget_bytes:
        request_bytes = budget_bytes - live_bytes + 1
    text = refusal_text(
        request_bytes=request_bytes, budget_bytes=budget_bytes, live_bytes=live_bytes
    )
    found = parse_device_oom(text)
    assert found is not None
    assert found.request_bytes == pytest.approx(request_bytes, rel=0.01, abs=1)
    assert found.capacity_bytes == pytest.approx(budget_bytes, rel=0.01, abs=1)
    assert found.allocated_bytes == pytest.approx(live_bytes, rel=0.01, abs=1)
    assert found.reserved_unallocated_bytes == 0
    assert judge_device_oom(found) == "capacity"
