"""How one step ended, in Slurm's own word: its state and exit code, from the accounting.

Not here: what that means. Invariant: only the row of exactly that step counts, found by its id and
its name, since ids are used again; a step of which no end is written down has none, not a good one.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetcraft.errors import NoAnswerError
from fleetcraft.slurm.accounting import NO_ACCOUNTS, keeps_accounts
from fleetcraft.slurm.polls import PATIENCE_S, Polls
from fleetcraft.slurm.tables import BarTable

_STEPS = BarTable(
    program="sacct",
    columns=(
        ("JobIDRaw", "JobIDRaw"),
        ("JobName", "JobName"),
        ("Cluster", "Cluster"),
        ("State", "State"),
        ("ExitCode", "ExitCode"),
    ),
)
_NOT_OVER = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "REQUEUED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """How a step ended.

    Attributes:
        state: Slurm's words, such as ``OUT_OF_MEMORY`` or ``CANCELLED by 1000``. CANCELLED by
            nobody is what it writes of a task that any signal ended (seen with 22.05).
        exit_code: ``exit:signal``, such as ``0:125``.
    """

    state: str
    exit_code: str


def step_end(
    polls: Polls,
    step: str,
    name: str,
    *,
    cluster: str = "",
    patience_s: float = PATIENCE_S,
) -> StepEnd | None:
    """How a step of this user ended.

    The accounting learns of an end some moments after it.

    Args:
        polls: Keeps polls apart.
        step: ``JOB.STEP``.
        name: The step's name; a step of another name is another one.
        cluster: The step's cluster; empty for whichever answers.
        patience_s: How long each of the questions may take.

    Returns:
        None while no end of it is written down.

    Raises:
        SchedulerError: There is no answer, or no accounting to ask.
    """
    if not keeps_accounts(polls, patience_s=patience_s):
        raise NoAnswerError("sacct", NO_ACCOUNTS)
    argv = ["sacct", "--parsable2", f"--jobs={step}", f"--format={_STEPS.format}"]
    answer = polls.ask("sacct", argv, fresh=True, patience_s=patience_s)
    for row in _STEPS.read(answer.text).rows:
        ours = row["JobIDRaw"] == step and row["JobName"] == name
        if not ours or (cluster and row["Cluster"] != cluster):
            continue
        state = row["State"]
        if not state:
            raise NoAnswerError("sacct", f"it lists step {step} without a state")
        return None if state in _NOT_OVER else StepEnd(state=state, exit_code=row["ExitCode"])
    return None
