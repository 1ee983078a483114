"""Declared phases: how long a rank may be outside the step loop, and what it does beyond that.

Pure. Invariant: a phase that the run file does not declare excuses nothing, and none excuses for
ever.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import RankProgress, Standing
from fleetcraft.training.watching.expectation import seconds
from fleetcraft.training.watching.trend import Trends
from fleetcraft.training.watching.witness import names_of

LOAD = "load"


class PhaseWatch:
    """Which ranks are in which phase, and whether they may still be.

    Attributes:
        within: Says which phase excuses that no step comes; empty when none does.
        undeclared: Says, as the end of a sentence, that a phase was told but not declared.
        last_within_s: When a phase last excused it; None when none ever did.
    """

    def __init__(self, plan: RunPlan) -> None:
        self.within = ""
        self.undeclared = ""
        self.last_within_s: float | None = None
        self._plan = plan
        self._ranks: Mapping[int, RankProgress] = {}
        self._over: list[RankProgress] = []
        self._inside: list[RankProgress] = []
        self._missed_s = 0.0
        self._begun: dict[int, tuple[float, float]] = {}

    def missed(self, seconds_: float) -> None:
        """Time in which nobody looked: it is not used up of any phase's."""
        self._missed_s += seconds_
        if self.last_within_s is not None:
            self.last_within_s += seconds_

    def look(self, ranks: Mapping[int, RankProgress], dead: Container[int], now_s: float) -> None:
        """Takes one look."""
        self._ranks = ranks
        self.within = self.undeclared = ""
        self._over, self._inside = [], []
        counted = any(rank.step is not None for rank in ranks.values())
        for rank in ranks.values():
            if not rank.phase or rank.rank in dead:
                continue
            # One that never counts steps, such as an evaluator, holds nobody up but in loading.
            if counted and rank.step is None and rank.phase != LOAD:
                continue
            self._note_begin(rank, now_s)
            self._sort(rank, now_s)
        if self._inside and not self._over:
            self.last_within_s = now_s
            one = self._inside[0]
            self.within = (
                f"{names_of([rank.rank for rank in self._inside], ranks)} in phase {one.phase}"
                f" for {seconds(self._age_s(one, now_s))}, {seconds(self._plan.phases[one.phase])}"
                " allowed"
            )

    def _note_begin(self, rank: RankProgress, now_s: float) -> None:
        since_s = now_s if rank.phase_since_s is None else rank.phase_since_s
        if self._begun.get(rank.rank, (None,))[0] != since_s:
            self._begun[rank.rank] = since_s, self._missed_s

    def _age_s(self, rank: RankProgress, now_s: float) -> float:
        since_s, missed_s = self._begun[rank.rank]
        return now_s - since_s - (self._missed_s - missed_s)

    def _sort(self, rank: RankProgress, now_s: float) -> None:
        budget_s = self._plan.phases.get(rank.phase)
        if budget_s is None:
            self.undeclared = f"; phase {rank.phase!r} is not declared and excuses nothing"
        elif self._age_s(rank, now_s) > budget_s:
            self._over.append(rank)
        else:
            self._inside.append(rank)

    def over(self, trends: Trends, now_s: float) -> tuple[Standing, str] | None:
        """How ranks stand that are longer in a phase than declared; None when there are none.

        SLOW while CPU time or bytes advance, but only up to the stall factor times the budget:
        ranks that wait for another in a collective use all their CPU for ever.
        """
        if not self._over:
            return None
        ranks = [rank.rank for rank in self._over]
        one = max(self._over, key=lambda rank: self._age_s(rank, now_s))
        age_s, budget_s = self._age_s(one, now_s), self._plan.phases[one.phase]
        text = (
            f"{names_of(ranks, self._ranks)} in phase {one.phase} for {seconds(age_s)},"
            f" {seconds(budget_s)} allowed"
        )
        doing = [trends.doing(rank) for rank in ranks]
        if any(one.advances for one in doing):
            most_s = self._plan.progress.stall_factor * budget_s
            if age_s > most_s:
                return Standing.STALLED, f"{text}; CPU time or bytes advance, yet it is too long"
            return Standing.SLOW, f"{text}; CPU time or bytes advance"
        if any(one.waits_for_io for one in doing):
            return Standing.STALLED_IO, f"{text}; in state D, and no bytes advance"
        if all(one.advances is None for one in doing):
            return Standing.STALLED, f"{text}; its CPU time cannot be seen from here"
        return Standing.STALLED, f"{text}; neither CPU time nor bytes advance"

    def long_in_phase(self, now_s: float, fraction: float) -> tuple[int, ...]:
        """Ranks that have used up this fraction of their phase's time."""
        return tuple(
            rank.rank
            for rank in (*self._inside, *self._over)
            if self._age_s(rank, now_s) >= fraction * self._plan.phases[rank.phase]
        )
