"""Model FLOPs of a transformer's forward pass, and the share of a peak that they are.

Arithmetic only; which device has which peak is in `peaks`. Invariant: without a peak there is no
share, and what is assumed goes with every number.
"""

from __future__ import annotations

import math

import msgspec

from fleetcraft.errors import UsageError

TRAINING_FACTOR = 3.0
"""A training step is one forward and a backward of twice its cost; rematerialization is work that
the method chose, not the model's, and counts nothing. Source: Chowdhery et al., "PaLM" (2022),
appendix B."""
ASSUMPTIONS = (
    "FLOPs are counted, not measured: 2 x active parameters x tokens for matrix products, and "
    "4 x layers x sequence length^2 x hidden width for attention, per forward",
    "text encoders, VAEs and whatever else ran are no model FLOPs, but their time counts",
    "the peak is the dense BF16 rate of the part at its full power",
)
_TRAINING = "training counts three times the forward, without credit for rematerialization"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the FLOPs of one forward call depend on.

    Attributes:
        active_params: Parameters that each token passes through.
        tokens: Tokens that one forward call computes.
        layers: Attention layers; 0 leaves attention out.
        seq: Length over which attention runs, in tokens.
        hidden: Width of the attention, heads times head width.
        training: Whether a backward pass belongs to each forward.
    """

    active_params: float
    tokens: float
    layers: float = 0
    seq: float = 0
    hidden: float = 0
    training: bool = False


def flop_per_forward(model: Model) -> float:
    """FLOPs of one forward call, with its backward where it trains.

    For one sequence; a batched call counts as so many forwards as it has sequences.

    Returns:
        Floating-point operations, a multiply-add counted as two.

    Raises:
        UsageError: A number is negative or not finite.

    Source: the formulas of the design, which follow "PaLM", appendix B, for bidirectional
    attention: two products of seq x seq x hidden, two operations each.
    """
    products, attention = _parts(model)
    return (products + attention) * (TRAINING_FACTOR if model.training else 1.0)


def attention_fraction(model: Model) -> float | None:
    """The share of attention in the FLOPs of a forward; None when there are none at all."""
    products, attention = _parts(model)
    total = products + attention
    return attention / total if total else None


def _parts(model: Model) -> tuple[float, float]:
    for name in ("active_params", "tokens", "layers", "seq", "hidden"):
        value = getattr(model, name)
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"{name} is {value}, expected a number from 0", name=name)
    products = 2.0 * model.active_params * model.tokens
    # Not ``seq**2``, which raises where the product of floats is merely infinite.
    return products, 4.0 * model.layers * model.hidden * model.seq * model.seq


def assumptions(*, training: bool) -> tuple[str, ...]:
    """What every estimate here rests on, in words."""
    return (*ASSUMPTIONS, _TRAINING) if training else ASSUMPTIONS


def mfu(flop: float, seconds: float, peak_flop_per_s: float, gpus: int = 1) -> float | None:
    """Model FLOPs utilization.

    Args:
        flop: Model FLOPs of all GPUs together.
        seconds: Wall time.
        peak_flop_per_s: Dense peak of one GPU.
        gpus: How many shared the work.

    Returns:
        A fraction; None when there was no time, GPU or peak to share.
    """
    room = seconds * peak_flop_per_s * gpus
    return flop / room if room > 0 and math.isfinite(room) else None
