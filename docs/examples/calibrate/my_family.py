"""A family of your own: how one clip is made, so that its batch can be calibrated.

    fleetcraft calibrate run my_family.py:cycle --batches 1,2,4

The cycle is your ordinary code, cut into phases. Put whatever a real run does into it, the saving
and writing too: what is not in the cycle is not measured.
"""

from __future__ import annotations

import torch
from torch import nn

from fleetcraft.calibration import Independent, NoiseCheck, family

LATENT = (8, 4, 16, 16)  # channels, frames, height, width of one sample
STEPS = 6


def load(device: str) -> tuple[nn.Module, nn.Module]:
    """Your checkpoint goes here; this denoiser and this decoder have random weights."""
    with torch.device(device):
        denoiser = nn.Sequential(
            nn.Conv3d(8, 32, 3, padding=1), nn.SiLU(), nn.Conv3d(32, 8, 3, padding=1)
        )
        decoder = nn.Sequential(
            nn.Conv3d(8, 3, 3, padding=1), nn.Upsample(scale_factor=(4, 4, 4)), nn.Sigmoid()
        )
    return denoiser, decoder


def denoise(denoiser: nn.Module, latents: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS):
        latents = latents - denoiser(latents) / STEPS
    return latents


def noise(ctx, samples) -> torch.Tensor:
    # One generator a sample: the noise of sample 3 is the same alone and in any batch.
    return ctx.noise_for(samples, LATENT)


@torch.no_grad()
def latents_of(ctx, samples) -> torch.Tensor:
    # Called with a whole batch and with each sample alone; the results must agree.
    torch.manual_seed(0)
    denoiser, _ = load(ctx.device)
    return denoise(denoiser, noise(ctx, samples))


@family(
    key="my-clips/16f/6step",
    kind="infer",
    requires=("load", "denoise", "decode", "score", "write"),
    semantics=Independent(parity=latents_of, tolerance=1e-4),
    checks=(NoiseCheck(draw=noise),),
    # Whatever changes memory, speed or output: the frozen batch holds for this and nothing else.
    identity={"model": "my-clips", "revision": "1", "dtype": "fp32", "vae_tiling": False},
)
def cycle(ctx, batch: int) -> None:
    with ctx.phase("load"):
        denoiser, decoder = load(ctx.device)
        ctx.own("denoiser", denoiser)  # so that a report can say whose the bytes are
        ctx.own("decoder", decoder)
    # grad=False is a promise that is checked: nothing may be kept for a backward pass.
    with ctx.phase("denoise", grad=False), torch.no_grad():
        latents = ctx.own("latents", denoise(denoiser, noise(ctx, ctx.samples)))
    with ctx.phase("decode", grad=False), torch.no_grad():
        pixels = ctx.own("pixels", decoder(latents).permute(0, 2, 3, 4, 1))  # [B, T, H, W, 3]
    with ctx.phase("score", grad=False), torch.no_grad():
        ctx.save({"brightness": pixels.mean(dim=(1, 2, 3, 4))}, "scores.pt")
    with ctx.phase("write"):
        ctx.write_video(pixels, encoder="h264-sdr-v1", fps=16)
