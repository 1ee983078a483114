"""The environment of a command: what its keeper adds to its own, node by node.

Records in, variables out. Invariant: what identifies the launch always wins over what a run
declares; where several nodes meet is only a default, and so is where caches are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fleetcraft.caches.scope import Purpose, Scope, environment_for
from fleetcraft.errors import NoAnswerError
from fleetcraft.identity import sha256_hex
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.training.launching.order import (
    BUILT,
    EPOCH,
    ERROR_FILE,
    FIRST_NODE,
    NODE,
    NODE_COUNT,
    NODE_RANK,
    NONCE,
    PROGRESS,
    RUN,
    Order,
)


def command_environment(
    order: Order, paths: AttemptPaths, node: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Every variable of the command on one node.

    Args:
        order: The launch.
        paths: Its attempt.
        node: This node.
        environ: The keeper's own environment.

    Raises:
        SchedulerError: The nodes of the step could not be named.
    """
    given = {**environ, **_meeting(order, environ), **order.environment}
    return {
        **given,
        **_caches(order, paths, node, given),
        NONCE: order.nonce,
        NODE: node,
        RUN: order.run,
        EPOCH: str(order.epoch),
        PROGRESS: paths.progress,
        BUILT: paths.built,
        ERROR_FILE: paths.error_file(node),
    }


def _caches(
    order: Order, paths: AttemptPaths, node: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Where caches are: generated sources of this node and launch, graphs of this node and run."""
    if order.caches is None:
        return {}
    # Epochs of a run follow one another; a run of this name in another tree may not.
    run_folder = os.path.dirname(paths.folder)
    key = sha256_hex(os.fsencode(run_folder))[:8]
    scope = Scope(
        node=node,
        run=order.run,
        attempt=f"{order.epoch}.{order.nonce}",
        slot=f"{node}-{order.run}-{key}",
        purpose=Purpose.TRAIN,
    )
    return environment_for(scope, environ, order.caches)


def _meeting(order: Order, environ: Mapping[str, str]) -> dict[str, str]:
    """Which node this is of how many, and where they meet; nothing for a keeper without a step.

    torchrun takes each option that it is not given from ``PET_<OPTION>``. Source:
    torch/distributed/argparse_util.py of torch 2.13.
    """
    if not order.step_name:
        return {}
    from fleetcraft.slurm import commands  # only where there is a step: it costs a keeper's start

    rank = environ.get("SLURM_NODEID", "")
    names = commands.hostnames(environ.get("SLURM_STEP_NODELIST", ""))
    if not rank.isdecimal() or not names:
        raise NoAnswerError("srun", "the step does not say which node this is of which nodes")
    found = {NODE_RANK: rank, NODE_COUNT: str(order.nodes), FIRST_NODE: names[0]}
    if order.nodes > 1:
        found |= {
            "PET_NNODES": str(order.nodes),
            "PET_NODE_RANK": rank,
            "PET_MASTER_ADDR": names[0],
            "PET_MASTER_PORT": str(order.port),
        }
    return found
