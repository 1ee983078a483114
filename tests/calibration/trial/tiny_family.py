"""A tiny family with real phases, and everything that can go wrong in one as a fault."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from fleetcraft.calibration import NoiseCheck, family
from fleetcraft.calibration.trial.context import Context

PHASES = ("load", "denoise", "backward1", "step1", "probe", "write")
WIDTH = 64
KV_BYTES = 4096 * 4
_HOARD: list[torch.Tensor] = []


def draw(ctx: Context, samples):
    if ctx.fault == "shared_noise":
        return torch.randn(len(samples), 32, generator=torch.Generator().manual_seed(ctx.seed))
    return ctx.noise_for(samples, (32,))


@family("tiny", kind="train", requires=PHASES, checks=(NoiseCheck(draw=draw),))
def cycle(ctx: Context, batch: int) -> None:
    with ctx.phase("load"):
        model = ctx.own("model", nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()).to(ctx.device))
        optimizer = ctx.own("optimizer", torch.optim.AdamW(model.parameters()))
    with ctx.phase("denoise", grad=False), torch.set_grad_enabled(ctx.fault == "no_no_grad"):
        latents = ctx.own("latents", ctx.noise((16, WIDTH)))
        for step in range(2):
            latents = latents - 0.1 * model(latents)
            ctx.progress(step + 1, 2)
        ctx.own("latents", latents)
        strike(ctx)
    with ctx.phase("backward1"):
        model(latents.detach()).square().mean().backward()
    with ctx.phase("step1"):
        optimizer.step()
        optimizer.zero_grad()
    with ctx.phase("probe", releases=("probe.kv",)):
        cache = ctx.own("probe.kv", torch.zeros(batch, 4096))
        if ctx.fault != "leak_kv":
            del cache
    with ctx.phase("write"):
        ctx.save(latents.detach(), "latents.pt")
        if ctx.fault == "empty_file":
            Path(ctx.path("own.bin")).touch()


def strike(ctx: Context) -> None:
    """What happens inside the denoise phase."""
    match ctx.fault:
        case "raise":
            raise ValueError("the family's own mistake")
        case "host_alloc":
            torch.empty(1 << 60)
        case "exit":
            sys.exit("enough")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "values":
            float(torch.zeros(1).sum())
        case "hoard":
            _HOARD.append(torch.ones(64 << 10))
        case "one_dies":
            wait = "import time; print('step 1', flush=True); time.sleep(60)"
            die = "print('step 690', flush=True); raise SystemExit(3)"
            commands = {"drafter0": [sys.executable, "-c", wait],
                        "drafter1": [sys.executable, "-c", die]}  # fmt: skip
            with ctx.participants(commands):
                pass


@family("tiny/open", requires=("load",))
def never_ends(ctx: Context, batch: int) -> None:
    ctx.begin("load")


@family("tiny/typo", requires=("load",))
def releases_nobody(ctx: Context, batch: int) -> None:
    with ctx.phase("load", releases=("probe.kw",)):
        ctx.own("probe.kv", torch.zeros(4))
