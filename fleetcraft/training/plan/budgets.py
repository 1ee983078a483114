"""How often a run may be started again, and how long to wait before: pure, from records.

Two bounds, of which a run must keep both: restarts of all classes within a window, and all restarts
of one class. Only a newer validated checkpoint takes a restart off both. Invariant: a count that
could not be read is unknown, and unknown allows nothing and ends nothing.

Source of the window: Erlang/OTP's restart intensity (more than R restarts within T seconds ends
the supervisor); what is added is that progress, not time, resets a class.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fleetcraft.training.plan.records import BudgetPlan
from fleetcraft.training.records import Crash
from fleetcraft.units import format_seconds


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """One earlier restart of the run.

    Attributes:
        at_s: When, on a clock that all entries and ``now_s`` share.
        crash: The class of what ended the attempt before it.
        checkpoint_step: Step of the newest validated checkpoint then; None when there was none.
        checkpoint_known: Whether that could be read then; what could not be read is not reset.
    """

    at_s: float
    crash: Crash
    checkpoint_step: int | None = None
    checkpoint_known: bool = True


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one more restart is within the budgets.

    Attributes:
        allowed: True, False, or None when it cannot be known.
        why: The arithmetic, one sentence.
        pause_s: How long to wait before it.
        since_progress: Restarts that count, of all classes.
    """

    allowed: bool | None
    why: str
    pause_s: float = 0.0
    since_progress: int = 0


class Budgets:
    """The budgets of one run.

    Args:
        plan: What the run declares.
    """

    def __init__(self, plan: BudgetPlan) -> None:
        self._plan = plan

    def spend(
        self,
        history: Sequence[Restart] | None,
        now_s: float,
        crash: Crash,
        *,
        checkpoint_step: int | None = None,
        checkpoint_known: bool = True,
    ) -> Spend:
        """Whether the run may be started again after this end.

        Args:
            history: Every earlier restart, in any order; None when it cannot be read.
            now_s: Now, on their clock. An entry that lies in the future counts as just made: a
                clock that was set back resets nothing.
            crash: The class of what has ended it now.
            checkpoint_step: Step of the newest validated checkpoint; None when there is none.
            checkpoint_known: Whether that could be read.
        """
        if history is None:
            return Spend(allowed=None, why="the earlier restarts cannot be read")
        sure, maybe = _since_progress(history, checkpoint_step, checkpoint_known)
        pause_s = self._pause_s(len(sure) + len(maybe))
        count = len(sure) + len(maybe)
        verdicts = (self._window(sure, maybe, now_s), self._class(sure, maybe, crash))
        for wanted in (False, None):
            for allowed, why in verdicts:
                if allowed is wanted:
                    return Spend(allowed=wanted, why=why, since_progress=count)
        why = "; ".join(why for _, why in verdicts)
        return Spend(allowed=True, why=why, pause_s=pause_s, since_progress=count)

    def _window(
        self, sure: Sequence[Restart], maybe: Sequence[Restart], now_s: float
    ) -> tuple[bool | None, str]:
        total = self._plan.total

        def within(restarts: Sequence[Restart]) -> int:
            if total.within_s is None:
                return len(restarts)
            return sum(now_s - restart.at_s < total.within_s for restart in restarts)

        when = f" in {format_seconds(total.within_s)}" if total.within_s is not None else ""
        return _verdict(within(sure), within(maybe), total.restarts, f"restarts{when}")

    def _class(
        self, sure: Sequence[Restart], maybe: Sequence[Restart], crash: Crash
    ) -> tuple[bool | None, str]:
        def of_class(restarts: Sequence[Restart]) -> int:
            return sum(restart.crash is crash for restart in restarts)

        most = self._plan.classes.get(crash.value, self._plan.each)
        return _verdict(of_class(sure), of_class(maybe), most, f"restarts after {crash.value}")

    def _pause_s(self, in_a_row: int) -> float:
        pauses = self._plan.backoff_s
        return pauses[min(in_a_row, len(pauses) - 1)] if pauses else 0.0


def _since_progress(
    history: Sequence[Restart], step: int | None, known: bool
) -> tuple[list[Restart], list[Restart]]:
    """Restarts since the newest validated checkpoint: those that surely are, and that may be."""
    sure: list[Restart] = []
    maybe: list[Restart] = []
    for restart in history:
        if known and step is None:  # there is no checkpoint, so nothing was ever reset
            sure.append(restart)
        elif not known or not restart.checkpoint_known or step is None:
            maybe.append(restart)
        elif restart.checkpoint_step is not None and step <= restart.checkpoint_step:
            sure.append(restart)
    return sure, maybe


def _verdict(sure: int, maybe: int, most: int, what: str) -> tuple[bool | None, str]:
    """Whether one more fits under ``most``, given how many surely and how many perhaps count."""
    since = "since the newest validated checkpoint"
    if sure >= most:
        return False, f"{sure} of {most} {what} are spent {since}"
    if sure + maybe >= most:
        return None, (
            f"{sure} of {most} {what} are spent {since}, and {maybe} more if it is not newer than "
            "they are, which cannot be read"
        )
    return True, f"{sure + maybe} of {most} {what}"
