"""The built-in demo: a toy of a text-to-video training job, whole, in about half a second on CPU.

The family and its cycle; its modules are in `model`, its work in `steps`, its faults in `faults`.
Nothing here imports torch before the cycle runs. Invariant: it runs every phase that a record
needs to be frozen, and without a fault every one of its promises holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fleetcraft.calibration.families.demo import sizes
from fleetcraft.calibration.families.demo.faults import FAULTS, DemoFault
from fleetcraft.calibration.family import (
    TRAIN_PHASES,
    DecisionCheck,
    DiT,
    Independent,
    MaskCheck,
    NoiseCheck,
    family,
)

if TYPE_CHECKING:
    from fleetcraft.calibration.trial.context import Context


def _latents(ctx: Context, samples: Sequence[int]) -> Any:
    from fleetcraft.calibration.families.demo.semantics import denoised

    return denoised(ctx, samples)[0]


def _decisions(ctx: Context, samples: Sequence[int]) -> Any:
    from fleetcraft.calibration.families.demo.semantics import denoised

    return denoised(ctx, samples)[1]


def _noise(ctx: Context, samples: Sequence[int]) -> Any:
    from fleetcraft.calibration.families.demo.steps import draw_noise

    return draw_noise(ctx, samples)


def _attend(ctx: Context, query: Any, key: Any, value: Any, keep: Any) -> Any:
    from fleetcraft.calibration.families.demo.semantics import attend

    return attend(ctx, query, key, value, keep)


def _forwards(ctx: Context) -> None:
    from fleetcraft.calibration.families.demo.semantics import run_forwards

    run_forwards(ctx)


@family(
    key="demo/tiny-dit/8f/4step",
    kind="train",
    requires=TRAIN_PHASES,
    # Not 0: the product of a single row (the time of one sample) sums in another order than that of
    # several, on a CPU too, and a GPU's kernels change with the batch. Seen on CPU: 2e-6, while a
    # shared draw or decision changes latents by more than 0.01.
    semantics=Independent(parity=_latents, tolerance=1e-4),
    identity={
        "model": "tiny-dit",
        "layers": sizes.LAYERS,
        "width": sizes.WIDTH,
        "tokens": sizes.TOKENS,
        "frames": sizes.FRAMES,
        "steps": sizes.STEPS,
        "dtype": "fp32",
        "optimizer": "adamw",
        "skip": "per sample",
        "vae_tiling": False,
    },
    flops=DiT(
        active_params=sizes.active_params(),
        layers=sizes.LAYERS,
        hidden=sizes.WIDTH,
        seq=sizes.TOKENS,
        forwards=sizes.forwards(),
        backwards=sizes.TRAINING_STEPS,
    ),
    count_flops=_forwards,
    checks=(
        NoiseCheck(draw=_noise, phase="denoise"),
        MaskCheck(attend=_attend, phase="denoise"),
        DecisionCheck(decide=_decisions, phase="denoise"),
    ),
    faults=FAULTS,
)
def cycle(ctx: Context, batch: int) -> None:
    """One whole cycle: sample clips, score them, train on them twice, probe, save, write."""
    from fleetcraft.calibration.families.demo import steps

    with ctx.phase("load"):
        parts = steps.load(ctx)
    with ctx.phase("denoise", grad=False), steps.no_grad(ctx, unless=DemoFault.NO_NO_GRAD):
        text = ctx.own("text", steps.encode_text(ctx, parts.text_encoder, ctx.samples))
        noise = ctx.own("noise", steps.draw_noise(ctx, ctx.samples))
        latents = ctx.own("latents", steps.denoise(ctx, parts.model, text, noise)[0])
    with ctx.phase("decode", grad=False), steps.no_grad(ctx):
        pixels = ctx.own("pixels", steps.decode(ctx, parts.decoder, latents))
    with ctx.phase("score", grad=False), steps.no_grad(ctx):
        scores = ctx.own("scores", steps.score(ctx, parts.scorer, pixels))
    for step, time in enumerate(steps.TRAINING_TIMES, start=1):
        with ctx.phase(f"backward{step}"):
            steps.backward(ctx, parts.model, text, latents, time)
        with ctx.phase(f"step{step}"):
            steps.update(parts.optimizer)
    with ctx.phase("probe", grad=False, releases=("probe.kv",)), steps.no_grad(ctx):
        steps.probe(ctx, parts.model, text, latents)
    with ctx.phase("save"):
        steps.save(ctx, parts, scores)
    with ctx.phase("write"):
        steps.write(ctx, pixels)
