"""Calibration: whole cycles measured, every peak with its owners, a batch chosen for a reason.

What a family is comes with this package; nothing here imports torch by being imported.
How it fits together is in docs/calibration.md. Invariant: the process that judges a trial never
initialises the device, and a trial never shares a process with another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# Loaded at once, unlike the rest: `family` is both this function and its module, and whoever is
# bound last wins.
from fleetcraft.calibration.family import (
    DecisionCheck,
    DiT,
    Family,
    Fault,
    Independent,
    MaskCheck,
    NoiseCheck,
    SharedDecision,
    Unknown,
    family,
    find_family,
)

if TYPE_CHECKING:
    from fleetcraft.calibration.frozen import frozen_batch as frozen_batch

_HOME = {"frozen_batch": "frozen"}
__all__ = [
    "DecisionCheck",
    "DiT",
    "Family",
    "Fault",
    "Independent",
    "MaskCheck",
    "NoiseCheck",
    "SharedDecision",
    "Unknown",
    "family",
    "find_family",
    "frozen_batch",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
