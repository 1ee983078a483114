"""What the demo lets the harness check: its noise, its mask, its decisions, its output, its FLOPs.

Each calls what the cycle calls, so that a fault in the cycle is a fault here. Invariant: no state
is carried from one call to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fleetcraft.calibration.families.demo import sizes, steps
from fleetcraft.calibration.families.demo.model import Text, VideoTransformer, masked_attention

if TYPE_CHECKING:
    from fleetcraft.calibration.trial.context import Context


def attend(ctx: Context, query: Tensor, key: Tensor, value: Tensor, keep: Tensor) -> Tensor:
    """The transformer's attention to the text."""
    return masked_attention(query, key, value, steps.heeded(ctx, keep))


@torch.no_grad()
def denoised(ctx: Context, samples: Sequence[int]) -> tuple[Tensor, list[list[bool]]]:
    """Latents of some samples, and which of their steps were computed."""
    encoder, model = steps.load_denoiser(ctx)
    text = steps.encode_text(ctx, encoder, samples)
    return steps.denoise(ctx, model, text, steps.draw_noise(ctx, samples))


@torch.no_grad()
def run_forwards(ctx: Context) -> None:
    """All forwards of one sample's cycle, no step skipped, without weights or values."""
    with torch.device(ctx.device):
        model = VideoTransformer()
        latents = torch.zeros(1, *sizes.LATENT_SHAPE)
        text = Text(
            states=torch.zeros(1, sizes.TEXT_TOKENS, sizes.WIDTH),
            keep=torch.ones(1, sizes.TEXT_TOKENS, dtype=torch.bool),
            motion=torch.ones(1),
        )
    for _ in range(sizes.forwards()):
        model(latents, 0.5, text)
