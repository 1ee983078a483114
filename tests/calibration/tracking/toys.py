"""Small models whose memory is looked at: a transformer that trains, a decoder, a deep nest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from fleetcraft.calibration.tracking.autograd import SavedTensors
from fleetcraft.calibration.tracking.ledger import Ledger

KIB = 1024


def floats(kib: int) -> Tensor:
    """A new tensor of so many KiB."""
    return torch.zeros(kib * KIB // 4)


@contextmanager
def tracking(budget_bytes: int | None = None) -> Iterator[Ledger]:
    """A ledger and its hooks, as a trial has them."""
    ledger = Ledger("cpu", budget_bytes)
    with ledger, SavedTensors(ledger):
        yield ledger


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        heads = self.heads(self.norm(tokens)).view(batch, count, 3, 4, width // 4)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        tokens = tokens + mixed.transpose(1, 2).reshape(batch, count, width)
        return tokens + self.mlp(tokens)


def transformer(layers: int = 2, width: int = 64) -> nn.Module:
    return nn.Sequential(*[Layer(width) for _ in range(layers)])


def decoder(channels: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(channels, channels, 3, padding=1),
        nn.SiLU(),
        nn.Upsample(scale_factor=(1, 2, 2)),
        nn.Conv3d(channels, 3, 3, padding=1),
        nn.Tanh(),
    )


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    optimizer.zero_grad()
    model(tokens).square().mean().backward()
    optimizer.step()


class Nest(nn.Module):
    """A linear layer below so many modules, each holding the next."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner: nn.Module = Nest(depth - 1) if depth else nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return inner
