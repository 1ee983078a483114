"""The protocols of the crash matrix, by module; each is imported only when it is asked for.

Not here: the protocols. A module has ``PROTOCOLS``, a tuple of `tests.crash.protocol.Protocol`.
Invariant: reading this list loads none of them, since one of them loads torch.
"""

from __future__ import annotations

MODULES: tuple[str, ...] = (
    "spool",
    "submission",
    "telemetry",
    "table",
    "locks",
    "checkpoints",
    "rollouts",
    "evidence",
)
