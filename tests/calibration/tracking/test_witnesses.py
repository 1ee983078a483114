"""The tracked peak against other witnesses: torch's profiler, and the same cycle without memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fleetcraft.calibration.tracking.autograd import SavedTensors
from fleetcraft.calibration.tracking.ledger import Ledger, PhaseBytes
from tests.calibration.tracking.toys import decoder, tracking, train_step, transformer


def profiled_peak_bytes(work: Callable[[], None]) -> int:
    """The highest sum of what the allocator gave and took, as the profiler saw it."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        work()
    kineto = profile.profiler.kineto_results  # type: ignore[union-attr]
    events = [event for event in kineto.events() if event.name() == "[memory]"]
    total = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    return highest


def test_two_training_steps_agree_with_the_profiler() -> None:
    tokens = torch.randn(2, 64, 128)

    def cycle() -> Callable[[], None]:
        model = transformer(3, 128)
        optimizer = torch.optim.AdamW(model.parameters())

        def work() -> None:
            train_step(model, optimizer, tokens)
            train_step(model, optimizer, tokens)

        return work

    witness = profiled_peak_bytes(cycle())
    with tracking() as ledger:
        work = cycle()
        ledger.adopt(tokens)
        ledger.begin_phase("train")
        work()
        found = ledger.end_phase()
    assert found.peak_bytes - found.live_start_bytes == pytest.approx(witness, rel=1e-3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_denoise_loop_agrees_with_the_profiler_in_either_mode(mode: type) -> None:
    model = transformer(2, 128)
    start = torch.randn(2, 64, 128)

    def work() -> None:
        latents = start
        for _ in range(2):
            latents = latents - 0.1 * model(latents)

    with mode():
        witness = profiled_peak_bytes(work)
        with tracking() as ledger:
            ledger.adopt([model, start])
            ledger.begin_phase("denoise")
            work()
            found = ledger.end_phase()
    assert found.peak_bytes - found.live_start_bytes == pytest.approx(witness, rel=1e-3)


def train(ledger: Ledger, batch: int) -> PhaseBytes:
    with ledger, SavedTensors(ledger):
        ledger.begin_phase("train")
        model = transformer(3, 128)
        optimizer = torch.optim.AdamW(model.parameters())
        ledger.own("model", model)
        ledger.own("optimizer", optimizer)
        tokens = torch.randn(batch, 64, 128)
        for _ in range(2):
            train_step(model, optimizer, tokens)
        return ledger.end_phase()


def decode(ledger: Ledger, batch: int) -> PhaseBytes:
    with ledger, SavedTensors(ledger), torch.no_grad():
        ledger.begin_phase("decode")
        vae = decoder()
        ledger.own("vae", vae)
        pixels = vae(torch.randn(batch, 16, 4, 8, 8))
        ledger.own("pixels", pixels)
        return ledger.end_phase()


@pytest.mark.parametrize("cycle", [train, decode])
@pytest.mark.parametrize("batch", [1, 4])
def test_fake_tensors_predict_the_real_peak_and_its_owners(
    cycle: Callable[[Ledger, int], PhaseBytes], batch: int
) -> None:
    real = cycle(Ledger(), batch)
    with FakeTensorMode():
        fake = cycle(Ledger(), batch)
    assert fake.peak_bytes == pytest.approx(real.peak_bytes, rel=0.01)
    shares = {owner.name: owner.bytes for owner in real.owners}
    assert {o.name for o in fake.owners} == set(shares)
    assert all(o.bytes == pytest.approx(shares[o.name], rel=0.02, abs=64) for o in fake.owners)


def test_the_order_of_ledger_and_fake_mode_does_not_matter() -> None:
    peaks = []
    for fake_first in (True, False):
        ledger = Ledger()
        modes = [FakeTensorMode(), ledger] if fake_first else [ledger, FakeTensorMode()]
        with modes[0], modes[1]:
            ledger.begin_phase("decode")
            torch.ones(64, 64) @ torch.ones(64, 64)
            peaks.append(ledger.end_phase().peak_bytes)
    assert peaks == [3 * 64 * 64 * 4] * 2
