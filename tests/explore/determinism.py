"""Randomness, clocks and process facts replaced, so that an actor is a function of what it reads.

Each process counts its own tokens and record ids. Not here: any decision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from fleetcraft.identity import HostId, ProcessId
from fleetcraft.spool import claims, control, enqueue, leases, recovery
from fleetcraft.worker import attempt

HOST = HostId(host="c1", boot_id="boot", pid_namespace="pid:[1]")


class Tokens:
    """What one process would have drawn."""

    def __init__(self, actor: str) -> None:
        self._actor = actor
        self._count = 0

    def draw(self) -> str:
        self._count += 1
        return f"{self._actor}{self._count}"


current = Tokens("setup")


def _draw() -> str:
    return current.draw()


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Everything that differs from run to run, in the modules that look it up."""
    replaced: list[tuple[Any, str, Any]] = [
        (enqueue, "new_record_id", _draw),
        (leases, "new_launch_token", _draw),
        (leases, "this_host", lambda: HOST),
        (leases, "process_id", lambda pid: ProcessId(1, 1)),
        (control, "this_host", lambda: HOST),
        (recovery, "this_host", lambda: HOST),
        (attempt, "seconds_since", lambda started: 0.0),
        (claims, "_APPEND_PAUSE_S", 0),
    ]
    clocked = (leases, control, recovery, attempt)
    replaced += [(module, "timestamp", lambda: "now") for module in clocked]
    with contextlib.ExitStack() as stack:
        for module, name, value in replaced:
            stack.enter_context(mock.patch.object(module, name, value))
        yield
