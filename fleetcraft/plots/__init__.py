"""Figures: records in, a picture out.

This is the only package that imports matplotlib, and it does so when a name is first used. It
never walks a directory and computes nothing. Invariant: a picture is complete under its name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetcraft.plots.controller import plot_controller
    from fleetcraft.plots.family_mfu import plot_family_mfu
    from fleetcraft.plots.fleet import plot_fleet
    from fleetcraft.plots.sweep import SweepRow, plot_sweep

__all__ = ["SweepRow", "plot_controller", "plot_family_mfu", "plot_fleet", "plot_sweep"]

_HOME = {
    "SweepRow": "sweep",
    "plot_controller": "controller",
    "plot_family_mfu": "family_mfu",
    "plot_fleet": "fleet",
    "plot_sweep": "sweep",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
