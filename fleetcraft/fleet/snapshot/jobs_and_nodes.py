"""This user's jobs that have not ended, and their nodes, each told with the other.

Not here: GPUs, and asking squeue and sinfo. Invariant: a job is a fleet of a scratch tree by the
mark in its comment alone; and a node that a worker has not left is shown also when its job has
lost it, since that is where its work was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from fleetcraft.errors import SchedulerError
from fleetcraft.fleet.shapes import Mark, read_mark, root_mark
from fleetcraft.slurm import commands
from fleetcraft.slurm.nodes import Node
from fleetcraft.slurm.queue import Job, Jobs
from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job that has not ended.

    Attributes:
        job: As squeue tells of it.
        nodes: The names of its nodes; empty while it waits, None when they could not be had.
        mark: Its mark, if it is a fleet of this scratch tree.
    """

    job: Job
    nodes: tuple[str, ...] | None
    mark: Mark | None = None

    @property
    def waits(self) -> bool:
        """Whether it has not begun."""
        return self.job.waits


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of these jobs, or one where a worker of them has not left.

    Attributes:
        name: Its name in Slurm.
        node: As sinfo tells of it; None when it lists no such node.
        jobs: This user's jobs that have it.
        workers_of: Jobs whose worker there holds a lease; one that is not among ``jobs`` has
            lost the node.
    """

    name: str
    node: Node | None
    jobs: tuple[str, ...]
    workers_of: tuple[str, ...]


def view_jobs(jobs: Jobs, root: str) -> tuple[list[JobView], str]:
    """The jobs that have not ended, in the order of their ids.

    Args:
        jobs: This user's jobs.
        root: The scratch tree whose fleets are told apart.

    Returns:
        The jobs, and why their nodes are not known if they are not.
    """
    mine = root_mark(root)
    present = sorted(
        (job for job in jobs.jobs.values() if not job.is_over),
        key=lambda job: int(job.job_id),
    )
    placed = [job for job in present if job.node_list and not job.waits]
    names, reason = _expand(placed)
    views = []
    for job in present:
        mark = read_mark(job.comment or "")
        views.append(
            JobView(
                job=job,
                nodes=names.get(job.job_id) if job in placed else (),
                mark=mark if mark is not None and mark.root == mine else None,
            )
        )
    return views, reason


def _expand(jobs: Sequence[Job]) -> tuple[dict[str, tuple[str, ...]], str]:
    """The nodes of jobs by name, with one call for all of them together."""
    try:
        names = commands.hostnames(",".join(job.node_list for job in jobs))
        counts = [job.nodes or 0 for job in jobs]
        if sum(counts) == len(names):
            ends = list(accumulate(counts))
            lists = [names[end - n : end] for n, end in zip(counts, ends, strict=True)]
        else:
            lists = [commands.hostnames(job.node_list) for job in jobs]
    except SchedulerError as error:
        return {}, error.message
    for job, some in zip(jobs, lists, strict=True):
        # One that is being cleaned up may have some of its nodes left.
        if job.state != "COMPLETING" and job.nodes not in (None, len(some)):
            names_of_it = f"scontrol expands {job.node_list!r} to {len(some)} nodes"
            return {}, f"{names_of_it}, but squeue says that job {job.job_id} has {job.nodes}"
    return {job.job_id: tuple(some) for job, some in zip(jobs, lists, strict=True)}, ""


def hosts_of_workers(trees: Iterable[SpoolTree], jobs: Iterable[JobView]) -> dict[str, set[str]]:
    """Nodes where a worker of these jobs has not left, each with the jobs, as leases say.

    Costs a listing for each spool and a read for each lease of the jobs.
    """
    ids = {view.job.job_id for view in jobs if not view.waits}
    found: dict[str, set[str]] = {}
    for tree in trees:
        try:
            names = tree.fs.listdir(tree.paths.workers)
        except OSError:
            continue
        for name in names:
            if not name.endswith(".json") or name.partition(".")[0] not in ids:
                continue
            lease = leases.read(tree, name.removesuffix(".json"))
            if lease is not None and lease.left_at is None and lease.role == "worker":
                found.setdefault(lease.host, set()).add(lease.job)
    return found


def view_nodes(
    nodes: Mapping[str, Node], jobs: Iterable[JobView], workers: Mapping[str, set[str]]
) -> list[NodeView]:
    """The nodes of jobs and of their workers, in the order of sinfo.

    Args:
        nodes: Every node of the cluster.
        jobs: The jobs.
        workers: Where a worker has not left, and of which jobs.
    """
    holders: dict[str, list[str]] = {}
    for view in jobs:
        for name in view.nodes or ():
            holders.setdefault(name, []).append(view.job.job_id)
    wanted = holders.keys() | workers.keys()
    names = [name for name in nodes if name in wanted]
    return [
        NodeView(
            name=name,
            node=nodes.get(name),
            jobs=tuple(holders.get(name, ())),
            workers_of=tuple(sorted(workers.get(name, ()))),
        )
        for name in (*names, *sorted(wanted - nodes.keys()))
    ]
