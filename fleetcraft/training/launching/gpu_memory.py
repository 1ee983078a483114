"""After a stop: whether the GPUs of this machine have given their memory back.

Not here: who holds it. Invariant: what the driver does not tell is no answer, neither free nor
held, and nobody waits for a driver without end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from fleetcraft.errors import DeviceError
from fleetcraft.gpu.nvml import visible_gpus
from fleetcraft.gpu.processes import MemoryWatch

ReadUsed = Callable[[], Mapping[str, int] | None]
"""Bytes in use by GPU; None when that cannot be told. Without an answer nothing is said."""
THRESHOLD_BYTES = 512 * 1024 * 1024
"""What a free GPU may still have in use. Source: NVRx ft_launcher waits for less than 512 MB."""
BOUND_S = 50.0
"""How long memory may take to come back. Source: NVRx ft_launcher, 50 s."""
_POLL_S = 0.5
_CALL_S = 10.0


class Freed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether GPU memory came back.

    Attributes:
        free: True, False, or None when the driver did not tell.
        seconds: How long it was waited for.
        used_bytes: What each GPU had in use at last.
        why: A sentence when it is not free.
    """

    free: bool | None
    seconds: float = 0.0
    used_bytes: dict[str, int] = {}
    why: str = ""


def wait_until_free(
    read: ReadUsed,
    *,
    before: Mapping[str, int] | None = None,
    threshold_bytes: int = THRESHOLD_BYTES,
    bound_s: float = BOUND_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Freed:
    """Waits until every GPU has little in use.

    Args:
        read: Reads them once.
        before: What was in use before the launch, by others: it may stay.
        threshold_bytes: What may be in use beyond that.
        bound_s: At most so long.
        clock: Monotonic seconds.
        sleep: Waits by that clock.
    """
    began_s = clock()
    while True:
        used = read()
        waited_s = round(clock() - began_s, 3)
        if used is None:
            return Freed(free=None, seconds=waited_s, why="the driver does not tell")
        held = {
            gpu: size
            for gpu, size in used.items()
            if size > (before or {}).get(gpu, 0) + threshold_bytes
        }
        if not held:
            return Freed(free=True, seconds=waited_s, used_bytes=dict(used))
        if waited_s >= bound_s:
            words = ", ".join(f"{gpu}: {size / 2**20:.0f} MiB" for gpu, size in held.items())
            why = f"GPU memory is still in use after {waited_s:.0f} s ({words})"
            return Freed(free=False, seconds=waited_s, used_bytes=dict(used), why=why)
        sleep(_POLL_S)


def read_used_bytes(timeout_s: float = _CALL_S) -> dict[str, int] | None:
    """What each GPU that this process may use has in use, by UUID.

    Asked from a thread of its own, since a call into a stuck driver never returns.

    Returns:
        None where there is no driver, it refuses, or it does not answer in time; a GPU of which it
        does not say is left out.
    """
    found: list[dict[str, int]] = []
    asking = threading.Thread(target=_ask, args=(found,), name="gpu memory", daemon=True)
    asking.start()
    asking.join(timeout_s)
    return found[0] if found else None


def _ask(found: list[dict[str, int]]) -> None:
    used = {}
    try:
        for uuid in visible_gpus():
            watch = MemoryWatch(uuid)
            try:
                size = watch.read().used_bytes
            finally:
                watch.close()
            if size is not None:
                used[uuid] = size
    except DeviceError:
        return
    if used:
        found.append(used)
