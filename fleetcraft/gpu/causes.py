"""What the driver's codes mean to telemetry: causes, their order, throttle bits and XIDs in words.

Nothing here calls the driver. Invariant: a code that is not known is ``unknown`` and keeps its
number; it never passes for a code that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from fleetcraft.gpu.status import Status

# Source: NVML API reference, "nvmlReturn_t".
SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
UNKNOWN = 999

_STATUS = {
    0: Status.OK,
    NOT_SUPPORTED: Status.UNSUPPORTED,
    4: Status.NO_PERMISSION,
    9: Status.DRIVER_NOT_LOADED,
    TIMEOUT: Status.TIMEOUT,
    12: Status.NO_NVML,
    FUNCTION_NOT_FOUND: Status.UNSUPPORTED_DRIVER,
    15: Status.LOST,
    16: Status.RESET_REQUIRED,
    18: Status.VERSION_MISMATCH,
    25: Status.UNSUPPORTED_DRIVER,  # this version of the call's structure is not known to it
    26: Status.UNSUPPORTED_DRIVER,  # deprecated, and gone
    28: Status.ABSENT,
}

FUNCTION_MISSING = frozenset({FUNCTION_NOT_FOUND, 25, 26})
"""Codes that say this about the driver, so that asking again is useless until it is another one."""
SESSION_GONE = frozenset({1, 9, 18})
"""Codes after which only a new session can help: uninitialized, driver not loaded, mismatch."""

_WORST_FIRST = (
    Status.NO_NVML,
    Status.DRIVER_NOT_LOADED,
    Status.VERSION_MISMATCH,
    Status.LOST,
    Status.RESET_REQUIRED,
    Status.ABSENT,
    Status.TIMEOUT,
    Status.NO_PERMISSION,
    Status.UNKNOWN,
    Status.INVALID,
    Status.MIG,
    Status.UNIFIED,
    Status.UNSUPPORTED_DRIVER,
    Status.UNSUPPORTED,
    Status.OK,
)
_RANK = {status: rank for rank, status in enumerate(_WORST_FIRST)}

# Source: nvml.h, "nvmlClocksEventReasons", which drivers before 535 call throttle reasons.
_THROTTLE = (
    "gpu_idle",
    "applications_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake",
    "display_clocks",
)

# Source: NVIDIA, "XID Errors" (deploy/xid-errors), the catalog's descriptions, shortened.
_XIDS = {
    13: "graphics engine exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "preemptive cleanup",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "row remapping or page retirement recorded",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
    154: "GPU recovery action changed",
}
_XID_LOST = 79


def status_of(code: int | None) -> Status:
    """The cause that a code of NVML stands for; ``unknown`` for any other, and for no code."""
    return Status.UNKNOWN if code is None else _STATUS.get(code, Status.UNKNOWN)


def worst(causes: Iterable[Status]) -> Status:
    """The gravest of some causes, ``ok`` where there is none: the ``status`` of a row."""
    return min(causes, key=_RANK.__getitem__, default=Status.OK)


@lru_cache(maxsize=256)
def throttle_words(mask: int) -> str:
    """The bits of a throttle mask as words between plus signs; empty for 0."""
    named = [word for bit, word in enumerate(_THROTTLE) if mask >> bit & 1]
    others = [f"bit{bit}" for bit in range(len(_THROTTLE), 64) if mask >> bit & 1]
    return "+".join(named + others)


def xid_words(xid: int) -> tuple[str, Status]:
    """An XID as a line for people, and the state of the GPU that it tells of, else ``ok``."""
    meaning = _XIDS.get(xid, "")
    status = Status.LOST if xid == _XID_LOST else Status.OK
    return f"xid {xid}" + (f": {meaning}" if meaning else ""), status
