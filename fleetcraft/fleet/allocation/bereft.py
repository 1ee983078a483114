"""The end of a job whose launcher's node died: the last worker to leave gives the job back.

With ``--no-kill`` Slurm keeps such a job, and its nodes, to the end of its walltime with nothing in
it. Invariant: a job is cancelled only on whole answers, when the batch script's node is no longer
in it, and no worker and no other step is left on the nodes that are.
"""

from __future__ import annotations

import re

from fleetcraft.errors import NoAnswerError, SchedulerError
from fleetcraft.slurm import commands
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.queue import my_steps
from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree

_FACT = re.compile(r"(?:^|\s)(JobId|JobState|BatchHost|NodeList)=(\S*)")
_OWN_STEPS = ("batch", "extern", "interactive")
_STEP_NAMES = "fleet-"


def give_back_job(tree: SpoolTree, job_id: str, launcher: str, polls: Polls) -> str:
    """Cancels this job if its launcher's node is lost and nobody works in it any more.

    To be called by a worker that has left, and whose lease says so. Asks Slurm only when every
    other worker has left too, or was on the launcher's node: of a fleet that is one or two.

    Args:
        tree: The spool that the job's workers serve.
        job_id: This job.
        launcher: The node of its launcher.
        polls: How Slurm is asked.

    Returns:
        What was done, or what is not known, in words; empty when nothing was to be done.
    """
    try:
        if _others_are_there(tree, job_id, launcher):
            return ""
        nodes = _nodes_without_launcher(job_id, launcher)
        if not nodes:
            return ""
        steps = my_steps(polls, fresh=True).steps.values()
        others = [step.step for step in steps if _is_foreign(step.step, step.name, job_id)]
        if others:
            return (
                f"job {job_id} has lost {launcher}, its launcher's node; step {others[0]} runs on"
            )
        commands.cancel(job_id)
    except (SchedulerError, OSError) as error:
        return f"it is not known whether job {job_id} has lost its launcher: {error}"
    return f"job {job_id} was cancelled: it had lost {launcher}, its launcher's node"


def _others_are_there(tree: SpoolTree, job_id: str, launcher: str) -> bool:
    """Whether a worker on another node than the launcher's has not left, as far as is known."""
    for file in tree.fs.listdir(tree.paths.workers):
        if file.startswith(f"{job_id}.") and file.endswith(".json"):
            lease = leases.read(tree, file.removesuffix(".json"))
            if lease is None or (not lease.left_at and lease.host != launcher):
                return True
    return False


def _nodes_without_launcher(job_id: str, launcher: str) -> list[str]:
    """The nodes that a running job still has; empty while the launcher's is one of them."""
    text = commands.run(["scontrol", "show", "job", job_id])
    facts = dict(reversed(_FACT.findall(text)))
    if facts.get("JobId") != job_id or not facts.get("NodeList"):
        raise NoAnswerError("scontrol", f"what it printed is not about job {job_id}")
    nodes = commands.hostnames(facts["NodeList"])
    is_lost = facts.get("JobState") == "RUNNING" and facts.get("BatchHost") == launcher
    return nodes if is_lost and launcher not in nodes else []


def _is_foreign(step: str, name: str, job_id: str) -> bool:
    job, _, number = step.partition(".")
    return job == job_id and number not in _OWN_STEPS and not name.startswith(_STEP_NAMES)
