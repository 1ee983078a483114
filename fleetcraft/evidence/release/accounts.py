"""How jobs ended, and what they used, by Slurm's accounting.

What that means for a gate is in `predicates`. Invariant: a job of which no end is written down has
none, and a use that the accounting does not state is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetcraft.errors import NoAnswerError, UsageError
from fleetcraft.slurm.accounting import NO_ACCOUNTS, keeps_accounts
from fleetcraft.slurm.polls import PATIENCE_S, Polls
from fleetcraft.slurm.tables import BarTable, Row, amounts, count_or_none

_JOBS = BarTable(
    program="sacct",
    columns=(
        ("JobIDRaw", "JobIDRaw"),
        ("Cluster", "Cluster"),
        ("State", "State"),
        ("ElapsedRaw", "ElapsedRaw"),
        ("AllocTRES", "AllocTRES"),
    ),
)
# Source: sacct(1), "JOB STATE CODES": what else it may print is an end.
_NOT_OVER = frozenset(
    {
        "CONFIGURING",
        "COMPLETING",
        "PENDING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "RESV_DEL_HOLD",
        "RUNNING",
        "SIGNALING",
        "SPECIAL_EXIT",
        "STAGE_OUT",
        "STOPPED",
        "SUSPENDED",
    }
)
_AT_ONCE = 200
_GPUS = "gres/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """What the accounting says of one job.

    Attributes:
        job: Its number.
        state: Slurm's words.
        ended: Whether that is an end.
        elapsed_s: How long it ran.
        gpus: How many GPUs it was given; None where the accounting does not count them.
    """

    job: str
    state: str
    ended: bool
    elapsed_s: int | None
    gpus: int | None

    @property
    def gpu_h(self) -> float | None:
        """GPU-hours that it was given."""
        if self.gpus is None or self.elapsed_s is None:
            return None
        return self.gpus * self.elapsed_s / 3600


def look_up(
    polls: Polls, jobs: Iterable[str], *, patience_s: float = PATIENCE_S
) -> dict[str, JobUse]:
    """What the accounting says of jobs; one that it does not know is not in the answer.

    Args:
        polls: Keeps polls apart.
        jobs: Their numbers.
        patience_s: How long each question may take; one asks for 200 jobs.

    Raises:
        UsageError: A number is none.
        SchedulerError: There is no answer, or no accounting to ask.
    """
    wanted = sorted(set(jobs), key=lambda job: (len(job), job))
    for job in wanted:
        if not (job.isascii() and job.isdecimal()):
            raise UsageError(f"no number of a job: {job!r}", job=job)
    if not wanted:
        return {}
    if not keeps_accounts(polls, patience_s=patience_s):
        raise NoAnswerError("sacct", NO_ACCOUNTS)
    found: dict[str, JobUse] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        found.update(_ask(polls, wanted[start : start + _AT_ONCE], patience_s))
    return found


def _ask(polls: Polls, jobs: Sequence[str], patience_s: float) -> dict[str, JobUse]:
    argv = [
        "sacct",
        "--allocations",
        "--parsable2",
        f"--jobs={','.join(jobs)}",
        f"--format={_JOBS.format}",
    ]
    answer = polls.ask("sacct", argv, fresh=True, patience_s=patience_s)
    uses = [_use(row) for row in _JOBS.read(answer.text).rows]
    return {use.job: use for use in uses if use.job in jobs}


def _use(row: Row) -> JobUse:
    state = row["State"]
    if not state:
        raise NoAnswerError("sacct", f"it lists job {row['JobIDRaw']} without a state")
    return JobUse(
        job=row["JobIDRaw"],
        state=state,
        ended=state.partition(" ")[0] not in _NOT_OVER,
        elapsed_s=count_or_none(row["ElapsedRaw"]),
        gpus=amounts(row["AllocTRES"]).get(_GPUS),
    )
