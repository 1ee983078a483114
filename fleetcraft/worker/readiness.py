"""Waiting behind a readiness marker: a thread that verifies it, however long that takes.

A thread of its own, since verifying reads the whole payload, and the worker must obey meanwhile.
Invariant: ``ready`` becomes true only after the marker and its payload were verified, and stays so.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 10.0


class ReadinessWatch:
    """Looks at a marker until it verifies.

    Args:
        path: The marker, a barrier record.
        wake: Called once it is ready.
    """

    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self.path = path
        self.ready = False
        self._wake = wake
        # A look that is under way does not hold up a worker that leaves.
        threading.Thread(target=self._run, name="readiness", daemon=True).start()

    def _run(self) -> None:
        from fleetcraft.spool import barrier  # most workers wait for nothing, and start without it

        pause_s = _FIRST_PAUSE_S
        while not barrier.is_ready(self.path):
            time.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.3)
        self.ready = True
        self._wake()


def watch_for(path: str, wake: Callable[[], None]) -> ReadinessWatch | None:
    """Begins to look for a marker; None where none is to be waited for."""
    return ReadinessWatch(path, wake) if path else None
