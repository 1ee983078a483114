"""One submission: recorded, made, written down; and what became of one whose end nobody wrote.

`control` decides whether; here is how. Invariant: sbatch is called only by whoever recorded the
intent, at once, and at most once; and an intent without a job is given up only after a successful
query that began when no sbatch of it could be at work any more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from fleetcraft.clock import timestamp
from fleetcraft.errors import (
    DataError,
    SchedulerError,
    SubmissionUnknownError,
    TryAgainLaterError,
)
from fleetcraft.fleet.renewal.intents import Ending, How, Intent, Intents
from fleetcraft.fleet.renewal.supply import with_nonce
from fleetcraft.fleet.shapes import Mark, Shape, renewal_name
from fleetcraft.identity import new_launch_token
from fleetcraft.locks import Held
from fleetcraft.slurm.queue import Job, Jobs

_ACT_WITHIN_S = 30.0
"""A process that was paused for longer between its record and sbatch submits no more: others may
have looked for its job meanwhile. Far below the time after which they give it up."""

_TRIES = 4
_TRY_AGAIN_S = 1.0


class Plan(Protocol):
    """A submission that was worked out and not made."""

    @property
    def sbatch(self) -> list[str]:
        """The exact command line."""
        ...


P = TypeVar("P", bound=Plan)


class Outcome(StrEnum):
    """What came of an attempt to submit.

    ``open``: there may be a job; ``taken``: another controller is at it; ``not made``: there is no
    job, or it was cancelled as too late.
    """

    SUBMITTED = "submitted"
    OPEN = "open"
    TAKEN = "taken"
    REFUSED = "refused"
    NOT_MADE = "not made"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An attempt to submit, with its job if it has one, and in words what is not plain."""

    outcome: Outcome
    reason: str = ""
    job_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What was found out about one open intent; ``how`` is None while it stays open.

    ``unanswered`` says that Slurm was asked and did not answer.
    """

    lane: str
    window: int
    nonce: str
    how: How | None
    reason: str
    job_id: str = ""
    found_by: str = ""
    unanswered: bool = False


def settle(
    intent: Intent,
    jobs: Jobs,
    *,
    watched_s: float,
    settle_s: float,
    in_accounting: Callable[[str], str],
) -> Settled:
    """Looks for the job of an open intent.

    Args:
        intent: It has no ending yet.
        jobs: A successful answer of squeue.
        watched_s: So long before that answer was asked for, this process knew of the intent.
        settle_s: After so long a call of sbatch is over.
        in_accounting: The job of a name in Slurm's accounting; empty where there is none.
    """
    found = Settled(lane=intent.lane, window=intent.window, nonce=intent.nonce, how=None, reason="")
    if intent.cluster and jobs.cluster and intent.cluster != jobs.cluster:
        where = f"it was meant for cluster {intent.cluster}, and {jobs.cluster} answers here"
        return replace(found, reason=where)
    job = with_nonce(jobs, intent.nonce)
    if job is not None:
        reason = f"squeue has its job {job.job_id} ({job.state}){_mismatch(intent, job)}"
        return replace(
            found, how=How.SUBMITTED, job_id=job.job_id, found_by="squeue", reason=reason
        )
    if watched_s < settle_s:
        reason = (
            f"submission {intent.nonce} by {intent.by} has no job in the queue, but its sbatch "
            f"may still be at work; watched for {max(0.0, watched_s):.0f} of {settle_s:.0f} s"
        )
        return replace(found, reason=reason)
    try:
        job_id = in_accounting(intent.job_name)
    except SchedulerError as error:
        reason = f"whether {intent.job_name} was a job is not known: {error.message}"
        return replace(found, reason=reason, unanswered=True)
    if job_id:
        reason = f"sacct has its job {job_id}"
        return replace(found, how=How.SUBMITTED, job_id=job_id, found_by="sacct", reason=reason)
    reason = f"no job has its nonce after {watched_s:.0f} s"
    return replace(found, how=How.ABANDONED, reason=reason)


def _mismatch(intent: Intent, job: Job) -> str:
    meant = intent.shape
    if job.nodes == meant.nodes and job.time_limit_s == meant.limit_s:
        return ""
    return (
        f"; meant were {meant.nodes} nodes for {meant.limit_s} s, "
        f"it has {job.nodes} for {job.time_limit_s} s"
    )


class Submission:
    """Submissions by one controller.

    Args:
        intents: Where they are recorded.
        held: The lock under which that is decided.
        clock: This process's own monotonic clock.
    """

    def __init__(
        self, intents: Intents, held: Held, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._intents = intents
        self._held = held
        self._clock = clock

    def make(
        self,
        plan: P,
        *,
        lane: Shape,
        window: int,
        root: str,
        nonce: str,
        cluster: str,
        cost_h: float | None,
        tres: str,
        observed: dict[str, Any],
        submit: Callable[[P], str],
        cancel: Callable[[str], None],
    ) -> Made:
        """Records, submits, and writes down what came of it.

        Raises:
            LockLostError: Another controller has taken over; nothing was submitted.
            LockUnknownError: The lock cannot be seen; nothing was submitted.
        """
        intent = Intent(
            schema="fleetcraft.intent/1",
            lane=str(lane),
            window=window,
            nonce=nonce,
            job_name=renewal_name(root, nonce),
            generation=self._held.generation,
            by=str(self._held.holder),
            cluster=cluster,
            cost_h=cost_h,
            tres=tres,
            recorded_at=timestamp(),
            observed=observed,
            sbatch=tuple(plan.sbatch),
        )
        self._held.check()
        try:
            recorded = self._intents.record(intent)
        except OSError as error:
            why = f"whether it is recorded is not known ({error.strerror or error})"
            return Made(outcome=Outcome.NOT_MADE, reason=f"{why}; nothing was submitted")
        if not recorded:
            why = f"another controller has recorded window {window}; nothing was submitted here"
            return Made(outcome=Outcome.TAKEN, reason=why)
        if why := self._why_no_more(intent, self._clock()):
            return Made(outcome=Outcome.NOT_MADE, reason=f"{why}; nothing was submitted")
        try:
            job_id = submit(plan)
        except SubmissionUnknownError as error:
            return Made(outcome=Outcome.OPEN, reason=error.message)
        except SchedulerError as error:
            self._call_off(intent, How.REFUSED, error.message)
            return Made(outcome=Outcome.REFUSED, reason=error.message)
        return self._write_down(intent, job_id, cancel)

    def close(self, intent: Intent, found: Settled) -> Settled:
        """Writes down what was found out; what another has written before stands.

        Where another was quicker, the intent counts as open until the next pass.

        Raises:
            LockLostError: Another controller has taken over; nothing was written.
            LockUnknownError: The lock cannot be seen; nothing was written.
        """
        assert found.how is not None
        self._held.check()
        ending = self._ending(intent, found.how, found.job_id, found.found_by, found.reason)
        try:
            stands = self._intents.end(intent, ending)
        except (OSError, DataError) as error:
            return replace(found, how=None, reason=f"{found.reason}, but: {error}")
        if stands == ending:
            return found
        # The queue that this pass has seen may be older than that job, so nothing is decided by it.
        why = f"another controller has just written that it was {stands.how.value}"
        return replace(found, how=None, job_id=stands.job, reason=why)

    def _why_no_more(self, intent: Intent, recorded_s: float) -> str:
        """Why a recorded intent must not be acted on; it is then called off. Empty if it may."""
        try:
            self._held.check()
            ending = self._intents.ending_of(intent)
        except TryAgainLaterError:
            self._call_off(intent, How.ABANDONED, "the lock was lost before sbatch was called")
            raise
        except (OSError, DataError) as error:
            self._call_off(intent, How.ABANDONED, "called off before sbatch was called")
            return f"whether it was given up is not known ({error})"
        if ending is not None:
            return "another controller has given it up meanwhile"
        if (paused_s := self._clock() - recorded_s) > _ACT_WITHIN_S:
            why = f"this process was paused for {paused_s:.0f} s after it had recorded it"
            self._call_off(intent, How.ABANDONED, why)
            return why
        return ""

    def _call_off(self, intent: Intent, how: How, reason: str) -> None:
        # Only this process knows for certain that there is no job. If it cannot say so, the
        # intent stays open and is settled by looking for one.
        with contextlib.suppress(OSError, DataError):
            self._intents.end(intent, self._ending(intent, how, "", "", reason))

    def _write_down(self, intent: Intent, job_id: str, cancel: Callable[[str], None]) -> Made:
        ending = self._ending(intent, How.SUBMITTED, job_id, "sbatch", "")
        try:
            stands = self._end_with_patience(intent, ending)
        except (OSError, DataError) as error:
            why = f"it is not written down ({error}); the next pass finds it by its nonce"
            return Made(outcome=Outcome.SUBMITTED, job_id=job_id, reason=why)
        if stands.how is How.SUBMITTED:
            return Made(outcome=Outcome.SUBMITTED, job_id=job_id)
        # Paused inside sbatch until everybody had given it up.
        what = f"job {job_id} came after another controller had given up on it"
        try:
            cancel(job_id)
        except SchedulerError as error:
            why = f"{what}, and could not be cancelled: {error.message}"
            return Made(outcome=Outcome.SUBMITTED, job_id=job_id, reason=why)
        return Made(outcome=Outcome.NOT_MADE, reason=f"{what}; it was cancelled")

    def _end_with_patience(self, intent: Intent, ending: Ending) -> Ending:
        # Only now could it be learnt that others have given it up, so one failed call is not the
        # last word.
        for _ in range(_TRIES - 1):
            with contextlib.suppress(OSError):
                return self._intents.end(intent, ending)
            time.sleep(_TRY_AGAIN_S)
        return self._intents.end(intent, ending)

    def _ending(self, intent: Intent, how: How, job: str, found_by: str, reason: str) -> Ending:
        return Ending(
            schema="fleetcraft.intent_end/1",
            nonce=intent.nonce,
            how=how,
            generation=self._held.generation,
            writer=self._held.holder.nonce,
            at=timestamp(),
            job=job,
            found_by=found_by,
            reason=reason,
        )


def plan_for(shape: Shape, root: str, plan: Callable[[Shape, str, str], P]) -> tuple[str, P]:
    """A fresh nonce and the plan of a submission that carries it.

    Args:
        shape: The lane.
        root: The scratch tree's mark.
        plan: Works it out from the shape, the job's comment and its name.
    """
    nonce = new_launch_token()
    return nonce, plan(shape, str(Mark(root, str(shape), nonce)), renewal_name(root, nonce))
