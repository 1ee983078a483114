from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from fleetcraft.calibration import (
    DecisionCheck,
    Independent,
    MaskCheck,
    NoiseCheck,
    family,
)
from fleetcraft.calibration.checks.run import run_checks
from fleetcraft.calibration.checks.sdpa import plain_attention
from fleetcraft.calibration.records import Check, Failure
from fleetcraft.calibration.trial.context import Context
from fleetcraft.calibration.trial.journal import JournalWriter
from fleetcraft.calibration.trial.reading import read_journal


def draw(ctx: Context, samples: Sequence[int]) -> torch.Tensor:
    return ctx.noise_for(samples, (64,))


def attend(ctx: Context, *qkvm: torch.Tensor) -> torch.Tensor:
    return plain_attention(*qkvm)


def decide(ctx: Context, samples: Sequence[int]) -> torch.Tensor:
    return ctx.noise_for(samples, (32,)) > 0


def checked(ctx: Context, *checks: Any, parity: Any = draw, tolerance: float = 0.0) -> list[Check]:
    declared = family(
        "f", checks=checks, semantics=Independent(parity=parity, tolerance=tolerance)
    )(lambda ctx, batch: None)
    return run_checks(declared, ctx)


def test_a_sound_family_passes_all_four_at_every_batch() -> None:
    for batch in (1, 2, 4):
        found = checked(
            Context(batch=batch), NoiseCheck(draw=draw), MaskCheck(attend=attend),
            DecisionCheck(decide=decide),
        )  # fmt: skip

        assert [check.name for check in found] == ["noise", "mask", "decisions", "parity"]
        assert all(check.ok for check in found), found
        assert {check.phase for check in found} == {"denoise"}


def test_each_breach_has_its_own_class() -> None:
    def one_generator(ctx: Context, samples: Sequence[int]) -> torch.Tensor:
        return torch.randn(len(samples), 64, generator=ctx.generator(samples[0]))

    def no_mask(ctx: Context, q: Any, k: Any, v: Any, keep: Any) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v)

    def mean(ctx: Context, samples: Sequence[int]) -> list[list[bool]]:
        return [(draw(ctx, samples).mean(0) > 0).tolist()] * len(samples)

    def drifts(ctx: Context, samples: Sequence[int]) -> torch.Tensor:
        return draw(ctx, samples) * (1 + 0.5 * (len(samples) > 1))

    found = checked(
        Context(batch=2), NoiseCheck(draw=one_generator), MaskCheck(attend=no_mask),
        DecisionCheck(decide=mean), parity=drifts,
    )  # fmt: skip

    assert [check.ok for check in found] == [False] * 4
    assert [check.failure for check in found] == [
        Failure.NOISE_SHARED,
        Failure.MASK_DROPPED,
        Failure.DECISION_SHARED,
        Failure.SEMANTICS_CHANGED,
    ]


def test_a_check_that_breaks_has_not_passed_and_says_how() -> None:
    def breaks(ctx: Context, samples: Sequence[int]) -> torch.Tensor:
        raise ValueError("no weights")

    (noise, _) = checked(Context(batch=2), NoiseCheck(draw=breaks))

    assert noise.ok is None
    assert noise.failure is None
    assert noise.detail == "it could not be run: ValueError: no weights"


def test_each_computation_of_a_check_is_a_sign_of_life(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fleetcraft.calibration.trial.context._PROGRESS_S", 0.0)
    journal = JournalWriter(str(tmp_path / "journal.jsonl"))

    checked(Context(batch=3, journal=journal), NoiseCheck(draw=draw))

    told = [event["event"] for event in read_journal(journal.path).events]
    assert told == ["progress"] * 2 * (1 + 3)  # of noise and of parity: together, and each alone


def test_drift_within_what_was_declared_is_measured_and_passes() -> None:
    def drifts(ctx: Context, samples: Sequence[int]) -> torch.Tensor:
        return draw(ctx, samples) + 1e-3 * (len(samples) > 1)

    (parity,) = checked(Context(batch=2), parity=drifts, tolerance=0.01)

    assert parity.ok
    assert parity.measured is not None
    assert 0.0005 < parity.measured < 0.002
