"""Whether the owner of a claim lives, by what Slurm says: alive, gone or unknown.

`spool.recovery` is handed one of these. Nothing here touches a claim. Invariant: only an answer
that was asked for after the claim had been seen, and that came whole, can say that an owner is
gone; whatever else happens, it is unknown.

Source of the rules: docs/spool-format.md, "Recovery".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from fleetcraft.errors import SchedulerError
from fleetcraft.identity import Owner
from fleetcraft.slurm import commands
from fleetcraft.slurm.nodes import Nodes, node_states
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import Job, Jobs, Steps, my_jobs, my_steps
from fleetcraft.spool.leases import SILENT_INTERVALS, Lease, ages_on_mount
from fleetcraft.spool.recovery import AskOwner, Liveness, Verdict, ask_this_machine
from fleetcraft.spool.tree import SpoolTree

_DOUBT_INTERVALS = 1.5
_PASS_S = 55.0
_LONGEST_QUERY_S = 15.0

Answer = TypeVar("Answer", Jobs, Steps, Nodes)


class Silence(StrEnum):
    """What a lease says to an observer.

    ``BEATING``: it was seen to change. ``QUIET``: not long enough unchanged to mean anything.
    ``DOUBTFUL``: long enough to ask about the job. ``SILENT``: three intervals or more.
    """

    BEATING = "beating"
    QUIET = "quiet"
    DOUBTFUL = "doubtful"
    SILENT = "silent"
    UNKNOWN = "unknown"


Listen = Callable[[Lease], Silence]


class LeaseWatch:
    """A living observer: how long each lease has not changed, by this process's own clock.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}

    def __call__(self, lease: Lease) -> Silence:
        """Looks at a lease as just read."""
        now = self._clock()
        seen = self._seen.get(lease.name)
        if seen is None or seen[0] != lease.counter:
            self._seen[lease.name] = (lease.counter, now)
            return Silence.QUIET if seen is None else Silence.BEATING
        unchanged_s = now - seen[1]
        if unchanged_s >= SILENT_INTERVALS * lease.interval_s:
            return Silence.SILENT
        return (
            Silence.DOUBTFUL
            if unchanged_s >= _DOUBT_INTERVALS * lease.interval_s
            else Silence.QUIET
        )


def listen_once(tree: SpoolTree, limit_s: float) -> Listen:
    """What a command that looks only once can say: by file times of the mount itself.

    Args:
        tree: The spool; a probe file is written there, and removed.
        limit_s: A lease is silent when its file is older than this and than four intervals.
    """

    def listen(lease: Lease) -> Silence:
        try:
            with ages_on_mount(tree) as age_of:
                age_s = age_of(lease)
        except OSError:
            return Silence.UNKNOWN
        silent = age_s >= max(limit_s, (SILENT_INTERVALS + 1) * lease.interval_s)
        return Silence.SILENT if silent else Silence.DOUBTFUL

    return listen


class SlurmTruth:
    """What Slurm says during one recovery pass: each question is asked once, when it is needed.

    Every answer is fresh: asked for after this object was made. A question that failed stays
    failed for the pass, and all of them together end within a minute.

    Args:
        polls: How Slurm is asked.
    """

    def __init__(self, polls: Polls) -> None:
        self._polls = polls
        self._deadline = time.monotonic() + _PASS_S
        self._answers: dict[str, Jobs | Steps | Nodes | SchedulerError] = {}

    @property
    def was_asked(self) -> bool:
        """Whether anything was asked already: nothing may be concluded of claims seen later."""
        return bool(self._answers)

    def jobs(self) -> Jobs:
        """This user's jobs; SchedulerError when Slurm did not say."""
        return self._once("jobs", my_jobs)

    def steps(self) -> Steps:
        """This user's job steps; SchedulerError when Slurm did not say."""
        return self._once("steps", my_steps)

    def nodes(self) -> Nodes:
        """The nodes' states; SchedulerError when Slurm did not say."""
        return self._once("nodes", node_states)

    def _once(self, what: str, ask: Callable[..., Answer]) -> Answer:
        if what not in self._answers:
            left_s = self._deadline - time.monotonic() - _LONGEST_QUERY_S
            try:
                self._answers[what] = ask(self._polls, fresh=True, patience_s=max(0.0, left_s))
            except SchedulerError as error:
                self._answers[what] = error
        answer = self._answers[what]
        if isinstance(answer, SchedulerError):
            raise answer
        return answer  # type: ignore[return-value]


def ask_slurm(truth: SlurmTruth, listen: Listen) -> AskOwner:
    """A judge for recovery: this machine first, then Slurm for owners in its jobs."""
    here = ask_this_machine()

    def ask(owner: Owner, lease: Lease | None) -> Verdict:
        verdict = here(owner, lease)
        if verdict.liveness is not Liveness.UNKNOWN or not owner.job.isdecimal():
            return verdict
        silence = Silence.UNKNOWN if lease is None else listen(lease)
        if silence in (Silence.BEATING, Silence.QUIET):
            return _alive("its lease beats" if silence is Silence.BEATING else "its lease is fresh")
        try:
            return _by_job(owner, lease, silence, truth)
        except SchedulerError as error:
            return _unknown(f"Slurm gave no answer about job {owner.job}: {error.message}", True)

    return ask


def _by_job(owner: Owner, lease: Lease | None, silence: Silence, truth: SlurmTruth) -> Verdict:
    jobs = truth.jobs()
    if lease is not None and lease.cluster and lease.cluster != jobs.cluster:
        where = f"cluster {lease.cluster!r}, and {jobs.cluster!r} answers here"
        return _unknown(f"job {owner.job} is one of {where}")
    job = jobs.jobs.get(owner.job)
    if job is None:
        return _gone(f"Slurm knows no job {owner.job} of this user any more")
    if job.is_over:
        return _gone(f"job {owner.job} is over ({job.state})")
    if job.waits:
        return _gone(f"job {owner.job} waits to run again ({job.state})")
    if lease is None:
        return _unknown(f"job {owner.job} is {job.state}, and the owner's lease is missing")
    if other := _other_run(job, lease):
        return _gone(other)
    if job.state != "RUNNING":
        return _unknown(f"job {owner.job} is {job.state}")
    if silence is Silence.DOUBTFUL:
        return _alive(f"job {owner.job} runs and its lease is not silent yet")
    if silence is not Silence.SILENT:
        return _unknown(f"job {owner.job} runs, and the owner's lease cannot be looked at")
    return _by_node(job, lease, truth)


def _other_run(job: Job, lease: Lease) -> str:
    """Why the job's present run is not the lease's, in words; empty when it may be."""
    if job.restarts is not None and lease.restarts is not None and job.restarts > lease.restarts:
        return f"job {job.job_id} was requeued and runs again (restart {job.restarts})"
    # Both of the controller. Without the lease's there is nothing to compare with: its other times
    # are by the clock of its node.
    if job.started_at is None or lease.job_start_s is None:
        return ""
    later = job.started_at.timestamp() >= lease.job_start_s + 1
    return f"job {job.job_id} has begun anew since this owner's" if later else ""


def _by_node(job: Job, lease: Lease, truth: SlurmTruth) -> Verdict:
    if lease.step:
        step = f"{job.job_id}.{lease.step}"
        if step not in truth.steps().steps:
            return _gone(f"its lease is silent and Slurm lists no step {step}")
    node = truth.nodes().nodes.get(lease.host)
    if node is None:
        # A host whose own name is not its name in Slurm is in no job's list either.
        why = f"its lease is silent, but job {job.job_id} runs and Slurm lists no node {lease.host}"
        return _unknown(why)
    if lease.host not in commands.hostnames(job.node_list):
        return _gone(f"its lease is silent and {lease.host} is no longer in job {job.job_id}")
    if node.is_down:
        return _gone(f"its lease is silent and node {lease.host} is down")
    return _unknown(
        f"its lease is silent, but job {job.job_id} runs and {lease.host} is {node.state}"
    )


def _alive(reason: str) -> Verdict:
    return Verdict(liveness=Liveness.ALIVE, reason=reason)


def _gone(reason: str) -> Verdict:
    return Verdict(liveness=Liveness.GONE, reason=reason)


def _unknown(reason: str, unanswered: bool = False) -> Verdict:
    return Verdict(liveness=Liveness.UNKNOWN, reason=reason, unanswered=unanswered)
