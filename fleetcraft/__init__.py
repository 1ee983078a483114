"""Fleetcraft keeps the GPUs of a Slurm allocation honestly busy.

The public Python API is small: `Spool` and the records it takes and gives. Names are loaded when
they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetcraft.errors import FleetError as FleetError
    from fleetcraft.layout import Lane as Lane
    from fleetcraft.layout import State as State
    from fleetcraft.spool.directives import TaskSpec as TaskSpec
    from fleetcraft.spool.record import HistoryLine as HistoryLine
    from fleetcraft.spool.record import Outcome as Outcome
    from fleetcraft.spool.store import Spool as Spool
    from fleetcraft.telemetry.forward_log import report_forward as report_forward
    from fleetcraft.training.progress.writing import progress_phase as progress_phase
    from fleetcraft.training.progress.writing import report_progress as report_progress

__version__ = "0.1.0"
__all__ = [
    "FleetError",
    "HistoryLine",
    "Lane",
    "Outcome",
    "Spool",
    "State",
    "TaskSpec",
    "progress_phase",
    "report_forward",
    "report_progress",
]

_HOME = {
    "FleetError": "fleetcraft.errors",
    "HistoryLine": "fleetcraft.spool.record",
    "Lane": "fleetcraft.layout",
    "Outcome": "fleetcraft.spool.record",
    "Spool": "fleetcraft.spool.store",
    "State": "fleetcraft.layout",
    "TaskSpec": "fleetcraft.spool.directives",
    "report_forward": "fleetcraft.telemetry.forward_log",
    "progress_phase": "fleetcraft.training.progress.writing",
    "report_progress": "fleetcraft.training.progress.writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fleetcraft' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
