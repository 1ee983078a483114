"""What the tail of an attempt's log says of its death.

Words only; which numbers they hold is `device_oom`'s. Invariant: a log that cannot be read says
nothing.
"""

from __future__ import annotations

import os
import re

_TAIL_BYTES = 64 * 1024
# torch, JAX and the CUDA runtime in their own words.
_DEVICE_OOM = re.compile(
    rb"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory"
    rb"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory"
    rb"|RESOURCE_EXHAUSTED: Out of memory"
)


def _without_waiting(path: str, flags: int) -> int:
    # A pipe that a task put there would hold its worker for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def device_ran_out(log: str) -> bool:
    """Whether the tail of a log (64 KiB) holds a device's out-of-memory error."""
    try:
        with open(log, "rb", opener=_without_waiting) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return _DEVICE_OOM.search(file.read(_TAIL_BYTES)) is not None
    except OSError:
        return False
