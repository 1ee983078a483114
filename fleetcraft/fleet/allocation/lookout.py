"""What a launcher wants to know of Slurm and of the spools while its steps run: asked by a thread.

A thread of its own, since an answer may take a minute and the launcher must obey meanwhile. Not
here: what follows from it. Invariant: what Slurm did not say is None, with the reason in
``trouble``; it is never taken for an empty list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fleetcraft.errors import SchedulerError
from fleetcraft.fleet.judge import SlurmTruth
from fleetcraft.slurm import commands
from fleetcraft.slurm.nodes import Node
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import Job, Jobs, Step, my_jobs
from fleetcraft.spool.recovery import RecoveryReport

LOOK_EVERY_S = 60.0
_RETRY_S = 15.0
_IN_DOUBT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one look found out.

    Attributes:
        asked_at: No answer in it is older than this, monotonic.
        job: This job; None where Slurm did not tell of it.
        job_nodes: Names of the nodes that the job still has; None as above.
        ends: When its walltime is over, monotonic; None where that is unknown or never.
        nodes: Node states by name; None where they were not asked for, or not told.
        steps: Steps of this user by ``JOB.STEP``; None as above.
        trouble: Why something that was asked for is None.
    """

    asked_at: float
    job: Job | None = None
    job_nodes: frozenset[str] | None = None
    ends: float | None = None
    nodes: dict[str, Node] | None = None
    steps: dict[str, Step] | None = None
    trouble: str = ""


class Lookout:
    """Looks at the job every minute, at its nodes and steps when asked to, and recovers claims.

    Args:
        job_id: This job.
        polls: How Slurm is asked.
        recover: One recovery pass over the spools; it asks Slurm only when a lease is in doubt.
        recover_every_s: Pause between two passes; longer while claims stay in doubt.
        wake: Called after each look.
    """

    def __init__(
        self,
        job_id: str,
        polls: Polls,
        *,
        recover: Callable[[SlurmTruth], RecoveryReport],
        recover_every_s: float,
        wake: Callable[[], None],
    ) -> None:
        self._job_id = job_id
        self._polls = polls
        self._recover = recover
        self._recover_every_s = recover_every_s
        self._wake = wake
        self._look_wanted = threading.Event()
        self._all_wanted = False
        self._ended = False
        self._sights: list[Sight] = []
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    def start(self) -> None:
        """Begins with a look at the job."""
        self._look_wanted.set()
        self._thread.start()

    def stop(self) -> None:
        """Ends; a question that is under way is not waited for."""
        self._ended = True
        self._look_wanted.set()

    def look_at_all(self) -> None:
        """Asks for a look at job, nodes and steps, with answers that are younger than this call."""
        self._all_wanted = True
        self._look_wanted.set()

    def take(self) -> list[Sight]:
        """What was found out since the last call, oldest first."""
        taken = self._sights[:]
        del self._sights[: len(taken)]
        return taken

    # -- the thread

    def _run(self) -> None:
        next_look = next_recovery = time.monotonic()
        while True:
            due = min(next_look, next_recovery)
            self._look_wanted.wait(max(0.0, due - time.monotonic()))
            if self._ended:
                return
            look = self._look_wanted.is_set() or time.monotonic() >= next_look
            self._look_wanted.clear()
            everything, self._all_wanted = self._all_wanted, False
            truth = SlurmTruth(self._polls)
            sight = Sight(asked_at=time.monotonic())
            if look and not everything:
                sight = self._show(self._look_at_job(sight, self._jobs))
            if everything or time.monotonic() >= next_recovery:
                report = self._recover(truth)
                pause_s = max(self._recover_every_s, _IN_DOUBT_S if report.unknown else 0.0)
                next_recovery = time.monotonic() + pause_s
            if everything:
                # After the recovery, which has to see the claims before Slurm is asked.
                sight = self._show(self._look_at_all(sight, truth))
            if look:
                next_look = time.monotonic() + (_RETRY_S if sight.trouble else LOOK_EVERY_S)

    def _show(self, sight: Sight) -> Sight:
        self._sights.append(sight)
        self._wake()
        return sight

    def _look_at_all(self, sight: Sight, truth: SlurmTruth) -> Sight:
        # What is left of the walltime was said when the recovery asked, which is not noted.
        sight = replace(self._look_at_job(sight, truth.jobs), ends=None)
        try:
            sight = replace(sight, nodes=truth.nodes().nodes)
            return replace(sight, steps=truth.steps().steps)
        except SchedulerError as error:
            return _troubled(sight, error.message)

    def _jobs(self) -> Jobs:
        # An older answer may be about an earlier run of the same job.
        return my_jobs(self._polls, fresh=True)

    def _look_at_job(self, sight: Sight, ask: Callable[[], Jobs]) -> Sight:
        try:
            found = ask()
            job = found.jobs.get(self._job_id)
            if job is None:
                return _troubled(sight, f"squeue does not list job {self._job_id}")
            sight = replace(sight, job=job)
            if job.time_left_s is not None:
                sight = replace(sight, ends=time.monotonic() - found.age_s + job.time_left_s)
            return replace(sight, job_nodes=frozenset(commands.hostnames(job.node_list)))
        except SchedulerError as error:
            return _troubled(sight, error.message)


def _troubled(sight: Sight, trouble: str) -> Sight:
    return replace(sight, trouble="; ".join(filter(None, (sight.trouble, trouble))))
