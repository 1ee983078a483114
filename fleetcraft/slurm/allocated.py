"""How many GPUs a job has on each of its nodes, as scontrol tells.

Not here: GPUs that a job asked for; on a node that it has whole it may have more. Invariant: a
node that the answer does not name, or not so that it can be read, has no entry, and is never said
to have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleetcraft.errors import NoAnswerError
from fleetcraft.slurm import commands
from fleetcraft.slurm.nodes import gpus_in, parse_gres

_ON_NODES = re.compile(r"^\s*Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.MULTILINE)


def gpus_by_node(job_id: str) -> dict[str, int]:
    """GPUs of a job by node.

    srun gives a step what its job asked for, and nothing of what it only got with a whole node; a
    job with a number of GPUs over all its nodes (``--gpus``) gets no step on one node at all. So
    a launcher has to say how many (seen with 22.05).

    Raises:
        SchedulerError: scontrol did not answer, or what it printed is not about this job.
    """
    return read_gpus(job_id, commands.run(["scontrol", "show", "job", "--details", job_id]))


def read_gpus(job_id: str, text: str) -> dict[str, int]:
    """The same, from what ``scontrol show job --details`` printed."""
    if not re.match(rf"JobId={re.escape(job_id)}\b", text):
        raise NoAnswerError("scontrol", f"what it printed is not about job {job_id}")
    found = {}
    for node_list, gres in _ON_NODES.findall(text):
        count = gpus_in(parse_gres(gres))
        if count is not None:
            found.update(dict.fromkeys(commands.hostnames(node_list), count))
    return found


def gpus_of_steps(by_node: Mapping[str, int]) -> dict[str, int]:
    """GPUs that a step on one node may ask for: on nodes of several kinds those of the smallest.

    A step that asks for more a node than the smallest node of its job has is refused, also where
    it is to run on a larger one ("Invalid generic resource (gres) specification", seen with
    22.05). One node without any GPU leaves none to the steps.
    """
    least = min(by_node.values(), default=0)
    return dict.fromkeys(by_node, least)
