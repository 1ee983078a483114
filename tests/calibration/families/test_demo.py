"""The demo family by itself: its cycle, its promises, and what each fault breaks in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fleetcraft.calibration import find_family
from fleetcraft.calibration.checks.run import run_checks
from fleetcraft.calibration.families.demo import faults, semantics, sizes, steps
from fleetcraft.calibration.families.demo.faults import FAULTS, DemoFault
from fleetcraft.calibration.families.demo.model import KeyValueCache
from fleetcraft.calibration.family import TRAIN_PHASES, semantics_name
from fleetcraft.calibration.flop_count import DISAGREEMENT, side_by_side
from fleetcraft.calibration.records import Failure
from fleetcraft.calibration.trial.context import Context
from fleetcraft.calibration.trial.journal import JournalWriter
from fleetcraft.calibration.trial.orders import Pass
from fleetcraft.video import read_video

DEMO = find_family("demo")


def run_cycle(folder: Path, *, batch: int = 1, pass_name: Pass = Pass.TIME) -> list[str]:
    """Runs one cycle; returns its phases in the order in which they began."""
    writer = JournalWriter(str(folder / "journal.jsonl"))
    ctx = Context(batch=batch, folder=str(folder / "out"), pass_name=pass_name, journal=writer)
    try:
        DEMO.cycle(ctx, batch)
        ctx.finish()
    finally:
        writer.close()
    assert ctx.findings == []
    lines = (folder / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [event["phase"] for event in events if event["event"] == "phase_begin"]


def test_describing_the_demo_loads_no_torch() -> None:
    code = (
        "import sys; from fleetcraft.calibration import find_family; "
        "found = find_family('demo'); found.identity_hash; list(found.faults); "
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], check=False)

    assert done.returncode == 0


def test_a_cycle_runs_all_phases_and_leaves_videos_and_a_checkpoint(tmp_path: Path) -> None:
    phases = run_cycle(tmp_path, batch=2)

    assert phases == list(TRAIN_PHASES) == list(DEMO.required_phases)
    for sample in range(2):
        video = read_video(str(tmp_path / f"out/sample-{sample:03d}.mp4"))
        assert video.frames.shape == (sizes.FRAMES, sizes.HEIGHT, sizes.WIDTH_PX, 3)
    saved = torch.load(tmp_path / "out/checkpoint.pt", weights_only=True)
    assert saved["scores"].shape == (2,)
    assert all(state["step"] == 2 for state in saved["optimizer"]["state"].values())


@pytest.mark.parametrize("batch", [1, 2])
def test_a_cycle_runs_on_tensors_without_values_and_writes_nothing(
    batch: int, tmp_path: Path
) -> None:
    with FakeTensorMode():
        phases = run_cycle(tmp_path, batch=batch, pass_name=Pass.PREFLIGHT)

    assert phases == list(TRAIN_PHASES)
    assert not (tmp_path / "out").exists()


def test_the_noise_of_a_sample_is_the_same_to_the_bit_in_every_batch() -> None:
    alone = [steps.draw_noise(Context(seed=3), [sample])[0] for sample in range(4)]

    for batch in (1, 2, 4):
        together = steps.draw_noise(Context(batch=batch, seed=3), range(batch))
        assert together[0].numel() > 16  # fewer would agree by luck with a shared generator
        for row, sample in zip(together, alone, strict=False):
            assert torch.equal(row, sample)


def test_samples_differ_in_their_padding_and_in_the_steps_that_they_skip() -> None:
    ctx = Context(batch=2)
    with torch.no_grad():
        text = steps.encode_text(ctx, steps.load_denoiser(ctx)[0], range(2))
    assert text.keep is not None

    decisions = semantics.denoised(ctx, range(2))[1]

    kept = text.keep.sum(dim=1).tolist()
    assert kept[0] != kept[1]
    assert max(kept) < sizes.TEXT_TOKENS
    assert decisions[0] != decisions[1]
    assert all(row[0] for row in decisions)
    assert not all(decisions[1])


def test_a_healthy_demo_passes_every_check_of_its_own(tmp_path: Path) -> None:
    checks = run_checks(DEMO, Context(batch=2, folder=str(tmp_path)))

    assert [check.name for check in checks] == ["noise", "mask", "decisions", "parity"]
    assert all(check.ok for check in checks), checks
    assert semantics_name(DEMO.semantics) == "independent"


@pytest.mark.parametrize(
    ("fault", "check", "failure", "harmless_alone"),
    [
        (DemoFault.DROP_TEXT_MASK, "mask", Failure.MASK_DROPPED, False),
        (DemoFault.SHARED_GENERATOR, "noise", Failure.NOISE_SHARED, True),
        (DemoFault.SHARED_SKIP, "decisions", Failure.DECISION_SHARED, True),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_fault_of_meaning_fails_the_check_that_looks_for_it_first(
    fault: DemoFault, check: str, failure: Failure, harmless_alone: bool, seed: int
) -> None:
    alone = run_checks(DEMO, Context(batch=1, fault=fault, seed=seed))
    together = run_checks(DEMO, Context(batch=2, fault=fault, seed=seed))

    assert all(found.ok for found in alone) is harmless_alone
    first = next(found for found in together if found.ok is False)
    assert (first.name, first.failure, first.phase) == (check, failure, "denoise")


def test_a_shared_draw_or_decision_is_far_beyond_the_tolerance_of_the_parity_check() -> None:
    for fault in (DemoFault.SHARED_GENERATOR, DemoFault.SHARED_SKIP):
        checks = run_checks(DEMO, Context(batch=2, fault=fault))
        parity = next(check for check in checks if check.name == "parity")
        assert parity.ok is False
        assert parity.measured is not None
        assert parity.measured > 100 * DEMO.semantics.tolerance  # type: ignore[union-attr]


def test_the_cache_of_the_probe_has_the_bytes_of_the_arithmetic() -> None:
    ctx = Context(batch=2)
    cache = KeyValueCache()
    with torch.no_grad():
        encoder, model = steps.load_denoiser(ctx)
        text = steps.encode_text(ctx, encoder, range(2))
        model(steps.draw_noise(ctx, range(2)), 0.5, text, cache)

    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for pair in cache.layers
        for tensor in pair
    }

    assert sum(storages.values()) == sizes.kv_cache_bytes(2) == 2 << 20


def test_declared_and_counted_flops_agree_within_a_tenth() -> None:
    flops = side_by_side(DEMO, Context(device="meta"))

    assert flops.disagreement_fraction is not None, flops.detail
    assert abs(flops.disagreement_fraction) < DISAGREEMENT


def test_every_fault_is_declared_and_none_strikes_in_a_preflight() -> None:
    assert set(FAULTS) == set(DemoFault) == set(DEMO.faults)
    for fault in DemoFault:
        assert faults.strikes(Context(fault=fault), fault)
        assert not faults.strikes(Context(fault=fault, pass_name=Pass.PREFLIGHT), fault)
        assert not faults.strikes(Context(), fault)
