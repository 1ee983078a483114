"""Whether the holder of a run's lock lives: this machine's word, then Slurm's.

Handed to the generation lock. Invariant: only a whole answer of the cluster in which the holder's
job ran makes it gone; everything else is unknown, which takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fleetcraft.errors import SchedulerError
from fleetcraft.identity import JobRun
from fleetcraft.locks import Holder, lives_here
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import Job, Jobs, Step, my_jobs, my_steps
from fleetcraft.slurm.step_ends import StepEnd, step_end
from fleetcraft.training.records import StepRecord

AskJobs = Callable[[], Jobs]
"""This user's jobs from one fresh and whole answer; SchedulerError when there is none."""


def ask_jobs() -> Jobs:
    """This user's jobs, as Slurm says now.

    Raises:
        SchedulerError: It did not say.
    """
    return my_jobs(Polls(), fresh=True)


def ask_steps() -> Mapping[str, Step]:
    """This user's running steps by ``JOB.STEP``, as Slurm says now.

    Raises:
        SchedulerError: It did not say.
    """
    return my_steps(Polls(), fresh=True).steps


def ask_step_end(step: StepRecord, name: str, patience_s: float) -> StepEnd | None:
    """How a step ended, as the accounting has it now; None while it has no end of it.

    Raises:
        SchedulerError: It did not say.
    """
    return step_end(Polls(), step.id, name, cluster=step.cluster, patience_s=patience_s)


class HolderJudge:
    """Says whether a holder lives: True, False (positively gone), or None.

    Args:
        ask: How Slurm is asked about jobs.
    """

    def __init__(self, ask: AskJobs = ask_jobs) -> None:
        self._ask = ask

    def __call__(self, holder: Holder) -> bool | None:
        """Whether this holder lives."""
        lives = lives_here(holder)
        if lives is not None or not holder.run.job:
            return lives
        try:
            jobs = self._ask()
        except SchedulerError:
            return None
        return _of_job(holder.run, jobs)


def _of_job(run: JobRun, jobs: Jobs) -> bool | None:
    if not run.cluster or run.cluster != jobs.cluster:
        return None
    job = jobs.jobs.get(run.job)
    if job is None or job.is_over or job.waits or _began_anew(run, job):
        return False
    return None  # the job runs; whether the holder does, on a node of it, is not known


def _began_anew(run: JobRun, job: Job) -> bool:
    if run.restarts is not None and job.restarts is not None and job.restarts > run.restarts:
        return True
    if run.start_s is None or job.started_at is None:
        return False
    return job.started_at.timestamp() >= run.start_s + 1
