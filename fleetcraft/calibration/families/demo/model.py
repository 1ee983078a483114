"""The demo's modules: a text encoder, a video transformer, a decoder to pixels, a scorer.

Small, but built as the large ones are: padded text under a mask, modulation by time, 3D
convolutions. What is done with them is in `steps`. Invariant: weights depend on the seed alone,
so they are the same on every device and for every batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from fleetcraft.calibration.families.demo.sizes import (
    HEADS,
    LATENT_SHAPE,
    LAYERS,
    TEXT_TOKENS,
    TOKENS,
    VOCABULARY,
    WIDTH,
)


@dataclass(kw_only=True)
class Text:
    """Encoded prompts of some samples.

    Attributes:
        states: [B, K, D], padding included.
        keep: [B, K], False where a token is padding; None when nobody looks at the padding.
        motion: [B], how much each prompt moves, 0 to 1.
    """

    states: Tensor
    keep: Tensor | None
    motion: Tensor

    def of(self, rows: Tensor) -> Text:
        """The same for some rows of the batch."""
        keep = None if self.keep is None else self.keep[rows]
        return Text(states=self.states[rows], keep=keep, motion=self.motion[rows])


@dataclass(kw_only=True)
class KeyValueCache:
    """Keys and values [B, H, S, D/H] of each layer's attention to its own tokens."""

    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, keep: Tensor | None) -> Tensor:
    """Attention of query [B, H, Q, D] to key and value [B, H, K, D], where ``keep`` [B, K]."""
    mask = None if keep is None else keep[:, None, None, :]
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class TextEncoder(nn.Module):
    """Token numbers [B, K] to states [B, K, D]; token 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.empty(TEXT_TOKENS, WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """One state a token, padding included."""
        states: Tensor = self.out(self.embedding(tokens) + self.positions)
        return states


class Attention(nn.Module):
    """Attention of tokens [B, S, D] to themselves, or to a text [B, K, D]."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        # Apart from the query, so that a cache of them holds these bytes and no others.
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, tokens: Tensor, text: Text | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Attends, and leaves keys and values in the cache when there is one."""
        source = tokens if text is None else text.states
        query = _split(self.query(tokens))
        key, value = _split(self.key(source)), _split(self.value(source))
        if cache is not None:
            cache.layers.append((key, value))
        mixed = masked_attention(query, key, value, None if text is None else text.keep)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def _split(states: Tensor) -> Tensor:
    return states.view(*states.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)


class Block(nn.Module):
    """One layer: attention to itself, to the text, and an MLP; the first and last modulated."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(3))
        self.modulation = nn.Linear(WIDTH, 6 * WIDTH)
        self.attention = Attention()
        self.text_attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(
        self, tokens: Tensor, condition: Tensor, text: Text, cache: KeyValueCache | None
    ) -> Tensor:
        """Tokens [B, S, D] and condition [B, D] to tokens."""
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.modulation(
            functional.silu(condition)
        )[:, None].chunk(6, dim=2)
        own = self.attention(self.norms[0](tokens) * (1 + scale) + shift, cache=cache)
        tokens = tokens + gate * own
        tokens = tokens + self.text_attention(self.norms[1](tokens), text=text)
        mlp = self.mlp(self.norms[2](tokens) * (1 + scale_mlp) + shift_mlp)
        tokens = tokens + gate_mlp * mlp
        return tokens


class VideoTransformer(nn.Module):
    """Noisy latents to their velocity, for a time, a motion and a text."""

    def __init__(self) -> None:
        super().__init__()
        channels = LATENT_SHAPE[0]
        self.patch = nn.Linear(channels, WIDTH)
        self.positions = nn.Parameter(torch.empty(TOKENS, WIDTH))
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.out = nn.Linear(WIDTH, channels)

    def forward(
        self, latents: Tensor, time: float, text: Text, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Latents [B, C, T, H, W] at a time from 1 (noise) to 0 (video) to velocity, same shape."""
        condition = self.time(_features(time * torch.ones_like(text.motion), text.motion))
        tokens = self.patch(latents.flatten(2).transpose(1, 2)) + self.positions
        for block in self.blocks:
            tokens = block(tokens, condition, text, cache)
        velocity: Tensor = self.out(self.norm(tokens))
        velocity = velocity.transpose(1, 2).reshape(latents.shape)
        return velocity


def _features(*numbers: Tensor) -> Tensor:
    """Sines and cosines of numbers [B] at rising frequencies: [B, D]."""
    each = WIDTH // (2 * len(numbers))
    frequencies = torch.arange(each, device=numbers[0].device) * (math.log(1000.0) / each)
    angles = [number[:, None] * frequencies.exp() for number in numbers]
    return torch.cat([f(angle) for angle in angles for f in (torch.sin, torch.cos)], dim=1)


class Decoder(nn.Module):
    """Latents [B, C, T, H, W] to pixels [B, 3, 2T, 8H, 8W] in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(LATENT_SHAPE[0], 64, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=(2, 2, 2)),
            nn.Conv3d(64, 64, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=(1, 2, 2)),
            nn.Conv3d(64, 32, 3, padding=1),
            nn.SiLU(),
            nn.Upsample(scale_factor=(1, 2, 2)),
            nn.Conv3d(32, 3, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, latents: Tensor) -> Tensor:
        """Decodes all frames at once, as an untiled decoder does."""
        pixels: Tensor = self.layers(latents)
        return pixels


class Scorer(nn.Module):
    """Pixels [B, 3, T, H, W] to one score a sample [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv3d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(16, 1),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores whole clips."""
        scores: Tensor = self.layers(pixels)
        return scores[:, 0]


def initialise(module: nn.Module, seed: int) -> None:
    """Draws all weights, in the order of the parameters, from one generator on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in module.parameters():
            if weights.dim() < 2:
                weights.zero_()
            else:
                fan_in = weights.numel() // len(weights)
                weights.copy_(torch.randn(weights.shape, generator=generator) * fan_in**-0.5)
