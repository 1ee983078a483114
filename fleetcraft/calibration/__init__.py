"""Calibration: whole cycles measured, every peak with its owners, a batch that was chosen for a reason.

The public names are loaded when they are first used; nothing here imports torch by being imported.
How it fits together is in docs/calibration.md. Invariant: the process that judges a trial never
initialises the device, and a trial never shares a process with another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetcraft.calibration.family import DecisionCheck as DecisionCheck
    from fleetcraft.calibration.family import DiT as DiT
    from fleetcraft.calibration.family import Family as Family
    from fleetcraft.calibration.family import Fault as Fault
    from fleetcraft.calibration.family import Independent as Independent
    from fleetcraft.calibration.family import MaskCheck as MaskCheck
    from fleetcraft.calibration.family import NoiseCheck as NoiseCheck
    from fleetcraft.calibration.family import SharedDecision as SharedDecision
    from fleetcraft.calibration.family import Unknown as Unknown
    from fleetcraft.calibration.family import family as family
    from fleetcraft.calibration.family import find_family as find_family

_HOME = {
    "DecisionCheck": "family",
    "DiT": "family",
    "Family": "family",
    "Fault": "family",
    "Independent": "family",
    "MaskCheck": "family",
    "NoiseCheck": "family",
    "SharedDecision": "family",
    "Unknown": "family",
    "family": "family",
    "find_family": "family",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
