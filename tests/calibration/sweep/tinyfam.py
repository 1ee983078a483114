"""A tiny real family: a megabyte of float32 a sample, and a variant that keeps its latents."""

from __future__ import annotations

from typing import Any

import torch

from fleetcraft.calibration import Independent, NoiseCheck, family

ELEMENTS = 1 << 18
_kept: list[Any] = []


def draw(ctx, samples):
    return ctx.noise_for(samples, (ELEMENTS,))


def work(ctx, batch: int) -> torch.Tensor:
    with ctx.phase("load"):
        weight = ctx.own("weight", torch.ones(ELEMENTS))
    with ctx.phase("denoise", grad=False), torch.no_grad():
        latents = ctx.own("latents", ctx.noise((ELEMENTS,), batch))
        for _ in range(3):
            latents = latents * weight
    with ctx.phase("save"):
        ctx.save(latents.sum(dim=1), "sums.pt")
    return latents


CHECKED = {
    "semantics": Independent(parity=lambda ctx, samples: draw(ctx, samples) * 2),
    "checks": (NoiseCheck(draw=draw),),
    "requires": ("load", "denoise", "save"),
    "patience_s": 60.0,
}


@family("tiny/plain", **CHECKED)
def plain(ctx, batch):
    work(ctx, batch)


@family("tiny/keeps", **CHECKED)
def keeps(ctx, batch):
    _kept.append(work(ctx, batch))
