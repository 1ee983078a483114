"""One look at everything that a fleet's owner asks about: jobs, nodes, GPUs, limits, queue.

Reading only, but for the probe, which is made when it is asked for. Not here: how it is shown, and
what to do about it. Invariant: each part stands alone, with its age, or without a value and with
the reason; no part is empty because somebody did not answer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import msgspec

from fleetcraft.clock import timestamp
from fleetcraft.errors import FleetError, SchedulerError
from fleetcraft.fleet.snapshot.gpu_shares import Placed, share_gpus
from fleetcraft.fleet.snapshot.gpus import Gpu, Share, list_gpus
from fleetcraft.fleet.snapshot.jobs_and_nodes import (
    JobView,
    NodeView,
    hosts_of_workers,
    view_jobs,
    view_nodes,
)
from fleetcraft.fleet.snapshot.probe import NodeReport
from fleetcraft.fleet.snapshot.probe_step import Allocation, Probed, probe_jobs
from fleetcraft.gpu.states import Sighting, Sightings
from fleetcraft.layout import Scratch
from fleetcraft.slurm.accounting import Balance, Limits, balance, limits
from fleetcraft.slurm.nodes import Nodes, node_states
from fleetcraft.slurm.polls import Answer, Polls
from fleetcraft.slurm.queue import Jobs, my_jobs
from fleetcraft.spool import views
from fleetcraft.spool.tree import SpoolTree, describe_problem
from fleetcraft.telemetry.tail import Place, Tail, read_tails

T = TypeVar("T")


class Part(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One part of the picture.

    Attributes:
        value: What is known; None when nothing is.
        age_s: Seconds since it was asked for; None when it was not had.
        reason: Why there is no value, or what it lacks.
        answered: False when Slurm was asked and did not answer.
    """

    value: T | None = None
    age_s: float | None = None
    reason: str = ""
    answered: bool = True


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at.

    Attributes:
        root: The scratch tree.
        outer: Folder of the outer spool.
        inner: Folder of the inner spool.
        account: Whose limits; empty for the default account.
        qos: The QOS whose limits; empty for the usual one.
        balance_account: Whose balance; empty for the default account.
        balance_tres: What the balance counts.
        probe: Whether the nodes are asked for their GPUs.
    """

    root: str
    outer: str
    inner: str
    account: str = ""
    qos: str = ""
    balance_account: str = ""
    balance_tres: str = "node"
    probe: bool = False


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The picture.

    Attributes:
        root: The scratch tree.
        taken_at: When, ISO 8601 UTC.
        cluster: Its name; None when it is not known.
        jobs: This user's jobs that have not ended.
        nodes: Theirs, with those of workers that have not left.
        node_states: How many nodes of the whole cluster are in which state; None when sinfo did
            not answer.
        gpus: Every GPU that Slurm gave to the jobs.
        shares: The same by job and node, also where Slurm does not say how many.
        limits: What this user may have at once, with a status of its own.
        balance: What the account has left, with a status of its own.
        spools: Tasks by state in the outer and the inner spool.
        telemetry: What was read of it.
        probed: What the probe found; None when none was asked for.
    """

    root: str
    taken_at: str
    cluster: str | None
    jobs: Part[list[JobView]]
    nodes: Part[list[NodeView]]
    node_states: dict[str, int] | None
    gpus: Part[list[Gpu]]
    shares: list[Share]
    limits: Part[Limits]
    balance: Part[Balance]
    spools: dict[str, Part[dict[str, int]]]
    telemetry: Tail
    probed: Probed | None

    @property
    def answered(self) -> bool:
        """Whether Slurm answered whatever it was asked."""
        parts: list[Part[Any]] = [self.jobs, self.nodes, self.gpus, self.limits, self.balance]
        return all(part.answered for part in parts) and not (self.probed and self.probed.failures)


def take_snapshot(wanted: Wanted) -> Snapshot:
    """Looks once.

    Asks Slurm one squeue, one sinfo, one sshare and one ``scontrol show hostnames``; at most every
    ten minutes three sacctmgr, and every hour one ``scontrol show config``; at most eight
    ``scontrol show job``, for jobs of which the others do not tell what they have; and with a
    probe one srun for each running job. Some at once, so that a controller that hangs costs one
    timeout and not all of them. Answers of the last ten seconds are used again.

    Raises nothing for Slurm or the spools: a part that could not be had says why.
    """
    all_jobs: Part[Jobs]
    all_nodes: Part[Nodes]
    all_jobs, all_nodes, its_limits, its_balance = _ask_all(
        my_jobs,
        node_states,
        lambda polls: limits(polls, wanted.account, wanted.qos),
        lambda polls: balance(polls, wanted.balance_account, wanted.balance_tres),
    )
    jobs = _jobs(all_jobs, wanted)
    gpus, shares, tail, probed = _gpus(jobs, all_nodes, wanted)
    return Snapshot(
        root=wanted.root,
        taken_at=timestamp(),
        cluster=all_jobs.value.cluster if all_jobs.value else None,
        jobs=jobs,
        nodes=_nodes(all_nodes, jobs, wanted),
        node_states=_count_states(all_nodes.value),
        gpus=gpus,
        shares=shares,
        limits=_with_status(its_limits),
        balance=_with_status(its_balance),
        spools={"outer": _count(wanted.outer), "inner": _count(wanted.inner)},
        telemetry=tail,
        probed=probed,
    )


# ------------------------------------------------------------------------- asking Slurm


class _NotingPolls(Polls):
    """Polls that remember how old the oldest answer was that they gave."""

    oldest_s = 0.0

    def ask(self, kind: str, *arguments: Any, **named: Any) -> Answer:
        answer = super().ask(kind, *arguments, **named)
        if kind != "scontrol":  # how the cluster is configured, which is kept for an hour
            self.oldest_s = max(self.oldest_s, answer.age_s)
        return answer


def _ask_all(*calls: Callable[[Polls], Any]) -> list[Part[Any]]:
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(_ask, calls))
    except RuntimeError:  # no thread can be started, as on a login node that is full
        return [_ask(call) for call in calls]


def _ask(call: Callable[[Polls], T]) -> Part[T]:
    polls = _NotingPolls()
    try:
        return Part(value=call(polls), age_s=polls.oldest_s)
    except SchedulerError as error:
        return Part(reason=error.message, answered=False)
    except OSError as error:
        return Part(reason=f"Slurm was not asked: {describe_problem(error)}", answered=False)


B = TypeVar("B", Balance, Limits)


def _with_status(part: Part[B]) -> Part[B]:
    """A part whose value says itself whether it is known."""
    found = part.value
    if found is None:
        return part
    age_s = part.age_s if found.status == "known" else None
    return Part(value=found, age_s=age_s, reason=found.reason, answered=found.answered)


def _jobs(asked: Part[Jobs], wanted: Wanted) -> Part[list[JobView]]:
    if asked.value is None:
        return Part(reason=asked.reason, answered=False)
    found, reason = view_jobs(asked.value, wanted.root)
    return Part(value=found, age_s=asked.age_s, reason=reason, answered=not reason)


def _nodes(asked: Part[Nodes], jobs: Part[list[JobView]], wanted: Wanted) -> Part[list[NodeView]]:
    if asked.value is None:
        return Part(reason=asked.reason, answered=False)
    if not _are_placed(jobs):
        return Part(reason=f"whose nodes they are is not known: {jobs.reason}", answered=False)
    found = jobs.value or []
    workers = hosts_of_workers([SpoolTree(wanted.outer), SpoolTree(wanted.inner)], found)
    return Part(value=view_nodes(asked.value.nodes, found, workers), age_s=asked.age_s)


def _are_placed(jobs: Part[list[JobView]]) -> bool:
    """Whether it is known which nodes the jobs have."""
    return jobs.value is not None and all(view.nodes is not None for view in jobs.value)


def _count_states(nodes: Nodes | None) -> dict[str, int] | None:
    return dict(Counter(node.state for node in nodes.nodes.values())) if nodes else None


def _count(spool_dir: str) -> Part[dict[str, int]]:
    try:
        return Part(value=views.counts(SpoolTree(spool_dir).check_safe()), age_s=0.0)
    except (OSError, FleetError) as error:
        return Part(reason=describe_problem(error))


# -------------------------------------------------------------------------------- GPUs


def _gpus(
    jobs: Part[list[JobView]], nodes: Part[Nodes], wanted: Wanted
) -> tuple[Part[list[Gpu]], list[Share], Tail, Probed | None]:
    placed = [
        Placed(
            job_id=view.job.job_id,
            nodes=view.nodes,
            tres_per_node=view.job.tres_per_node or "",
        )
        for view in jobs.value or ()
        if view.nodes
    ]
    polls = Polls()
    shares, failures = share_gpus(placed, nodes.value.nodes if nodes.value else None, polls)
    places = [(share.job_id, share.node) for share in shares]
    tail = read_tails(Scratch(wanted.root).telemetry, places)
    probed = None
    began_s = time.monotonic()
    if wanted.probe:
        probed = probe_jobs(_worth_probing(jobs.value or (), shares), polls)
    probe_age_s = time.monotonic() - began_s
    if not _are_placed(jobs):
        return Part(reason=jobs.reason, answered=False), shares, tail, probed
    seen = {place: _seen(place, tail.places[place], probed, probe_age_s) for place in places}
    gpus: Part[list[Gpu]] = Part(
        value=list_gpus(shares, seen),
        age_s=jobs.age_s,
        reason="; ".join(failures),
        answered=not failures,
    )
    return gpus, shares, tail, probed


def _worth_probing(jobs: Sequence[JobView], shares: Sequence[Share]) -> list[Allocation]:
    """Jobs that run, but for those that certainly have no GPU."""
    found = []
    for view in jobs:
        counts = {share.count for share in shares if share.job_id == view.job.job_id}
        if view.nodes and view.job.state == "RUNNING" and counts != {0}:
            gpus_per_node = counts.pop() if len(counts) == 1 else None
            found.append(
                Allocation(job_id=view.job.job_id, nodes=view.nodes, gpus_per_node=gpus_per_node)
            )
    return found


def _seen(place: Place, told: Sightings, probed: Probed | None, age_s: float) -> Sightings:
    """What a probe saw, else what telemetry told, with the reasons of both."""
    if probed is None:
        return told
    report = probed.reports.get(place)
    if report is None:
        failure = probed.failures.get(place[0], "it was not probed")
        return msgspec.structs.replace(told, reason=_joined(told.reason, failure))
    if not report.gpus:
        return msgspec.structs.replace(
            told, indexes=report.indexes, reason=_joined(report.reason, told.reason)
        )
    return Sightings(gpus=_readings(report, age_s), indexes=report.indexes)


def _joined(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)


def _readings(report: NodeReport, age_s: float) -> tuple[Sighting, ...]:
    return tuple(
        Sighting(
            source="probe",
            age_s=age_s,
            index=one.index,
            uuid=one.uuid,
            util_pct=one.util_pct,
            mem_used_mib=one.mem_used_mib,
            mem_total_mib=one.mem_total_mib,
            status=one.status,
        )
        for one in report.gpus
    )
