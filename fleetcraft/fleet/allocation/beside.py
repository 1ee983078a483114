"""A command that runs beside the workers, on nodes of its own: a training with a fixed world size.

Not here: the workers, which wait behind its readiness marker and leave after its done marker.
Invariant: once the command is over, workers wait for nothing that it can no longer give them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from fleetcraft.files import FileSystem
from fleetcraft.fleet.allocation.steps import Step, describe_end
from fleetcraft.spool import barrier

_MARKER_PATIENCE_S = 30.0
_LOOK_S = 2.0


class Beside:
    """The step beside the workers.

    Args:
        step: As started.
        after_marker: Workers claim nothing before this verifies; empty: they do not wait.
        until_marker: Workers leave only after this exists; empty: they leave when idle.
        wake: Called when `broken_promise` may have changed.
    """

    def __init__(
        self, step: Step, *, after_marker: str, until_marker: str, wake: Callable[[], None]
    ) -> None:
        self._step = step
        self._after_marker = after_marker
        self._until_marker = until_marker
        self._wake = wake
        self.code: int | None = None
        self.broken_promise = ""

    @property
    def over(self) -> bool:
        """Whether it has ended, as `poll` has seen."""
        return self.code is not None

    @property
    def failure(self) -> str:
        """How it ended, in words; empty while it runs and if it ended well."""
        return describe_end(self.code) if self.code else ""

    def poll(self) -> bool:
        """Whether it has ended just now."""
        if self.code is not None:
            return False
        self.code = code = self._step.poll()
        if code is not None and (self._after_marker or self._until_marker):
            threading.Thread(target=self._look_at_markers, name="markers", daemon=True).start()
        return code is not None

    def stop(self, orders: int) -> None:
        """Ends it: INT to its processes at the first order, then what srun does at TERM."""
        if not self.over:
            self._step.signal(signal.SIGINT if orders == 1 else signal.SIGTERM)

    def _look_at_markers(self) -> None:
        # What another node wrote may be seen late here, and what cannot be seen is not missing.
        deadline = time.monotonic() + _MARKER_PATIENCE_S
        while (missing := self._missing()) != "":
            if missing and time.monotonic() >= deadline:
                self.broken_promise = f"the command beside them is over and {missing}"
                self._wake()
                return
            time.sleep(_LOOK_S)

    def _missing(self) -> str | None:
        """What is missing; empty when nothing is, None when that cannot be seen."""
        unseen = False
        if self._until_marker:
            try:
                if not FileSystem().exists(self._until_marker):
                    return f"{self._until_marker} is not there"
            except OSError:
                unseen = True
        if self._after_marker:
            state = barrier.check(self._after_marker)
            if state.ready is False:
                return f"its readiness marker does not hold: {state.reason}"
            unseen = unseen or state.ready is None
        return None if unseen else ""
