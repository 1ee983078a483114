"""How many GPUs Slurm gave to each running job on each of its nodes.

Not here: what they do. Invariant: a count is what Slurm says of what is allocated, or None with a
reason; what a job asked for stands for it only while no count of its node says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from fleetcraft.errors import SchedulerError
from fleetcraft.fleet.snapshot.gpus import Share, count_gpus
from fleetcraft.slurm.allocated import read_gpus
from fleetcraft.slurm.nodes import Node
from fleetcraft.slurm.polls import Polls

_MOST_ASKED = 8


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has nodes, and what it asked for on each, as squeue prints it."""

    job_id: str
    nodes: tuple[str, ...]
    tres_per_node: str = ""


def share_gpus(
    jobs: Sequence[Placed], nodes: Mapping[str, Node] | None, polls: Polls
) -> tuple[list[Share], list[str]]:
    """What each job has on each node.

    Costs one ``scontrol show job`` for each job of which squeue and sinfo do not tell (a number of
    GPUs for the whole job, nodes that are had whole or shared), for at most eight jobs.

    Args:
        jobs: This user's jobs that have nodes.
        nodes: The nodes by name; None when Slurm did not say.
        polls: How Slurm is asked.

    Returns:
        The shares, and why Slurm did not answer about a job.
    """
    asked = {job.job_id: count_gpus(job.tres_per_node) for job in jobs}
    doubtful = [] if nodes is None else _doubtful(jobs, asked, nodes)
    exact, failures = _ask(doubtful[:_MOST_ASKED], polls)
    shares = []
    for job in jobs:
        for name in job.nodes:
            count, reason = asked[job.job_id], "squeue does not say how many GPUs the job has"
            node = nodes.get(name) if nodes is not None else None
            if job.job_id in exact:
                count = exact[job.job_id].get(name)
                reason = f"scontrol does not say what the job has on {name}"
            elif node is not None and node.gpus == 0 and count is None:
                reason = f"Slurm counts no GPUs on {name}"
            elif job.job_id in doubtful:
                count, reason = None, "more or less is in use there than was asked for"
            elif count is None and node is not None:
                count = 0
            shares.append(
                Share(
                    job_id=job.job_id,
                    node=name,
                    count=count,
                    reason=reason if count is None else "",
                )
            )
    return shares, failures


def _doubtful(
    jobs: Sequence[Placed], asked: Mapping[str, int | None], nodes: Mapping[str, Node]
) -> list[str]:
    """Jobs that did not ask for exactly what is in use on one of their nodes."""
    expected: dict[str, int] = {}
    for job in jobs:
        for name in job.nodes:
            expected[name] = expected.get(name, 0) + (asked[job.job_id] or 0)
    return [
        job.job_id
        for job in jobs
        if any(_differs(nodes.get(name), expected[name]) for name in job.nodes)
    ]


def _differs(node: Node | None, expected: int) -> bool:
    return node is not None and node.gpus != 0 and node.gpus_used != expected


def _ask(job_ids: Collection[str], polls: Polls) -> tuple[dict[str, dict[str, int]], list[str]]:
    found: dict[str, dict[str, int]] = {}
    failures: list[str] = []
    for job_id in job_ids:
        argv = ["scontrol", "show", "job", "--details", job_id]
        try:
            # A kind for each job: otherwise the second would have to wait for ten seconds.
            found[job_id] = read_gpus(job_id, polls.ask(f"scontrol-job-{job_id}", argv).text)
        except SchedulerError as error:
            failures.append(error.message)
            break  # a controller that hangs costs one timeout
    return found, failures
