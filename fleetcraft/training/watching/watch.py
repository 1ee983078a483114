"""The progress watch: reports and a census in, a standing with its arithmetic out.

Pure: it reads no file and no clock, and decides nothing but what is true of progress. Invariant:
a run stands still only by its own step counter against a time that was declared; silence that may
be the reader's own fault is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.records import QueueDepth, RankProgress, RankState, Standing
from fleetcraft.training.watching.expectation import (
    Expectation,
    alarm_after_s,
    expected_from_steps,
    expected_step,
    seconds,
    with_due,
)
from fleetcraft.training.watching.pace import Pace
from fleetcraft.training.watching.phases import PhaseWatch
from fleetcraft.training.watching.queues import QueueWatch, judge_queues
from fleetcraft.training.watching.sight import Sight
from fleetcraft.training.watching.trend import Trends
from fleetcraft.training.watching.witness import alive_ratio, names_of

__all__ = ["Sight", "Watch"]

_CLOSER_FRACTION = 0.5
_LOOKS_MISSED = 10
_LEAST_GAP_S = 10.0
_DUE_STEPS = 2  # so many steps must be due before a queue that does not change is called frozen


class _Look(NamedTuple):
    """One look, and what follows from it for all that is said about it."""

    ranks: Mapping[int, RankProgress]
    states: Sequence[RankState]
    dead: tuple[int, ...]
    now_s: float
    waited_s: float
    alarm_s: float
    expected: Expectation | None


class Watch:
    """Watches one epoch of a run.

    The run's step is the least one of all ranks that count steps: a rank that goes on beating
    without completing steps holds it back. The alarm waits as long as `alarm_after_s` says, from
    the last step or the end of a declared phase. A run that has completed no step yet is given
    that time after its warm-up. Time in which nobody looked is not waited: a job that Slurm has
    suspended stands still together with its supervisor.
    """

    def __init__(self, plan: RunPlan, *, began_s: float) -> None:
        """Has seen nothing.

        Args:
            plan: The run file.
            began_s: When the epoch began, on the clock of the reader.
        """
        self._plan = plan
        self._began_s = began_s
        self._warm_s = began_s + plan.warmup_s
        self._pace = Pace(counts_from_s=self._warm_s)
        self._queues = QueueWatch()
        self._trends = Trends()
        self._phases = PhaseWatch(plan)
        self._step: int | None = None
        self._moved_s: float | None = None
        self._restarted_s: float | None = None
        self._looked_s = began_s
        self._changed_s: dict[int, float | None] = {}
        self._processes: dict[int, object] = {}
        self._best_tokens_per_s: float | None = None

    def observe(
        self,
        ranks: Mapping[int, RankProgress],
        states: Sequence[RankState],
        now_s: float,
        *,
        trouble: str = "",
        excused: Container[int] = (),
    ) -> Sight:
        """Says how the run stands.

        Args:
            ranks: What the ranks reported, as `ProgressReader.look` gave it.
            states: The census.
            now_s: The reader's clock now.
            trouble: Why the look was not whole, `ProgressReader.trouble`: then no silence counts.
            excused: Ranks that may be gone, such as one that has done its part: their counters
                hold nobody back, and their deaths are none.
        """
        ranks = {rank: told for rank, told in ranks.items() if rank not in excused}
        self._notice_gap(now_s)
        self._notice_restarts(ranks, now_s)
        self._note_step(ranks, now_s)
        self._trends.note(states, now_s)
        self._changed_s = {rank.rank: rank.step_changed_s for rank in ranks.values()}
        gone = [one.rank for one in states if one.alive is False and one.rank in ranks]
        dead = tuple(rank for rank in gone if not self._has_finished(ranks[rank], ranks))
        self._phases.look(ranks, dead, now_s)
        expected = self._expected()
        look = _Look(
            ranks=ranks,
            states=states,
            dead=dead,
            now_s=now_s,
            waited_s=max(0.0, now_s - self._waits_since_s()),
            alarm_s=alarm_after_s(self._plan.progress, expected),
            expected=expected,
        )
        standing, why = self._judge(look)
        if trouble and standing in (Standing.STALLED, Standing.STALLED_IO):
            standing, why = Standing.UNKNOWN, f"{why}; but not all could be read: {trouble}"
        return self._sight(standing, why, look)

    # -- what has happened

    def _notice_gap(self, now_s: float) -> None:
        """Moves all that is waited from by the time in which nobody looked."""
        usual_s = max(_LEAST_GAP_S, _LOOKS_MISSED * self._plan.look_s)
        missed_s = now_s - self._looked_s - usual_s
        self._looked_s = now_s
        if missed_s <= 0:
            return
        self._began_s += missed_s
        self._warm_s += missed_s
        if self._moved_s is not None:
            self._moved_s += missed_s
        if self._restarted_s is not None:
            self._restarted_s += missed_s
        self._phases.missed(missed_s)

    def _notice_restarts(self, ranks: Mapping[int, RankProgress], now_s: float) -> None:
        """A launcher that starts its ranks again by itself gets a new warm-up."""
        for number, rank in ranks.items():
            if rank.process is None:
                continue
            if self._processes.setdefault(number, rank.process) != rank.process:
                self._processes[number] = rank.process
                self._restarted_s = now_s
                self._warm_s = now_s + self._plan.warmup_s
                self._pace.begin_anew(self._warm_s)

    def _note_step(self, ranks: Mapping[int, RankProgress], now_s: float) -> None:
        tokens = [rank.tokens for rank in ranks.values() if rank.tokens is not None]
        step = min((rank.step for rank in ranks.values() if rank.step is not None), default=None)
        if step is not None:
            if self._moved(step, [rank for rank in ranks.values() if rank.step == step]):
                self._moved_s = now_s
            if self._step is not None and step < self._step:
                self._pace.begin_anew(self._warm_s)
            self._step = step
        self._pace.note(now_s, self._step, float(sum(tokens)) if tokens else None)
        rate = self._pace.tokens_per_s()
        if rate and self._pace.is_flat(self._plan.verify_steps):
            self._best_tokens_per_s = max(rate, self._best_tokens_per_s or 0.0)

    def _moved(self, step: int, behind: Sequence[RankProgress]) -> bool:
        """Whether the run's counter was seen to move; its first value may be an old one."""
        if self._step is None:
            return any(rank.step_changed_s is not None for rank in behind)
        if step < self._step:  # resumed from an earlier checkpoint
            return any(rank.step_changed_s != self._changed_s.get(rank.rank) for rank in behind)
        return step > self._step

    def _has_finished(self, rank: RankProgress, ranks: Mapping[int, RankProgress]) -> bool:
        """Whether a rank that is gone had completed the declared last step, while others save.

        Beyond that step it is no last one, such as a policy version where steps are counted.
        """
        end = self._plan.end.step if self._plan.end else None
        if end is None or rank.step != end:
            return False
        return all(one.step is None or one.step <= end for one in ranks.values())

    def _waits_since_s(self) -> float:
        """Since when a step is waited for."""
        began_s = self._began_s if self._restarted_s is None else self._restarted_s
        if self._moved_s is not None and self._moved_s > began_s:
            since_s = self._moved_s
        elif self._step is not None and self._restarted_s is None:
            since_s = began_s  # it stands at a step, so loading is behind it
        else:
            since_s = self._warm_s
        return max(since_s, self._phases.last_within_s or since_s)

    def _expected(self) -> Expectation | None:
        expected = expected_step(self._plan.progress, self._pace.tokens_per_s())
        measured = self._pace.step_s()
        if expected is None and measured is not None:
            expected = expected_from_steps(*measured)
        return expected

    # -- what that means

    def _judge(self, look: _Look) -> tuple[Standing, str]:
        if look.dead:
            return Standing.DEAD_RANK, self._dead_text(look)
        over = self._phases.over(self._trends, look.now_s)
        if over is not None:
            return over
        if self._phases.within:
            return Standing.IN_PHASE, self._phases.within
        if look.now_s < self._warm_s:
            return Standing.WARMING, f"warm-up ends in {seconds(self._warm_s - look.now_s)}"
        if not self._reports(look.ranks):
            return Standing.UNKNOWN, "no rank has reported progress, and the log tells no step"
        if look.waited_s < look.alarm_s:
            return Standing.PROGRESSING, self._step_text(look.waited_s) + self._phases.undeclared
        return self._stalled(look)

    def _reports(self, ranks: Mapping[int, RankProgress]) -> bool:
        """Whether this run reports progress at all, so that silence means something."""
        declared = self._plan.progress
        return bool(ranks or declared.tokens_per_step or declared.tokens_per_s or declared.queues)

    def _stalled(self, look: _Look) -> tuple[Standing, str]:
        text = f"no step for {seconds(look.waited_s)}, {seconds(look.alarm_s)} allowed"
        if self._step is not None:
            text += f"; it stands at step {self._step}"
        if look.expected is not None:
            text += f"; {with_due(look.expected, look.waited_s).arithmetic}"
        text += self._phases.undeclared
        behind = self._behind(look.ranks)
        waiting = [rank for rank in behind if self._trends.doing(rank).waits_for_io]
        if behind and len(waiting) == len(behind):
            named = names_of(waiting, look.ranks)
            return Standing.STALLED_IO, f"{text}; {named} in state D, no bytes advance"
        return Standing.STALLED, text

    def _dead_text(self, look: _Look) -> str:
        text = f"{len(look.dead)} of {len(look.ranks)} ranks gone: "
        text += names_of(look.dead, look.ranks)
        if self._step is not None:
            text += f"; {self._step_text(look.waited_s)}"
        if look.expected is not None and look.waited_s >= look.expected.step_s:
            text += f"; {with_due(look.expected, look.waited_s).arithmetic}"
        return text

    def _step_text(self, waited_s: float) -> str:
        if self._step is None:
            return f"no step yet, waited for {seconds(waited_s)}"
        return f"step {self._step}, the next is waited for {seconds(waited_s)}"

    def _behind(self, ranks: Mapping[int, RankProgress]) -> list[int]:
        """The ranks that hold the run's counter back."""
        return [rank.rank for rank in ranks.values() if rank.step == self._step]

    def _closer(self, look: _Look) -> tuple[int, ...]:
        closer = set(self._phases.long_in_phase(look.now_s, _CLOSER_FRACTION))
        if look.waited_s >= _CLOSER_FRACTION * look.alarm_s:
            closer.update(self._behind(look.ranks))
        return tuple(sorted(closer))

    # -- the record

    def _sight(self, standing: Standing, why: str, look: _Look) -> Sight:
        ranks, expected, waited_s = look.ranks, look.expected, look.waited_s
        queues = self._queues_now(look)
        verdict, queues_why = judge_queues(queues, self._plan.progress.queues)
        plateau = self._pace.is_flat(self._plan.verify_steps)
        ratio = self._throughput_ratio()
        late = expected is not None and waited_s >= expected.step_s
        measured = self._pace.step_s()
        return Sight(
            standing=standing,
            why=why,
            step=self._step,
            expected=with_due(expected, waited_s) if expected and late else expected,
            alarm_s=look.alarm_s,
            quiet_s=look.now_s - (self._began_s if self._moved_s is None else self._moved_s),
            tokens_per_s=self._pace.tokens_per_s_now(look.now_s),
            tokens_slope=self._pace.slope_per_minute(),
            steps_per_s=self._pace.steps_per_s_now(look.now_s),
            step_s=measured[0] if measured else None,
            loss=_first_loss(ranks),
            metrics=_metrics(ranks),
            queues=queues,
            queues_verdict=verdict,
            queues_why=queues_why,
            eta_s=self._eta_s(standing),
            provisional=not plateau or standing is not Standing.PROGRESSING,
            plateau=plateau,
            throughput_ratio=ratio,
            alive_ratio=alive_ratio(ratio, look.states) if ratio is not None else "",
            ranks=tuple(look.states),
            dead=look.dead,
            look_closer=self._closer(look),
        )

    def _queues_now(self, look: _Look) -> tuple[QueueDepth, ...]:
        due_s = _DUE_STEPS * look.expected.step_s if look.expected else look.alarm_s
        return self._queues.look(
            look.ranks,
            look.now_s,
            frozen_after_s=due_s if look.waited_s >= due_s else None,
            order=self._plan.progress.queues,
        )

    def _throughput_ratio(self) -> float | None:
        reference = self._plan.progress.tokens_per_s or self._best_tokens_per_s
        rate = self._pace.tokens_per_s()
        return rate / reference if rate is not None and reference else None

    def _eta_s(self, standing: Standing) -> tuple[float, float] | None:
        end = self._plan.end.step if self._plan.end else None
        if end is None or self._step is None:
            return None
        if self._step >= end:
            return 0.0, 0.0
        moving = standing in (Standing.PROGRESSING, Standing.IN_PHASE, Standing.WARMING)
        return self._pace.eta_s(end - self._step) if moving else None


def _first_loss(ranks: Mapping[int, RankProgress]) -> float | None:
    return next((ranks[one].loss for one in sorted(ranks) if ranks[one].loss is not None), None)


def _metrics(ranks: Mapping[int, RankProgress]) -> dict[str, float]:
    merged: dict[str, float] = {}
    for rank in sorted(ranks, reverse=True):
        merged |= ranks[rank].metrics
    return merged
