"""Ranks that are gone because they have done their part, or whose launcher is just ending.

Pure: reports, census and ends in, ranks out. Invariant: a rank of a launcher that does not end is
passed over for a bounded time only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import NodeEnd, RankProgress, RankState
from fleetcraft.training.watching.expectation import alarm_after_s, expected_step

LEAST_S = 10.0
"""How long a launcher may take to end after its last rank, at least."""


class Departures:
    """Tells ranks that have left in order from those that died.

    A rank that has reached the declared last step has done its part, and so has every rank of a
    node whose command has ended with 0. Where all ranks of a node are gone and its command has not
    ended, the launcher (torchrun takes seconds) is waited for as long as the command may take to
    end its own processes.

    Args:
        plan: The run.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._end = plan.end.step if plan.end else None
        alarm_s = alarm_after_s(plan.progress, expected_step(plan.progress))
        self.bound_s = min(max(LEAST_S, plan.inner_grace_s), alarm_s)
        self._empty_since_s: dict[str, float] = {}

    def look(
        self,
        ranks: Mapping[int, RankProgress],
        states: Sequence[RankState],
        ends: Sequence[NodeEnd],
        now_s: float,
    ) -> frozenset[int]:
        """The ranks that are gone and may be.

        Args:
            ranks: What they have reported.
            states: The census.
            ends: How the command ended, by node.
            now_s: The observer's clock.
        """
        gone = {state.rank for state in states if state.alive is False}
        left = {rank for rank in gone if self._has_reached_the_end(ranks.get(rank))}
        for host, there in _by_host(states).items():
            end = next((end for end in ends if end.node == host), None)
            if not there <= gone:
                self._empty_since_s.pop(host, None)
            elif end is not None:
                left |= there if end.exit_code == 0 and end.clean else set()
            elif now_s - self._empty_since_s.setdefault(host, now_s) < self.bound_s:
                left |= there
            else:
                left -= there
        return frozenset(left)

    def _has_reached_the_end(self, rank: RankProgress | None) -> bool:
        if rank is None or rank.step is None or self._end is None:
            return False
        return rank.step >= self._end


def _by_host(states: Sequence[RankState]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for state in states:
        if state.process is not None:
            found.setdefault(state.process.place.host, set()).add(state.rank)
    return found
