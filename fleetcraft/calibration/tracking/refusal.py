"""The words of an emulated out-of-memory error: torch's own, so that one reader reads both.

When it is raised is `ledger`'s. Invariant: the numbers never say that free bytes would have
sufficed: what was wanted is rounded up, what was free down.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def refusal_text(*, request_bytes: int, budget_bytes: int, live_bytes: int) -> str:
    """What `torch.OutOfMemoryError` says when a budget is the device's capacity.

    Nothing is reserved and unallocated here, so the cause reads as capacity.

    Source: the message of c10/cuda/CUDACachingAllocator.cpp since torch 2.1.
    """
    capacity, live = _size(budget_bytes, round), _size(live_bytes, math.ceil)
    free = _size(max(0, budget_bytes - live_bytes), math.floor)
    return (
        f"CUDA out of memory. Tried to allocate {_size(request_bytes, math.ceil)}. GPU 0 has a "
        f"total capacity of {capacity} of which {free} is free. Including non-PyTorch memory, "
        f"this process has {live} memory in use. Of the allocated memory {live} is allocated by "
        "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. This device is emulated: "
        "its capacity is the budget of the calibration."
    )


def _size(count: int, rounding: Callable[[float], int]) -> str:
    for unit, name in _UNITS:
        if count > unit or (count == unit and unit > 1 << 10):
            return f"{rounding(count * 100 / unit) / 100:.2f} {name}"
    return f"{count} bytes"
