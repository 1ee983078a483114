"""This user's jobs and steps, as squeue tells of them.

Not here: what a state means for a claim or a budget. Invariant: what is returned comes from one
whole answer of one named cluster; a job or step that is not in it was not there when it was given.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from fleetcraft.errors import NoAnswerError
from fleetcraft.slurm import commands
from fleetcraft.slurm.polls import INTERVAL_S, PATIENCE_S, Answer, Polls
from fleetcraft.slurm.tables import (
    LongTable,
    Row,
    amounts,
    count_or_none,
    duration_s_or_none,
    text_or_none,
    time_or_none,
)

_JOBS = LongTable(
    program="squeue",
    columns=(
        ("JobID", "JOBID"),
        ("JobArrayID", "JOBID"),
        ("ArrayTaskID", "ARRAY_TASK_ID"),
        ("Cluster", "CLUSTER"),
        ("UserID", "UID|USER"),
        ("State", "STATE"),
        ("RestartCnt", "RESTART_COUNT"),
        ("Partition", "PARTITION"),
        ("Account", "ACCOUNT"),
        ("QOS", "QOS"),
        ("NumNodes", "NODES"),
        ("NodeList", "NODELIST"),
        ("SubmitTime", "SUBMIT_TIME"),
        ("StartTime", "START_TIME"),
        ("EndTime", "END_TIME"),
        ("TimeLimit", "TIME_LIMIT"),
        ("TimeLeft", "TIME_LEFT"),
        ("tres-per-node", "TRES_PER_NODE"),
        ("tres-alloc", "TRES_ALLOC"),
        ("Reason", "REASON"),
        ("Comment", "COMMENT"),
        ("Name", "NAME"),
    ),
)
_STEPS = LongTable(
    program="squeue",
    columns=(
        ("StepID", "STEPID"),
        ("JobID", "JOB_ID"),
        ("Cluster", "CLUSTER"),
        ("UserID", "UID|USER"),
        ("StepState", "STATE"),
        ("Nodes", "NODELIST"),
        ("StartTime", "START_TIME"),
        ("StepName", "NAME"),
    ),
)
_CLUSTER_AGE_S = 3600.0
_T = TypeVar("_T")
# Source of both: squeue(1), "JOB STATE CODES". What is in neither (RUNNING, COMPLETING, SUSPENDED,
# CONFIGURING, a word of a later version) says that the job may have processes.
OVER_STATES = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL",
        "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
"""A job in one of these will never run anything again under this run."""
WAITING_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""A job in one of these has not begun, or is to begin again."""
_ELEMENTS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, array element or heterogeneous component: whatever has a job id of its own.

    Attributes:
        job_id: What the job itself sees as ``SLURM_JOB_ID``.
        name: Free text.
        comment: Free text; None when there is none.
        state: Slurm's word, ``PENDING``, ``RUNNING``, ``SUSPENDED``, …, as it was printed.
        partition: Several with commas between while it waits for one of them.
        account: None where there is no accounting.
        qos: None where there is none.
        nodes: How many it has, or asks for while it waits.
        node_list: Nodes it has now, as a Slurm list; ``""`` before it starts.
        reason: Why it waits or ended, in Slurm's words; None when there is no reason.
        restarts: How often it was requeued; None when not told.
        submitted_at: When it was submitted, or last requeued.
        started_at: When it started, or is expected to while it waits.
        ends_at: When it ended or will end at the latest.
        time_limit_s: None where there is no limit.
        time_left_s: Until its limit; None where there is none.
        tres_per_node: ``gres:gpu:2``, as it was asked for; None when nothing was.
        tres: What it has, or asks for while it waits, of all that this cluster counts, such as
            ``node`` and ``gres/gpu``; empty when not told.
        display_id: As people write it: ``123_4`` for an array element, ``123_[5-9]`` for those
            that have not been started and share one job id.
        elements: How many array elements it stands for; 1 for anything else.
    """

    job_id: str
    name: str
    comment: str | None
    state: str
    partition: str
    account: str | None
    qos: str | None
    nodes: int | None
    node_list: str
    reason: str | None
    restarts: int | None
    submitted_at: datetime | None
    started_at: datetime | None
    ends_at: datetime | None
    time_limit_s: int | None
    time_left_s: int | None
    tres_per_node: str | None
    tres: dict[str, int]
    display_id: str
    elements: int

    @property
    def is_over(self) -> bool:
        """Whether this run of it has ended and left its nodes."""
        return self.state in OVER_STATES

    @property
    def is_ending(self) -> bool:
        """Whether it takes no new work any more: over, or being cleaned up on its nodes."""
        return self.state in OVER_STATES or self.state == "COMPLETING"

    @property
    def waits(self) -> bool:
        """Whether it has not begun, or is to begin again."""
        return self.state in WAITING_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """All jobs of this user that Slurm knows, the ended ones that it has not forgotten among them.

    Attributes:
        cluster: The cluster that answered.
        age_s: Seconds since it was asked.
        jobs: By job id.
    """

    cluster: str
    age_s: float
    jobs: dict[str, Job]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One running job step.

    Attributes:
        step: ``JOB.STEP``, with ``JOB`` as in ``SLURM_JOB_ID``; STEP may be ``batch``.
        name: Free text.
        node_list: Nodes it runs on, as a Slurm list.
        started_at: None when not told.
        state: Slurm's word, ``RUNNING``, ``COMPLETING``, ….
    """

    step: str
    name: str
    node_list: str
    started_at: datetime | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """All steps of this user that run now.

    Attributes:
        cluster: The cluster that answered.
        age_s: Seconds since it was asked.
        steps: By ``JOB.STEP``.
    """

    cluster: str
    age_s: float
    steps: dict[str, Step]


def my_jobs(
    polls: Polls,
    *,
    fresh: bool = False,
    max_age_s: float = INTERVAL_S,
    patience_s: float = PATIENCE_S,
) -> Jobs:
    """Lists this user's jobs in all states and partitions of one cluster.

    Args:
        polls: Keeps polls apart.
        fresh: Only an answer that was asked for after this call.
        max_age_s: Oldest answer that will do, if not fresh.
        patience_s: How long this may take.

    Raises:
        SchedulerError: There is no answer. Nothing may be concluded from that.
    """
    answer = polls.ask(
        "squeue",
        _question(_JOBS, "--states=all"),
        fresh=fresh,
        max_age_s=max_age_s,
        patience_s=patience_s,
    )
    cluster, rows = _read(_JOBS, answer, polls)
    jobs = [_job(row) for row in rows]
    return Jobs(
        cluster=cluster, age_s=answer.age_s, jobs=_by_id("job", [(j.job_id, j) for j in jobs])
    )


def my_steps(
    polls: Polls,
    *,
    fresh: bool = False,
    max_age_s: float = INTERVAL_S,
    patience_s: float = PATIENCE_S,
) -> Steps:
    """Lists this user's running steps.

    A step of a node that died stays listed for a while, and one that is just starting may not be
    there yet. Arguments and errors are those of `my_jobs`.

    Raises:
        SchedulerError: There is no answer. Nothing may be concluded from that.
    """
    answer = polls.ask(
        "squeue",
        _question(_STEPS, "--steps"),
        fresh=fresh,
        max_age_s=max_age_s,
        patience_s=patience_s,
    )
    cluster, rows = _read(_STEPS, answer, polls)
    steps = [_step(row) for row in rows]
    return Steps(
        cluster=cluster, age_s=answer.age_s, steps=_by_id("step", [(s.step, s) for s in steps])
    )


def cluster_name(polls: Polls) -> str:
    """The name of the cluster that answers here; asked at most once an hour.

    Raises:
        SchedulerError: Slurm did not say.
    """
    answer = polls.ask("scontrol", commands.CONFIG_QUESTION, max_age_s=_CLUSTER_AGE_S)
    return commands.read_cluster_name(answer.text)


def _question(table: LongTable, *options: str) -> list[str]:
    # By number, since a user may have no name here. --local: jobs of a federation's other
    # clusters have ids of their own clusters.
    return ["squeue", "--local", "--all", f"--user={os.geteuid()}", *options, "-O", table.format]


def _read(table: LongTable, answer: Answer, polls: Polls) -> tuple[str, list[Row]]:
    """The cluster that answered, and the rows of this user."""
    found = table.read(answer.text)
    names = {name for row in found.rows if (name := text_or_none(row["Cluster"]))}
    if found.cluster is not None:
        names.add(found.cluster)
    if not names:
        names = {cluster_name(polls)}
    if len(names) > 1:
        raise NoAnswerError("squeue", f"several clusters answered at once ({sorted(names)})")
    me = str(os.geteuid())
    if any(row["UserID"] != me for row in found.rows):
        raise NoAnswerError("squeue", "it lists jobs of other users, although it was told not to")
    return names.pop(), found.rows


def _by_id(what: str, pairs: list[tuple[str, _T]]) -> dict[str, _T]:
    by_id = dict(pairs)
    if len(by_id) != len(pairs):
        raise NoAnswerError("squeue", f"it lists a {what} twice")
    return by_id


def _job(row: Row) -> Job:
    job_id = row["JobID"]
    if count_or_none(job_id) is None or not row["State"]:
        raise NoAnswerError("squeue", f"a row has job id {job_id!r} and state {row['State']!r}")
    return Job(
        job_id=job_id,
        name=row["Name"],
        comment=None if row["Comment"] in ("", "(null)") else row["Comment"],
        state=row["State"],
        partition=row["Partition"],
        account=text_or_none(row["Account"]),
        qos=text_or_none(row["QOS"]),
        nodes=count_or_none(row["NumNodes"]),
        node_list=text_or_none(row["NodeList"]) or "",
        reason=text_or_none(row["Reason"]),
        restarts=count_or_none(row["RestartCnt"]),
        submitted_at=time_or_none(row["SubmitTime"]),
        started_at=time_or_none(row["StartTime"]),
        ends_at=time_or_none(row["EndTime"]),
        time_limit_s=duration_s_or_none(row["TimeLimit"]),
        time_left_s=duration_s_or_none(row["TimeLeft"]),
        tres_per_node=text_or_none(row["tres-per-node"]),
        tres=amounts(row["tres-alloc"]),
        display_id=row["JobArrayID"],
        elements=_count_elements(row["ArrayTaskID"]),
    )


def _step(row: Row) -> Step:
    # The step of an array element is printed as ARRAY_INDEX.STEP, which is not its job id.
    job_id = row["JobID"]
    _, _, number = row["StepID"].partition(".")
    if count_or_none(job_id) is None or not number:
        raise NoAnswerError("squeue", f"a row has job id {job_id!r} and step {row['StepID']!r}")
    return Step(
        step=f"{job_id}.{number}",
        name=row["StepName"],
        node_list=text_or_none(row["Nodes"]) or "",
        started_at=time_or_none(row["StartTime"]),
        state=row["StepState"],
    )


def _count_elements(text: str) -> int:
    """How many elements ``0-2,7,10-20:5%2`` names; 1 for anything that is no such list."""
    count = 0
    for part in text.partition("%")[0].split(","):
        found = _ELEMENTS.fullmatch(part)
        if found is None:
            return 1
        first, last, stride = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        count += max(0, last - first) // max(1, stride) + 1
    return count
