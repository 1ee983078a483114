"""The demo's sizes, and the arithmetic that reports are compared with.

Plain numbers, no torch; the modules that have these sizes are in `model`. Invariant: nothing here
is measured; what is computed here follows from the sizes alone.
"""

from __future__ import annotations

LAYERS = 4
WIDTH = 128
HEADS = 4
TEXT_TOKENS = 16
VOCABULARY = 512
LATENT_SHAPE = (4, 4, 8, 8)
"""Channels, frames, height and width of one sample's latent: one token a place, so 256 tokens."""
TOKENS = LATENT_SHAPE[1] * LATENT_SHAPE[2] * LATENT_SHAPE[3]
FRAMES, HEIGHT, WIDTH_PX, FPS = 8, 64, 64, 8
STEPS = 4
TRAINING_STEPS = 2
FLOAT_BYTES = 4
MOVES_ENOUGH = 0.1
"""A step is computed when the latent moved by more than this share of itself, times how much the
prompt moves, since the last one that was; otherwise the last velocity is used again."""


def active_params() -> int:
    """Weights that each latent token passes through once in a forward.

    Left out are keys and values of the text, which only the 16 text tokens pass through, and the
    modulation, which is computed once a sample.
    """
    channels = LATENT_SHAPE[0]
    own_attention, text_attention, mlp = 4 * WIDTH**2, 2 * WIDTH**2, 8 * WIDTH**2
    return LAYERS * (own_attention + text_attention + mlp) + 2 * channels * WIDTH


def forwards() -> int:
    """Forward calls of one sample's cycle when no step is skipped: denoise, training, probe."""
    return STEPS + TRAINING_STEPS + 1


def kv_cache_bytes(batch: int) -> int:
    """Bytes of the probe's cache: a key and a value of each token in each layer."""
    return LAYERS * 2 * batch * TOKENS * WIDTH * FLOAT_BYTES
