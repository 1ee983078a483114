"""Supply: this scratch tree's fleets in the queue, and what jobs may still cost.

Computed from one answer of squeue. Invariant: a job is one of this tree's fleets by the mark in
its comment, or in the name of a renewal, never by user or shape; and a number that Slurm did not
give is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleetcraft.fleet.shapes import Mark, Shape, read_mark, read_renewal_name
from fleetcraft.fleet.snapshot.gpus import count_gpus
from fleetcraft.slurm.queue import WAITING_STATES, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """One fleet job of this scratch tree that runs or waits in the queue.

    Attributes:
        job_id: Slurm's job id.
        lane: The lane whose renewal it is; empty of one that a person launched.
        state: Slurm's word for its state.
        nodes: How many it has or will have; 1 when that is not known, and then without an end.
        limit_s: Its walltime; None when that is not known or unlimited.
        left_s: What is left of it; of one that waits, all. None as above.
    """

    job_id: str
    lane: str
    state: str
    nodes: int
    limit_s: int | None
    left_s: int | None

    @property
    def waits(self) -> bool:
        """Whether it has not begun."""
        return self.state in WAITING_STATES

    def is_of(self, shape: Shape) -> bool:
        """Whether it is of exactly this shape, or was submitted as such a one."""
        if self.lane:
            return self.lane == str(shape)
        return (self.nodes, self.limit_s) == (shape.nodes, shape.limit_s)


def fleets_of(jobs: Jobs, root: str) -> list[Supply]:
    """The fleets of one scratch tree that run or wait.

    Args:
        jobs: This user's jobs.
        root: The tree's mark.
    """
    found = []
    for job in jobs.jobs.values():
        mark = _mark_of(job)
        if mark is None or mark.root != root or job.is_ending:
            continue
        left_s = job.time_limit_s if job.waits else job.time_left_s
        if job.nodes is None:
            left_s = None  # of how many nodes nobody knows: it may take everything
        found.append(
            Supply(
                job_id=job.job_id,
                lane=mark.lane,
                state=job.state,
                nodes=job.nodes or 1,
                limit_s=job.time_limit_s,
                left_s=left_s,
            )
        )
    return found


def with_nonce(jobs: Jobs, nonce: str) -> Job | None:
    """The job that an intent has become, over or not; None where squeue lists none."""
    for job in jobs.jobs.values():
        mark = _mark_of(job)
        if mark is not None and mark.nonce == nonce:
            return job
    return None


def _mark_of(job: Job) -> Mark | None:
    return read_mark(job.comment or "") or read_renewal_name(job.name)


def hours_of(shape: Shape, tres: str, gpus_per_node: int | None) -> float | None:
    """What a fleet may cost at most, in hours of a TRES; None when that cannot be told."""
    if tres == "node":
        return shape.node_h
    if tres == "gres/gpu" and gpus_per_node is not None:
        return shape.node_h * gpus_per_node
    return None


def committed_h(jobs: Iterable[Job], account: str, tres: str, *, waiting: bool) -> float | None:
    """What this user's jobs on an account may still cost, in hours of a TRES.

    Args:
        jobs: The queue.
        account: Only its jobs; of all accounts if empty.
        tres: ``node`` or ``gres/gpu``.
        waiting: Those that wait, with all of their walltime; else those that run, with the rest.

    Returns:
        None when that cannot be told for one of the jobs.
    """
    total_h = 0.0
    for job in jobs:
        elsewhere = account and job.account and job.account != account
        if job.is_ending or elsewhere or job.waits is not waiting:
            continue
        left_s = job.time_limit_s if waiting else job.time_left_s
        units = _units(job, tres)
        if left_s is None or units is None:
            return None
        total_h += units * job.elements * left_s / 3600
    return total_h


def _units(job: Job, tres: str) -> int | None:
    if tres == "node":
        return job.nodes
    if tres != "gres/gpu" or job.nodes is None:
        return None
    # A number for the whole job or for each task is in the first only, and GPUs that a cluster
    # does not count are in the second only.
    by_node = job.nodes * (count_gpus(job.tres_per_node or "") or 0)
    return max(job.tres.get(tres, 0), by_node)
