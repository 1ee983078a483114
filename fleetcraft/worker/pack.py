"""A pack seen from inside: the worker that is itself a task, and the outer task around it.

A pack has its node alone, leaves its own tasks less time to end than it is left itself, and ends
when the worker around it is gone: that one's next attempt must not meet it. Nothing here is needed
by a worker that is no task. Invariant: only what is certain ends a pack; what cannot be seen is no
reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from fleetcraft.identity import Owner, this_host
from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker.settings import WorkerSettings

GRACE_VARIABLE = "FLEET_GRACE_S"
"""Seconds between TERM and KILL when the worker stops the task that reads it."""
WALLTIME_VARIABLE = "FLEET_WALLTIME_S"
"""Seconds that were left of the allocation when the task began; not set without a limit."""
_INNER_SHARE = 0.5


def outer_owner(environ: Mapping[str, str]) -> Owner | None:
    """Who holds the task that this process is a part of; None when it is part of none.

    A job that was submitted from inside a task inherits that task's environment and is no part of
    it: its number is another one than the owner's, or the owner had none, on another machine.
    """
    owner = Owner.parse(environ.get("FLEET_OWNER", ""))
    job = environ.get("SLURM_JOB_ID")
    if owner is None or (owner.job.isdecimal() and owner.job != job):
        return None
    if job and not owner.job.isdecimal() and owner.job != this_host().local_job:
        return None
    return owner


def is_pack(root: str, environ: Mapping[str, str]) -> bool:
    """Whether this worker is itself a task of the same scratch tree: a pack on its node."""
    if outer_owner(environ) is None:
        return False
    return os.path.realpath(environ.get("FLEET_ROOT", "")) == os.path.realpath(root)


def fit_into_outer(
    settings: WorkerSettings, environ: Mapping[str, str]
) -> tuple[WorkerSettings, OuterTask | None]:
    """Makes a worker that is itself a task fit into that one; any other worker is as it was.

    The tasks of a pack end before it would be killed itself, and within the walltime that it was
    told. Half of the outer grace is for its tasks; the other half for killing and filing them.

    Returns:
        The settings, and the task that this worker is.
    """
    if not is_pack(settings.root, environ):
        return settings, None
    grace_s = _seconds(environ, GRACE_VARIABLE)
    left_s = _seconds(environ, WALLTIME_VARIABLE)
    if grace_s is not None:
        settings = replace(settings, grace_s=min(settings.grace_s, grace_s * _INNER_SHARE))
    if left_s is not None:
        own_s = settings.walltime_s
        settings = replace(settings, walltime_s=left_s if own_s is None else min(own_s, left_s))
    return settings, OuterTask(environ)


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    try:
        return max(0.0, float(environ.get(name, "")))
    except ValueError:
        return None


class OuterTask:
    """The task that this worker is.

    Args:
        environ: The environment that the outer worker gave it.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._owner = Owner.parse(environ.get("FLEET_OWNER", ""))
        self._task = environ.get("FLEET_TASK", "")
        self._tree = SpoolTree(environ.get("FLEET_SPOOL", ""))
        self._here = this_host()
        self._lease = leases.read(self._tree, self._owner.lease_name) if self._owner else None

    def over(self) -> str:
        """Why this pack has to end now; empty while it is wanted, or while nothing is known."""
        if self._owner is None or self._lease is None:
            return ""
        if leases.lives_here(self._lease, self._here) is False:
            return "the worker around this pack is gone"
        try:
            held = self._tree.fs.exists(self._tree.paths.claim(self._task, self._owner))
        except OSError:
            return ""
        return "" if held else "the claim of this pack was taken from the worker around it"
