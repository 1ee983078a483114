"""Whether a utilization of 0 can be believed: some drivers answer 0 for ever, whatever runs.

Invariant: the 0 stays what the driver said; this only adds a word of warning.
"""

from __future__ import annotations

from collections.abc import Callable

ENOUGH_ZEROS = 3
"""So many samples must have been 0 before the first warning."""
HIGH_POWER_FRACTION = 0.5
"""Of the enforced limit. Source: archived traces of one-GPU hosts that draw up to 889 W: of 16,443
rows at 0 percent with memory in use, 0.2 percent draw more than half of 900 W, and 0.7 percent more
than 35 percent of it. Small cards idle with a context at up to 45 percent of their 70 W."""
_ASK_EVERY = 10
"""A list of processes can cost the driver milliseconds."""


class ZeroWatch:
    """Watches one GPU through a session.

    A warning needs both: neither utilization nor memory utilization was ever anything but 0 in
    this session; and a compute process is there, or power is above `HIGH_POWER_FRACTION` of its
    limit. An idle GPU that has worked before is never suspected.
    Source: utilization of GB10 and Thor under their first drivers, constantly 0 under load.

    Attributes:
        was_busy: One sample was above 0, and nothing will be suspected any more.
    """

    def __init__(self) -> None:
        self.was_busy = False
        self._zeros = 0
        self._has_process = False

    def look(
        self,
        util_pct: float | None,
        mem_util_pct: float | None,
        power_w: float | None,
        limit_w: Callable[[], float | None],
        processes: Callable[[], int],
    ) -> str:
        """What contradicts this sample's 0, as words between plus signs; empty when nothing does.

        Args:
            util_pct: Mean utilization.
            mem_util_pct: Memory utilization.
            power_w: Power now.
            limit_w: Asks for the enforced limit.
            processes: Asks how many compute processes can be seen.
        """
        if util_pct or mem_util_pct:
            self.was_busy = True
        if self.was_busy or util_pct is None:
            return ""
        self._zeros += 1
        if self._zeros < ENOUGH_ZEROS:
            return ""
        if (self._zeros - ENOUGH_ZEROS) % _ASK_EVERY == 0:
            self._has_process = processes() > 0
        limit = limit_w() if power_w is not None else None
        is_high = bool(limit and power_w and power_w > HIGH_POWER_FRACTION * limit)
        return "+".join(["process"] * self._has_process + ["power"] * is_high)
