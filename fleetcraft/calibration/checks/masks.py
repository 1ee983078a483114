"""The poison-key test: whatever stands under a padding mask must not change attention's output.

No reference backend and no tolerance: padded keys and values are set to 1,000, and the output is
compared with itself. Invariant: attention that ignores its mask, its keys or its values fails; only
exact equality passes.
"""

from __future__ import annotations

import math

import msgspec
import torch

from fleetcraft.calibration.checks.sdpa import Attend

# Source: seen to move the output by about as much when the mask is dropped, by 0 when it is kept.
POISON = 1e3


class Poisoned(msgspec.Struct, frozen=True, kw_only=True):
    """What poisoning did.

    Attributes:
        change: Largest absolute change of the output; NaN where it is not finite. Exactly 0 when
            the mask is kept.
        heeds_keys: Whether a change of a key that is kept changes the output at all.
        ok: Both as they must be.
    """

    change: float
    heeds_keys: bool

    @property
    def ok(self) -> bool:
        """Whether the mask holds."""
        return self.change == 0.0 and self.heeds_keys

    def sentence(self) -> str:
        """What was found, with the number."""
        if self.ok:
            return "poisoned padding changed the output by exactly 0"
        if self.change != 0.0:
            return (
                f"poisoned padding (keys and values of {POISON:g}) changed the output by "
                f"{self.change:g}, expected exactly 0: the key-padding mask is dropped on the way"
            )
        return "a change of a key that is kept changed nothing: this is no attention over its keys"


def poison_parity(
    attend: Attend,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    batch: int = 2,
    heads: int = 2,
    queries: int = 8,
    keys: int = 16,
    width: int = 16,
    seed: int = 0,
) -> Poisoned:
    """Runs attention with clean and with poisoned padding.

    Args:
        attend: ``attend(query, key, value, keep)``; see `fleetcraft.calibration.MaskCheck`.
        device: Where.
        dtype: Of queries, keys and values.
        batch: Samples B; each has another length.
        heads: H.
        queries: Q.
        keys: K, at least 2.
        width: D.
        seed: Of the random numbers.

    Returns:
        What changed.
    """
    source = torch.Generator().manual_seed(seed)

    def draw(length: int) -> torch.Tensor:
        drawn = torch.randn(batch, heads, length, width, generator=source)
        return drawn.to(device=device, dtype=dtype)

    query, key, value = draw(queries), draw(keys), draw(keys)
    # The first sample has the most padding, and no sample is without any.
    lengths = torch.tensor([1 + (keys - 2) * (i + 1) // batch for i in range(batch)])
    keep = (torch.arange(keys)[None, :] < lengths[:, None]).to(device)
    padding = ~keep[:, None, :, None]
    with torch.no_grad():
        clean = attend(query, key, value, keep)
        poisoned = attend(
            query, key.masked_fill(padding, POISON), value.masked_fill(padding, POISON), keep
        )
        moved = value.clone()
        moved[:, :, 0] += 1.0
        heeds = not torch.equal(attend(query, key, moved, keep), clean)
    difference = (poisoned.float() - clean.float()).abs().max().item()
    return Poisoned(change=difference if math.isfinite(difference) else math.nan, heeds_keys=heeds)
