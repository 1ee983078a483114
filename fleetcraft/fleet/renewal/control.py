"""The control pass: OBSERVE, DECIDE, RECORD, ACT, RECONCILE, for every renewal lane.

Everything outside is handed in as functions (`Outside`), so nothing here knows how Slurm is asked
or a fleet is submitted. Invariant: a submission follows only from answers that came, whole and in
time; it is recorded before it is made, and what became of it is found out before the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fleetcraft.errors import DataError, SchedulerError
from fleetcraft.fleet.renewal.decision import (
    Decision,
    LaneReport,
    Outside,
    PassReport,
    Rules,
    Trouble,
)
from fleetcraft.fleet.renewal.demand import Demand, Need, need_of
from fleetcraft.fleet.renewal.intents import Entry, Intent, Intents
from fleetcraft.fleet.renewal.submission import Made, Outcome, Settled, Submission, plan_for, settle
from fleetcraft.fleet.renewal.supply import Supply, committed_h, fleets_of, hours_of
from fleetcraft.fleet.shapes import Shape
from fleetcraft.locks import Held, LockUnknownError
from fleetcraft.slurm.queue import Jobs

_OLDEST_ANSWER_S = 60.0
_TROUBLES = {Decision.INTENT_OPEN: Trouble.SLURM, Decision.UNKNOWN: Trouble.FILES}


@dataclass(kw_only=True)
class _Sight:
    """What one pass observed, and what it has promised since."""

    jobs: Jobs
    demand: Demand
    markers: dict[str, str]
    entries: dict[str, Entry | DataError]
    supply: list[Supply]
    open_reasons: dict[str, str] = field(default_factory=dict)
    last_jobs: dict[str, str] = field(default_factory=dict)
    promised_h: float | None = 0.0

    def promise(self, shape: Shape, job_id: str, cost_h: float | None) -> None:
        """Counts a fleet that squeue does not have yet, or may not have yet, as one that waits."""
        job = Supply(
            job_id=job_id,
            lane=str(shape),
            state="PENDING",
            nodes=shape.nodes,
            limit_s=shape.limit_s,
            left_s=shape.limit_s,
        )
        self.supply.append(job)
        if self.promised_h is not None:
            self.promised_h = None if cost_h is None else self.promised_h + cost_h


class Controller:
    """Passes over some lanes; it remembers for how many in a row each one was in need.

    That is kept in memory: a process that restarts begins anew.

    Args:
        lanes: The shapes, in order: an earlier one takes the work first.
        rules: The numbers.
        outside: What is asked and done.
        intents: Where submissions are recorded.
        held: The lock; None for a pass that only says what it would do.
        clock: This process's own monotonic clock.
    """

    def __init__(
        self,
        lanes: list[Shape],
        rules: Rules,
        outside: Outside,
        intents: Intents,
        *,
        held: Held | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lanes = lanes
        self._rules = rules
        self._outside = outside
        self._intents = intents
        self._held = held
        self._clock = clock
        self._in_need: dict[str, int] = {}
        self._first_seen: dict[str, float] = {}

    def run_pass(self, lanes: list[Shape] | None = None) -> PassReport:
        """One pass.

        Args:
            lanes: Only these of its lanes; all if None.

        Raises:
            LockLostError: Another controller has taken over; nothing more was decided.
        """
        lanes = self._lanes if lanes is None else lanes
        try:
            if self._held is not None:
                self._held.check()
            # Before the queue is asked: a job that an ending names was there by then.
            entries = self._intents.latest()
            jobs = self._outside.jobs()
            answered_s = self._clock() - jobs.age_s
            if jobs.age_s > _OLDEST_ANSWER_S:
                raise SchedulerError(f"its answer is {jobs.age_s:.0f} s old")
            demand = self._outside.demand()
            markers = self._outside.markers()
        except SchedulerError as error:
            reason = f"squeue did not answer: {error.message}"
            return self._all_unknown(lanes, reason, Trouble.SLURM)
        except LockUnknownError as error:
            return self._all_unknown(lanes, error.message, Trouble.FILES)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            return self._all_unknown(lanes, f"{error.strerror or error}{where}", Trouble.FILES)
        sight = _Sight(
            jobs=jobs,
            demand=demand,
            markers=markers,
            entries=entries,
            supply=fleets_of(jobs, self._rules.root),
        )
        settled = self._reconcile(sight, answered_s)
        reports = tuple(self._decide(lane, sight) for lane in lanes)
        now_s = self._clock()
        return PassReport(
            lanes=reports,
            settled=tuple(settled),
            queue_age_s=max(0.0, now_s - answered_s),
            demand_age_s=max(0.0, now_s - demand.seen_s),
            demand=demand,
        )

    def _all_unknown(self, lanes: list[Shape], reason: str, trouble: Trouble) -> PassReport:
        self._in_need.clear()
        reports = (
            LaneReport(lane=lane, decision=Decision.UNKNOWN, reason=reason, trouble=trouble)
            for lane in lanes
        )
        return PassReport(lanes=tuple(reports))

    # -- reconcile

    def _reconcile(self, sight: _Sight, answered_s: float) -> list[Settled]:
        """Finds out what became of open intents, of all lanes, also of those not renewed now."""
        settled = []
        for key, entry in sight.entries.items():
            if isinstance(entry, DataError):
                continue
            if entry.ending is not None:
                sight.last_jobs[key] = entry.ending.job
                continue
            found = self._settle(entry.intent, sight.jobs, answered_s)
            settled.append(found)
            sight.last_jobs[key] = found.job_id
            if found.how is None:
                sight.open_reasons[key] = found.reason
                cost_h = entry.intent.cost_h if entry.intent.tres == self._rules.tres else None
                sight.promise(entry.intent.shape, f"intent {entry.intent.nonce}", cost_h)
        return settled

    def _settle(self, intent: Intent, jobs: Jobs, answered_s: float) -> Settled:
        known_s = self._first_seen.setdefault(intent.nonce, self._clock())
        found = settle(
            intent,
            jobs,
            watched_s=answered_s - known_s,
            settle_s=self._rules.settle_s,
            in_accounting=self._outside.in_accounting,
        )
        if found.how is None or self._held is None:
            return found
        try:
            return Submission(self._intents, self._held).close(intent, found)
        except LockUnknownError as error:
            return replace(found, how=None, reason=error.message)

    # -- decide

    def _decide(self, lane: Shape, sight: _Sight) -> LaneReport:
        need = need_of(
            lane,
            sight.demand,
            sight.supply,
            tasks_per_node=self._rules.tasks_per_node,
            gpus_per_node=self._rules.gpus_per_node or 1,
            slots=self._rules.slots,
        )
        report = LaneReport(
            lane=lane,
            decision=Decision.NOT_NEEDED,
            reason="",
            need=need,
            supply=tuple(sight.supply),
        )
        hindrance = self._hindrance(lane, need, sight)
        if hindrance is not None:
            decision, reason = hindrance
            self._in_need.pop(lane.key, None)
            trouble = _TROUBLES.get(decision, Trouble.NONE)
            return replace(report, decision=decision, reason=reason, trouble=trouble)
        seen = self._in_need[lane.key] = self._in_need.get(lane.key, 0) + 1
        report = replace(report, seen=seen)
        passes = 1 if self._rules.by_hand or self._held is None else self._rules.passes
        if seen < passes:
            reason = f"needed in {seen} of {passes} passes in a row"
            return replace(report, decision=Decision.SEEN, reason=reason)
        report = self._weigh(report, sight)
        return report if report.reason else self._submit(report, sight)

    def _hindrance(self, lane: Shape, need: Need, sight: _Sight) -> tuple[Decision, str] | None:
        """Why this pass does not even count for the lane; None when it does."""
        entry = sight.entries.get(lane.key)
        if isinstance(entry, DataError):
            return Decision.UNKNOWN, entry.message
        if reason := sight.open_reasons.get(lane.key):
            return Decision.INTENT_OPEN, reason
        for name, said in sight.markers.items():
            return Decision.MARKER, f"{name} stands, {said}"
        if not need.justified:
            return Decision.NOT_NEEDED, _why_not_needed(lane, need)
        waiting = [job for job in sight.supply if job.waits and job.is_of(lane)]
        if waiting:
            return Decision.QUEUED, f"job {waiting[0].job_id} of this shape waits in the queue"
        if len(sight.supply) >= self._rules.max_jobs:
            jobs = f"{len(sight.supply)} fleets run or wait"
            return Decision.LIMIT, f"{jobs}, and renew.max_jobs is {self._rules.max_jobs}"
        return self._futile(lane, sight)

    def _futile(self, lane: Shape, sight: _Sight) -> tuple[Decision, str] | None:
        """A lane whose last fleet came and went without starting a task would only burn hours."""
        job = sight.last_jobs.get(lane.key)
        if not job or self._rules.by_hand or any(fleet.job_id == job for fleet in sight.supply):
            return None
        try:
            if self._outside.took_work(job):
                return None
        except OSError as error:
            return Decision.UNKNOWN, f"whether job {job} took work is not known: {error}"
        return Decision.NO_PROGRESS, f"its last fleet, job {job}, is gone and started no task"

    # -- balance

    def _weigh(self, report: LaneReport, sight: _Sight) -> LaneReport:
        """The report with its cost, and with a reason where the balance does not bear it."""
        rules = self._rules
        cost_h = hours_of(report.lane, rules.tres, rules.gpus_per_node)
        report = replace(report, cost_h=cost_h)
        if rules.headroom_h is None:
            return report
        hindered = replace(report, decision=Decision.BALANCE)
        jobs = sight.jobs.jobs.values()
        waiting_h = committed_h(jobs, rules.account, rules.tres, waiting=True)
        if cost_h is None or waiting_h is None or sight.promised_h is None:
            reason = f"what jobs may still cost in hours of {rules.tres} is not known"
            return replace(hindered, reason=reason)
        try:
            balance = self._outside.balance(rules.account)
        except SchedulerError as error:
            return _unanswered(report, f"the balance is not known: {error.message}")
        report = replace(report, balance=balance)
        hindered = replace(hindered, balance=balance)
        if balance.status == "not_checked":
            reason = f"a headroom is set, and the balance cannot be checked: {balance.reason}"
            return replace(hindered, reason=reason)
        if balance.status != "known" or balance.left_h is None:
            return _unanswered(report, f"the balance is not known: {balance.reason}")
        # Slurm's own count has the jobs of other users under the same limit too.
        own_h = committed_h(jobs, rules.account, rules.tres, waiting=False)
        running = [hours for hours in (balance.running_h, own_h) if hours is not None]
        if not running:
            reason = f"what running jobs may still cost in hours of {rules.tres} is not known"
            return replace(hindered, reason=reason)
        promised_h = max(running) + waiting_h + sight.promised_h
        rest_h = balance.left_h - promised_h - cost_h
        if rest_h >= rules.headroom_h:
            return report
        sums = (
            f"{balance.left_h:.1f} h left, {promised_h:.1f} h promised to running and waiting "
            f"jobs, {cost_h:.1f} h for this fleet: {rest_h:.1f} h is below the headroom of "
            f"{rules.headroom_h:g} h"
        )
        return replace(hindered, reason=sums)

    # -- record and act

    def _submit(self, report: LaneReport, sight: _Sight) -> LaneReport:
        lane = report.lane
        entry = sight.entries.get(lane.key)
        window = entry.intent.window + 1 if isinstance(entry, Entry) else 1
        nonce, plan = plan_for(lane, self._rules.root, self._outside.plan)
        report = replace(report, window=window, sbatch=tuple(plan.sbatch))
        if self._held is None:
            sight.promise(lane, "(not submitted)", report.cost_h)
            return replace(report, decision=Decision.WOULD_SUBMIT, reason=_why_needed(report))
        try:
            done = Submission(self._intents, self._held, clock=self._clock).make(
                plan,
                lane=lane,
                window=window,
                root=self._rules.root,
                nonce=nonce,
                cluster=sight.jobs.cluster,
                cost_h=report.cost_h,
                tres=self._rules.tres,
                observed=_observed(report, sight),
                submit=self._outside.submit,
                cancel=self._outside.cancel,
            )
        except LockUnknownError as error:
            done = Made(outcome=Outcome.NOT_MADE, reason=error.message)
        self._first_seen[nonce] = self._clock()
        self._in_need.pop(lane.key, None)
        if done.outcome is Outcome.SUBMITTED:
            sight.promise(lane, done.job_id, report.cost_h)
            reason = done.reason or _why_needed(report)
            return replace(report, decision=Decision.SUBMITTED, reason=reason, job_id=done.job_id)
        report = replace(report, reason=done.reason)
        match done.outcome:
            case Outcome.OPEN:
                sight.promise(lane, f"intent {nonce}", report.cost_h)
                return replace(report, decision=Decision.INTENT_OPEN, trouble=Trouble.SLURM)
            case Outcome.TAKEN:
                return replace(report, decision=Decision.INTENT_OPEN, trouble=Trouble.SLURM)
            case Outcome.REFUSED:
                return replace(report, decision=Decision.REFUSED, trouble=Trouble.SLURM)
            case _:
                return replace(report, decision=Decision.UNKNOWN, trouble=Trouble.FILES)


def _unanswered(report: LaneReport, reason: str) -> LaneReport:
    return replace(report, decision=Decision.UNKNOWN, reason=reason, trouble=Trouble.SLURM)


def _why_needed(report: LaneReport) -> str:
    assert report.need is not None
    need = report.need
    return (
        f"{need.tasks} tasks fit it, present fleets will take {need.taken}, "
        f"the rest justifies {need.open_nodes:.4g} nodes"
    )


def _why_not_needed(lane: Shape, need: Need) -> str:
    if not need.tasks:
        return "no pending task fits it"
    return (
        f"{need.tasks} tasks fit it, present fleets will take {need.taken}, "
        f"the rest justifies {need.open_nodes:.4g} of {lane.nodes} nodes"
    )


def _observed(report: LaneReport, sight: _Sight) -> dict[str, Any]:
    need = report.need
    assert need is not None
    balance = report.balance
    return {
        "tasks": need.tasks,
        "tasks_taken_by_supply": need.taken,
        "open_nodes": round(need.open_nodes, 3),
        "passes_in_a_row": report.seen,
        "fleets": [job.job_id for job in sight.supply],
        "queue_age_s": round(sight.jobs.age_s, 1),
        "balance": balance.status if balance else "not_checked",
        "balance_left_h": balance.left_h if balance else None,
        "promised_h": sight.promised_h,
    }
