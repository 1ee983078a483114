"""What a control pass is given and what it says: the rules, the outside, decisions and reports.

Records only; `control` decides. Invariant: what a pass could not see is None in its report, and
the decision says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleetcraft.fleet.renewal.demand import Demand, Need
from fleetcraft.fleet.renewal.submission import Plan, Settled
from fleetcraft.fleet.renewal.supply import Supply
from fleetcraft.fleet.shapes import Shape
from fleetcraft.slurm.accounting import Balance
from fleetcraft.slurm.queue import Jobs


class Decision(StrEnum):
    """What a pass decided for one lane."""

    SUBMITTED = "submitted"
    WOULD_SUBMIT = "would submit"
    NOT_NEEDED = "not needed"
    SEEN = "seen"
    QUEUED = "queued"
    LIMIT = "limit"
    NO_PROGRESS = "no progress"
    BALANCE = "balance"
    MARKER = "marker"
    INTENT_OPEN = "intent open"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Trouble(StrEnum):
    """Who did not answer or refused."""

    NONE = ""
    SLURM = "slurm"
    FILES = "files"


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What a pass asks and does.

    Attributes:
        jobs: This user's jobs, asked for now; SchedulerError when Slurm did not say.
        demand: One look at the spools; OSError when they cannot be seen.
        markers: ``DRAIN`` and ``STOP`` with who wrote them.
        balance: What an account has left; SchedulerError when that was not said.
        plan: Works out a submission of a shape with a job comment and a job name.
        submit: Makes it and returns the job id. SubmissionUnknownError when nobody knows whether
            there is a job; any other SchedulerError when there is none.
        cancel: Cancels a job that came too late.
        in_accounting: The job of a name in Slurm's accounting: its id; empty when there is none, or
            no accounting. SchedulerError when that was not said.
        took_work: Whether any worker of a job has started a task.
    """

    jobs: Callable[[], Jobs]
    demand: Callable[[], Demand]
    markers: Callable[[], dict[str, str]]
    balance: Callable[[str], Balance]
    plan: Callable[[Shape, str, str], Plan]
    submit: Callable[[Any], str]
    cancel: Callable[[str], None]
    in_accounting: Callable[[str], str]
    took_work: Callable[[str], bool]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The numbers of the decision.

    Attributes:
        root: The scratch tree's mark.
        passes: Passes in a row that must see the need.
        by_hand: A person looked at it: one pass is enough, and so is a fleet that took no work.
        tasks_per_node: Tasks that justify one node.
        max_jobs: Fleets of this tree that may run or wait.
        gpus_per_node: None when fleets ask for no GPUs.
        slots: Slots of a worker where the lane says nothing.
        account: Whose balance is watched.
        tres: What it counts.
        headroom_h: Hours of it that must stay; None when that is not checked.
        settle_s: After so long a call of sbatch is over, whatever became of it.
    """

    root: str
    passes: int = 2
    by_hand: bool = False
    tasks_per_node: int = 1
    max_jobs: int = 2
    gpus_per_node: int | None = None
    slots: str = "1"
    account: str = ""
    tres: str = "node"
    headroom_h: float | None = None
    settle_s: float = 180.0


@dataclass(frozen=True, kw_only=True)
class LaneReport:
    """What a pass saw and decided for one lane.

    ``need`` is None where the pass could not see it, ``balance`` where it was not asked;
    ``trouble`` says who did not do as asked, Slurm or the file system.
    """

    lane: Shape
    decision: Decision
    reason: str
    need: Need | None = None
    supply: tuple[Supply, ...] = ()
    seen: int = 0
    job_id: str = ""
    window: int | None = None
    cost_h: float | None = None
    balance: Balance | None = None
    sbatch: tuple[str, ...] = ()
    trouble: Trouble = Trouble.NONE


@dataclass(frozen=True, kw_only=True)
class PassReport:
    """One pass.

    Attributes:
        lanes: One report a lane.
        settled: Open intents, and what was found out about them.
        queue_age_s: Age of Slurm's answer when all was decided.
        demand_age_s: Age of the look at the spools then.
        demand: What the spools held.
    """

    lanes: tuple[LaneReport, ...]
    settled: tuple[Settled, ...] = ()
    queue_age_s: float | None = None
    demand_age_s: float | None = None
    demand: Demand | None = None

    @property
    def undecided(self) -> list[Shape]:
        """Lanes of which another pass soon may decide more: needed, or with an open intent."""
        open_ones = (Decision.SEEN, Decision.INTENT_OPEN)
        return [report.lane for report in self.lanes if report.decision in open_ones]

    @property
    def trouble(self) -> Trouble:
        """Slurm's if it had any, else the file system's."""
        troubles = [lane.trouble for lane in self.lanes]
        troubles += [Trouble.SLURM for found in self.settled if found.unanswered]
        return max(troubles, default=Trouble.NONE)
