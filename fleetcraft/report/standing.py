"""How a spool stands now: who works, what runs, what is blocked, and why nothing goes on.

Looks only. Invariant: a worker of which this machine cannot tell is unknown, and an unknown one is
nobody's reason to say that nothing will end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fleetcraft.errors import FleetError
from fleetcraft.identity import Owner, this_host
from fleetcraft.layout import State
from fleetcraft.report.task_records import Running
from fleetcraft.spool import leases, views
from fleetcraft.spool.dependencies import blocked_tasks
from fleetcraft.spool.tree import SpoolTree

_BLOCKED_READS = 2000


def workers_of(tree: SpoolTree) -> dict[str, int]:
    """Workers that have not left: ``alive``, ``gone`` and ``unknown`` to how many."""
    words = {True: "alive", False: "gone", None: "unknown"}
    here = this_host()
    there = [one for one in leases.read_all(tree) if one.left_at is None and one.role == "worker"]
    return dict(Counter(words[leases.lives_here(lease, here)] for lease in there))


def blocked_of(tree: SpoolTree, states: Mapping[str, str]) -> int | None:
    """Waiting tasks behind one that failed or is missing; None when they are too many to read.

    Args:
        tree: The spool.
        states: Every task's state.
    """
    if State.WAITING.value not in states.values():
        return 0
    blocked, _, unread = blocked_tasks(
        tree, lambda name: states.get(name, ""), limit=_BLOCKED_READS
    )
    if unread:
        return None
    return sum(each.blocker_state in (State.FAILED.value, "missing") for each in blocked)


def hindrance_of(
    markers: Mapping[str, str], workers: Mapping[str, int], blocked: int | None, left: int
) -> str:
    """Why nothing more of a spool will end; empty when nothing of the kind is known."""
    if markers:
        return f"{' and '.join(sorted(markers))} stands: no worker takes another task"
    if blocked and blocked >= left:
        return "all that is left waits for tasks that failed or are missing"
    if not (workers.get("alive") or workers.get("unknown")):
        return "no worker is there"
    return ""


def running_of(
    tree: SpoolTree, claims: Sequence[tuple[str, Owner]], limit: int
) -> Iterator[Running]:
    """The claims that are held longest, at most so many."""
    aged: list[tuple[float | None, str, Owner]] = []
    for name, owner in claims:
        try:
            claimed_s = tree.fs.lstat(tree.paths.claim(name, owner)).st_ctime
        except OSError:  # it has ended, or cannot be seen
            aged.append((None, name, owner))
        else:
            aged.append((max(0.0, time.time() - claimed_s), name, owner))
    aged.sort(key=lambda one: (-(one[0] or 0.0), one[1]))
    for age_s, name, owner in aged[:limit]:
        yield _running(tree, name, owner, age_s)


def _running(tree: SpoolTree, name: str, owner: Owner, age_s: float | None) -> Running:
    host = log = ""
    try:
        attempts = views.show(tree, name).attempts
    except (OSError, FleetError):
        attempts = ()
    if attempts and attempts[-1].outcome is None:
        host, log = attempts[-1].host, attempts[-1].log
    return Running(task=name, host=host, owner=str(owner), for_s=age_s, log=log)
