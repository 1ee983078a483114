"""Locks: who decides for a folder, and files that are published once.

`generation` is the lock, `holder` who owns it, `publishing` the one durable act under it.
"""

from __future__ import annotations

from fleetcraft.locks.generation import (
    GenerationLock,
    Held,
    LockHeldError,
    LockLostError,
    LockUnknownError,
)
from fleetcraft.locks.holder import Holder, Judge, lives_here, read_holder
from fleetcraft.locks.publishing import put_if_absent

__all__ = [
    "GenerationLock",
    "Held",
    "Holder",
    "Judge",
    "LockHeldError",
    "LockLostError",
    "LockUnknownError",
    "lives_here",
    "put_if_absent",
    "read_holder",
]
