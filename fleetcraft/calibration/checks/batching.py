"""What batching must not change: a sample's noise, its decisions, its output.

Each is computed for all samples of a batch together and for each sample alone, from the same
state, and compared. Invariant: noise and decisions are compared for exact equality; only an output
may have a declared tolerance, and what was found is told even when it is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Draw = Callable[[Sequence[int]], Any]
# On CPU a generator fills up to this many elements one by one, and more of them in blocks: a batch
# drawn from one generator then still agrees with single draws, by luck. Source: seen with torch
# 2.13, 3 elements a sample agree and 8 do not; torch fills in blocks from 16 elements on.
FEW_ELEMENTS = 16


def noise_difference(draw: Draw, samples: Sequence[int]) -> tuple[int | None, str]:
    """Whether a sample's noise depends on what it is batched with.

    Args:
        draw: ``draw(samples)`` gives [len(samples), ...], from the same state at each call.
        samples: Sample numbers, at least one.

    Returns:
        The first sample that differs (None when none does), and one sentence.
    """
    together = _rows(draw(samples), len(samples), "draw")
    seen: list[torch.Tensor] = []
    for place, sample in enumerate(samples):
        alone = _rows(draw([sample]), 1, "draw")[0]
        if not torch.equal(together[place], alone):
            return sample, (
                f"the noise of sample {sample} differs from what it draws alone: "
                "samples of a batch share a generator"
            )
        if any(torch.equal(alone, other) for other in seen):
            return sample, f"the noise of sample {sample} is that of another sample"
        seen.append(alone)
    few = together[0].numel() <= FEW_ELEMENTS
    note = f"; with {together[0].numel()} elements a sample this shows little" if few else ""
    return None, f"{len(samples)} samples draw in a batch what they draw alone{note}"


def decision_difference(decide: Draw, samples: Sequence[int]) -> tuple[int | None, str]:
    """Whether a sample decides otherwise in a batch than alone; as `noise_difference`."""
    together = [_plain(row) for row in decide(samples)]
    if len(together) != len(samples):
        return samples[0], f"{len(together)} rows of decisions for {len(samples)} samples"
    for place, sample in enumerate(samples):
        alone = [_plain(row) for row in decide([sample])]
        if alone != [together[place]]:
            return sample, (
                f"sample {sample} decides {_shown(together[place])} in a batch of {len(samples)} "
                f"and {_shown(alone[0] if alone else [])} alone: samples share a decision"
            )
    return None, f"{len(samples)} samples decide in a batch as they do alone"


def output_difference(
    compute: Draw, samples: Sequence[int], tolerance: float
) -> tuple[int | None, float, str]:
    """How far a sample's output in a batch is from what it is alone.

    Returns:
        The first sample beyond the tolerance (None when none is), the largest absolute difference
        found (NaN where something is not finite), and one sentence.
    """
    together = _rows(compute(samples), len(samples), "parity").float()
    worst, beyond = 0.0, None
    for place, sample in enumerate(samples):
        alone = _rows(compute([sample]), 1, "parity")[0].float()
        difference = (together[place] - alone).abs().max().item() if alone.numel() else 0.0
        if not math.isfinite(difference):
            return sample, math.nan, f"the output of sample {sample} is not finite"
        worst = max(worst, difference)
        if difference > tolerance and beyond is None:
            beyond = sample
    said = f"outputs of {len(samples)} samples differ from single ones by at most {worst:g}"
    return beyond, worst, f"{said}, allowed is {tolerance:g}"


def _rows(found: Any, count: int, what: str) -> torch.Tensor:
    if not isinstance(found, torch.Tensor) or found.dim() < 1 or found.shape[0] != count:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise TypeError(f"{what} gave {shape} for {count} samples, expected [{count}, ...]")
    return found.detach().cpu()


def _plain(row: Any) -> list[Any]:
    return row.tolist() if isinstance(row, torch.Tensor) else list(row)


def _shown(row: list[Any]) -> str:
    text = ", ".join(str(int(item) if isinstance(item, bool) else item) for item in row[:12])
    return f"[{text}{', ...' if len(row) > 12 else ''}]"
