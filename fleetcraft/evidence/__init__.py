"""Evidence: what a reported number rests on, in a form that anybody can check again.

`records` has what the rooms share. `files`: manifests, archives, bags. `results`: what tasks append
(through `appending`), arms, comparisons. `release`: grids and gates. `tracing`: from a figure back
to its logs, and reruns. Invariant: every verdict names the level at which it was verified, and
what could not be read is unknown, never right and never wrong.

For programs: `append` records a result, `stamp` writes beside a file what it was made from. Both
are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetcraft.evidence.appending import append as append
    from fleetcraft.evidence.tracing.origins import stamp as stamp

__all__ = ["append", "stamp"]

_HOME = {"append": "fleetcraft.evidence.appending", "stamp": "fleetcraft.evidence.tracing.origins"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fleetcraft.evidence' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
