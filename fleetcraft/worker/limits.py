"""When a worker must stop claiming: walltime running out, or a node that fails everything fast.

Pure decisions over numbers it is given. Invariant: a node that fails task after task within
seconds cannot empty the queue into ``failed/``.
"""

from __future__ import annotations

import time

from fleetcraft.spool.record import Outcome

_FAILURES = frozenset(
    {Outcome.FAILED, Outcome.LAUNCH_FAILED, Outcome.INCOMPLETE, Outcome.OUT_OF_MEMORY}
)
_COMPLETED = Outcome.COMPLETED
_MAX_MARGIN_S = 120.0
_FINISH_TIME_S = 20.0


class Walltime:
    """What is left of an allocation.

    Args:
        walltime_s: Seconds left now; None without a limit.
        margin_s: The worker drains when less is left; None takes the smaller of 120 s and a tenth.
    """

    def __init__(self, walltime_s: float | None, margin_s: float | None) -> None:
        self._end: float | None = None
        self._margin_s = margin_s
        if walltime_s is not None:
            self.set_left(walltime_s)

    def set_left(self, walltime_s: float) -> None:
        """Goes by this many seconds from now on; the margin is that of the first call."""
        self._end = time.monotonic() + walltime_s
        if self._margin_s is None:
            self._margin_s = min(_MAX_MARGIN_S, walltime_s / 10)

    def left_s(self) -> float | None:
        """Seconds left; None without a limit."""
        return None if self._end is None else self._end - time.monotonic()

    def must_drain(self) -> bool:
        """Whether the margin is reached: claim nothing more."""
        left = self.left_s()
        return left is not None and self._margin_s is not None and left < self._margin_s

    def must_interrupt(self) -> bool:
        """Whether just enough is left to stop what runs and put it back in order."""
        left = self.left_s()
        return left is not None and left < self._finish_s()

    def next_limit_at(self) -> float:
        """The monotonic time at which one of the two above becomes true."""
        if self._end is None or self._margin_s is None:
            return float("inf")
        now = time.monotonic()
        limits = (self._end - self._margin_s, self._end - self._finish_s())
        return min((limit for limit in limits if limit > now), default=float("inf"))

    def grace_s(self, wanted_s: float) -> float:
        """The grace that a task gets when it is stopped: half of what is left at most."""
        left = self.left_s()
        return wanted_s if left is None else min(wanted_s, max(0.0, left / 2))

    def _finish_s(self) -> float:
        return 0.0 if self._margin_s is None else min(_FINISH_TIME_S, self._margin_s / 2)

    def allows(self, time_s: int | None) -> bool:
        """Whether a task that needs so long may be claimed."""
        left = self.left_s()
        return time_s is None or left is None or time_s <= left


class NodeFitness:
    """Counts different tasks that failed fast, one after another.

    Args:
        failures: So many make the node unfit.
        fast_s: A failure within so many seconds counts.
    """

    def __init__(self, failures: int, fast_s: float) -> None:
        self._limit = failures
        self._fast_s = fast_s
        self._failed: dict[str, None] = {}

    def note(self, task: str, outcome: Outcome, wall_s: float) -> None:
        """Counts one ended attempt; a completed or slowly failed one starts the count anew."""
        if outcome is _COMPLETED or (outcome in _FAILURES and wall_s >= self._fast_s):
            self._failed.clear()
        elif outcome in _FAILURES:
            self._failed[task] = None

    @property
    def unfit(self) -> bool:
        """Whether the node should claim nothing more."""
        return len(self._failed) >= self._limit
