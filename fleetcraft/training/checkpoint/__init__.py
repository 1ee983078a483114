"""Checkpoints: completed save boundaries, kinds that are computed, verification by name.

`store` is where to begin. `torch_state` and `distributed` write and load the state of a trainer,
`claims` and `resuming` hold done tasks to their declared end. Names are loaded at their first use.
Invariant: nothing here loads torch before a state is saved or loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetcraft.training.checkpoint.distributed import load_distributed as load_distributed
    from fleetcraft.training.checkpoint.distributed import save_distributed as save_distributed
    from fleetcraft.training.checkpoint.kinds import PLAIN_RUN as PLAIN_RUN
    from fleetcraft.training.checkpoint.records import Kind as Kind
    from fleetcraft.training.checkpoint.records import Level as Level
    from fleetcraft.training.checkpoint.records import Manifest as Manifest
    from fleetcraft.training.checkpoint.records import Part as Part
    from fleetcraft.training.checkpoint.store import CheckpointStore as CheckpointStore
    from fleetcraft.training.checkpoint.torch_state import load_state as load_state
    from fleetcraft.training.checkpoint.torch_state import save_state as save_state

_HOME = {
    "PLAIN_RUN": "kinds",
    "CheckpointStore": "store",
    "Kind": "records",
    "Level": "records",
    "Manifest": "records",
    "Part": "records",
    "load_distributed": "distributed",
    "load_state": "torch_state",
    "save_distributed": "distributed",
    "save_state": "torch_state",
}
__all__ = [
    "PLAIN_RUN",
    "CheckpointStore",
    "Kind",
    "Level",
    "Manifest",
    "Part",
    "load_distributed",
    "load_state",
    "save_distributed",
    "save_state",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
