"""What the demo does with its modules: encode, denoise, decode, train, probe, write.

Each function is the work of one phase; the phases are opened in the cycle. Faults that are a wrong
line of code stand at that line. Invariant: a sample's noise, decisions and latents depend on its
own number alone, whatever it is batched with.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fleetcraft.calibration.families.demo import drafter, faults, sizes
from fleetcraft.calibration.families.demo.faults import DemoFault, strikes
from fleetcraft.calibration.families.demo.model import (
    Decoder,
    KeyValueCache,
    Scorer,
    Text,
    TextEncoder,
    VideoTransformer,
    initialise,
)

if TYPE_CHECKING:
    from fleetcraft.calibration.trial.context import Context

M = TypeVar("M", bound=nn.Module)
PROMPTS = (
    ("a horse gallops along the beach while waves break behind it", 1.0),
    ("a still lake at dawn", 0.25),
    ("snow falls on a quiet street with one lamp", 0.15),
    ("two children run after a kite over a wide green hill in late summer", 0.75),
)
"""What is asked for, and how much it moves (0 to 1); sample i has prompt i modulo their number."""
TRAINING_TIMES = (0.3, 0.7)
"""At which time, from 0 (video) to 1 (noise), each of the two updates is trained."""
ENCODER = "h264-sdr-v1"


@dataclass(kw_only=True)
class Parts:
    """What `load` makes: the modules and the optimizer of the transformer."""

    text_encoder: TextEncoder
    model: VideoTransformer
    decoder: Decoder
    scorer: Scorer
    optimizer: torch.optim.Optimizer


def no_grad(ctx: Context, unless: DemoFault | None = None) -> AbstractContextManager[Any]:
    """No tensor is kept for a backward pass, unless the fault is asked for."""
    asked = unless is not None and ctx.fault == unless
    return nullcontext() if asked else torch.no_grad()


def load(ctx: Context) -> Parts:
    """Makes all modules, with weights drawn from the run's seed."""
    if strikes(ctx, DemoFault.PIDS_LIMIT):
        faults.read_with_threads()
    model = ctx.own("model", _made(ctx, VideoTransformer))
    # One parameter at a time: the update of all at once would need as much memory again, and the
    # peak of a step would hide what the second backward needs.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return Parts(
        text_encoder=ctx.own("text_encoder", _made(ctx, TextEncoder).requires_grad_(False)),
        model=model,
        decoder=ctx.own("decoder", _made(ctx, Decoder).requires_grad_(False)),
        scorer=ctx.own("scorer", _made(ctx, Scorer).requires_grad_(False)),
        optimizer=ctx.own("optimizer", optimizer),
    )


def load_denoiser(ctx: Context) -> tuple[TextEncoder, VideoTransformer]:
    """What denoising needs, as the checks load it."""
    return _made(ctx, TextEncoder), _made(ctx, VideoTransformer)


def _made(ctx: Context, kind: type[M]) -> M:
    with torch.device(ctx.device):
        module = kind()
    initialise(module, ctx.seed)
    return module


def encode_text(ctx: Context, encoder: TextEncoder, samples: Sequence[int]) -> Text:
    """The prompts of some samples, padded to the same length whatever they are batched with."""
    chosen = [PROMPTS[sample % len(PROMPTS)] for sample in samples]
    tokens = torch.tensor([_tokens(prompt) for prompt, _ in chosen], device=ctx.device)
    motion = torch.tensor([moves for _, moves in chosen], device=ctx.device)
    return Text(states=encoder(tokens), keep=heeded(ctx, tokens != 0), motion=motion)


def _tokens(prompt: str) -> list[int]:
    words = prompt.split()[: sizes.TEXT_TOKENS]
    numbers = [1 + zlib.crc32(word.encode()) % (sizes.VOCABULARY - 1) for word in words]
    return numbers + [0] * (sizes.TEXT_TOKENS - len(numbers))


def heeded(ctx: Context, keep: Tensor) -> Tensor | None:
    """The mask of the text's tokens as attention gets it."""
    return None if ctx.fault == DemoFault.DROP_TEXT_MASK else keep


def draw_noise(ctx: Context, samples: Sequence[int]) -> Tensor:
    """The noise that some samples start from: [B, C, T, H, W]."""
    if ctx.fault == DemoFault.SHARED_GENERATOR:
        shape = (len(samples), *sizes.LATENT_SHAPE)
        return torch.randn(shape, generator=ctx.generator(samples[0])).to(ctx.device)
    return ctx.noise_for(samples, sizes.LATENT_SHAPE)


def denoise(
    ctx: Context, model: VideoTransformer, text: Text, noise: Tensor
) -> tuple[Tensor, list[list[bool]]]:
    """Follows the velocity from noise to latents, skipping steps in which a sample hardly moved.

    Args:
        ctx: Of the trial.
        model: The transformer.
        text: Encoded prompts of B samples.
        noise: [B, C, T, H, W].

    Returns:
        Latents [B, C, T, H, W], and for each sample which of its steps were computed.
    """
    latents, velocity, seen = noise, torch.zeros_like(noise), noise
    decisions: list[list[bool]] = [[] for _ in range(len(noise))]
    for step in range(sizes.STEPS):
        computed = _computed(ctx, latents, seen, text.motion, first=step == 0)
        for sample, choice in zip(decisions, computed, strict=True):
            sample.append(choice)
        time = 1 - step / sizes.STEPS
        if all(computed):
            velocity, seen = model(latents, time, text), latents
        elif any(computed):
            rows = torch.tensor([i for i, c in enumerate(computed) if c], device=noise.device)
            velocity = velocity.index_copy(0, rows, model(latents[rows], time, text.of(rows)))
            seen = seen.index_copy(0, rows, latents[rows])
        latents = latents - velocity / sizes.STEPS
    return latents, decisions


def _computed(
    ctx: Context, latents: Tensor, seen: Tensor, motion: Tensor, *, first: bool
) -> list[bool]:
    """For each sample whether its next step is computed."""
    count = len(latents)
    if first or ctx.is_preflight:  # fake tensors have no values: the longest path needs the most
        return [True] * count
    # Sample by sample: the order of a sum over a batch could depend on its size.
    pairs = zip(latents, seen, strict=True)
    moved = torch.stack([(now - then).abs().mean() / then.abs().mean() for now, then in pairs])
    signal = moved * motion
    if ctx.fault == DemoFault.SHARED_SKIP:
        signal = signal.mean().expand(count)
    return [value > sizes.MOVES_ENOUGH for value in signal.tolist()]


def decode(ctx: Context, decoder: Decoder, latents: Tensor) -> Tensor:
    """Latents to pixels [B, T, H, W, 3] in [0, 1]."""
    if strikes(ctx, DemoFault.KILL_IN_DECODE):
        faults.kill_this_process()
    pixels: Tensor = decoder(latents).permute(0, 2, 3, 4, 1)
    if strikes(ctx, DemoFault.FP32_HOST_STAGING):
        _stage_on_host(pixels)
    return pixels


def _stage_on_host(pixels: Tensor) -> Tensor:
    """Loops the clip to a long one in host memory, in fp32 where bytes would do."""
    frames = pixels.float().cpu()
    pieces = [frames.clone() for _ in range(faults.LONG_CLIP_FRAMES // sizes.FRAMES)]
    return torch.cat(pieces, dim=1)


def score(ctx: Context, scorer: Scorer, pixels: Tensor) -> Tensor:
    """One score a sample [B]."""
    if strikes(ctx, DemoFault.STALL):
        faults.wait_for_ever()
    scores: Tensor = scorer(pixels.permute(0, 4, 1, 2, 3))
    return scores


def backward(
    ctx: Context, model: VideoTransformer, text: Text, latents: Tensor, time: float
) -> None:
    """Forward and backward of a flow-matching loss on the latents."""
    if strikes(ctx, DemoFault.PARTIAL_RANK):
        run_drafters(ctx)
    with torch.no_grad():
        noise = ctx.noise(sizes.LATENT_SHAPE, len(latents))
        noisy, target = (1 - time) * latents + time * noise, noise - latents
    loss = functional.mse_loss(model(noisy, time, text), target)
    torch.autograd.backward(loss)


def run_drafters(ctx: Context) -> None:
    """Three processes that work beside this one; two of them die."""
    command = [sys.executable, drafter.__file__, str(faults.DRAFTER_STEPS)]
    deaths = {"drafter0": [], "drafter1": ["3"], "drafter2": ["5"]}
    with ctx.participants({name: [*command, *dies_at] for name, dies_at in deaths.items()}):
        pass  # leaving waits for all of them


def update(optimizer: torch.optim.Optimizer) -> None:
    """One optimizer step; gradients are gone afterwards."""
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def probe(ctx: Context, model: VideoTransformer, text: Text, latents: Tensor) -> Tensor:
    """How large the keys of each layer are [L]; the cache they were read from is let go."""
    cache = ctx.own("probe.kv", KeyValueCache())
    model(latents, 0.5, text, cache)
    ctx.own("probe.kv", cache)  # again, now that it is full: it is gone before the phase ends
    if strikes(ctx, DemoFault.LEAK_PROBE_KV):
        faults.keep_for_ever(cache)
    return torch.stack([key.abs().mean() for key, _ in cache.layers])


def save(ctx: Context, parts: Parts, scores: Tensor) -> None:
    """A whole checkpoint: weights, optimizer state, scores."""
    states = {
        "model": parts.model.state_dict(),
        "optimizer": parts.optimizer.state_dict(),
        "scores": scores,
    }
    ctx.save(states, "checkpoint.pt")


def write(ctx: Context, pixels: Tensor) -> None:
    """One video file a sample."""
    if strikes(ctx, DemoFault.ZERO_BYTE_ENCODER):
        faults.write_nothing(ctx)
        return
    ctx.write_video(pixels, name="sample", encoder=ENCODER, fps=sizes.FPS)
