"""The Slurm step of a launch over several nodes: its srun, its name, and whose it is.

Not here: starting and cancelling. Invariants: a step is found by a name that holds the nonce of its
launch, since ids are used again; only a numbered step that is neither this process's own nor that
of the worker it runs under may be cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.identity import OWNER_VARIABLE, this_job_run
from fleetcraft.slurm.steps import one_per_node
from fleetcraft.training.records import StepRecord

if TYPE_CHECKING:  # a keeper asks Slurm nothing, and starts in half the time without its tables
    from fleetcraft.slurm.polls import Polls
    from fleetcraft.slurm.queue import Step

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Numbers from here on are the batch, extern and interactive steps. Source: slurm.h of 22.05."""


def step_name(run: str, nonce: str) -> str:
    """The name of a launch's step: no other launch has it."""
    return f"train-{run}-{nonce}"


def in_numbered_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is part of a step that an srun has started."""
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP


def is_one_of_several(environ: Mapping[str, str]) -> bool:
    """Whether this process is one of several ranks of a step that all run the same command.

    A task of a fleet is none: what it runs is its own, also where its worker is such a rank.

    Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES": SLURM_STEP_NUM_TASKS.
    """
    ranks = environ.get("SLURM_STEP_NUM_TASKS", "")
    several = ranks.isdecimal() and int(ranks) > 1
    return several and in_numbered_step(environ) and OWNER_VARIABLE not in environ


def nodes_of_step(run: str, count: int, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The nodes that a run gets where it is started in a step of several ranks: of that step's.

    The job's other nodes are somebody else's, such as those of workers beside it.

    Args:
        run: Its name.
        count: How many nodes it wants.
        environ: This process's environment.

    Returns:
        So many names; none where Slurm may choose, or where one node is wanted.

    Raises:
        ConfigError: The step has fewer.
        SchedulerError: Its nodes could not be named.
    """
    if count < 2 or not is_one_of_several(environ):
        return ()
    from fleetcraft.slurm import commands

    names = tuple(commands.hostnames(environ.get("SLURM_STEP_NODELIST", "")))
    if len(names) < count:
        raise ConfigError(
            f"run {run!r} wants {count} nodes, and the step that this is called in has "
            f"{len(names)} ({' '.join(names)}); nothing was launched",
            hint=f"start that step on {count} nodes, or declare nodes: {len(names)}",
            nodes=count,
        )
    return names[:count]


def srun(
    nodes: int,
    *,
    name: str,
    directory: str,
    gpus_per_node: int | None,
    overlap: bool,
    node_list: Sequence[str] = (),
) -> list[str]:
    """The srun that starts one keeper on each of some nodes of this job.

    Without ``--overlap`` the step has its nodes to itself, so that a plain ``srun`` beside it lands
    on the surplus ones. Inside a step, whose nodes its own processors may be, it would wait for
    ever, and so it overlaps there.

    Args:
        nodes: How many nodes.
        name: The step's name.
        directory: Where the keepers start.
        gpus_per_node: None leaves it to srun, which gives what the job asked for.
        overlap: Whether it may share its nodes with other steps.
        node_list: Which nodes; Slurm chooses if empty.
    """
    words = one_per_node(
        nodes,
        name=name,
        directory=directory,
        gpus=gpus_per_node,
        overlap=overlap,
        nodes=node_list,
    )
    # Each keeper tells the end of its own node.
    return [*words, "--input=none", "--kill-on-bad-exit=0", "--wait=0", "--disable-status"]


def this_step(environ: Mapping[str, str]) -> StepRecord | None:
    """The step that this process is part of, that of the worker above it included.

    A task of a fleet runs in the step of its worker loop, so the two are the same.
    """
    run = this_job_run(environ)
    if not run.job or not run.step:
        return None
    return StepRecord(job=run.job, step=run.step, cluster=run.cluster, job_start_s=run.start_s)


def find_step(steps: Mapping[str, Step], name: str, known: StepRecord | None) -> Step | None:
    """The step of a launch in a successful answer; None when it is not there.

    Args:
        steps: What Slurm told, by ``JOB.STEP``.
        name: The step's name.
        known: Its id, when a keeper has told that; a step of that id and another name is not it.
    """
    if known is not None:
        found = steps.get(known.id)
        return found if found is not None and found.name == name else None
    return next((step for step in steps.values() if step.name == name), None)


def why_not_cancelled(step: str, own: Sequence[StepRecord]) -> str:
    """Why a step must not be cancelled; empty when it may be.

    Args:
        step: As scancel would get it.
        own: Steps that this process is part of.
    """
    job, _, number = step.partition(".")
    if not job.isdecimal() or not number.isdecimal() or int(number) >= _FIRST_SPECIAL_STEP:
        return f"{step or 'nothing'} is not one numbered step of one job"
    if step in {record.id for record in own}:
        return f"step {step} is the one that this process runs in"
    return ""


def require_cancellable(step: str, own: Sequence[StepRecord]) -> None:
    """Refuses to cancel what is not one step of another.

    Raises:
        UsageError: Nothing was cancelled.
    """
    if why := why_not_cancelled(step, own):
        raise UsageError(f"refusing to cancel: {why}; nothing was cancelled", step=step)


def ask_steps(polls: Polls, *, fresh: bool = False) -> dict[str, Step]:
    """The steps of this user that run now, by ``JOB.STEP``.

    Raises:
        SchedulerError: There is no answer; nothing may be concluded from that.
    """
    from fleetcraft.slurm.queue import my_steps

    return my_steps(polls, fresh=fresh).steps
