"""What a worker and a local fleet are told, and what they report.

Plain records, so that the command line can be parsed without loading the machinery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from fleetcraft.caches.scope import CacheSettings
from fleetcraft.identity import NO_JOB, JobRun

DEPTH_EVERY_S = 30.0


def depth_every_s(telemetry_interval_s: float) -> float:
    """Seconds between notes of the depth: in step with samples, from 1 s to 30 s."""
    wanted_s = telemetry_interval_s or DEPTH_EVERY_S
    return min(DEPTH_EVERY_S, max(1.0, wanted_s))


class WorkerExit(IntEnum):
    """Exit codes of a worker; 0, 6, 130 and 143 are everybody's, the others its own.

    ``GPU_LOST``: the driver has lost a GPU of this node, as its telemetry logger saw; it stopped
    claiming.
    ``NODE_UNFIT``: this node fails task after task within seconds; it stopped claiming.
    ``SPOOL_UNWRITABLE``: history could not be written; claims were left for recovery.
    """

    LEFT = 0
    GPU_LOST = 6
    NODE_UNFIT = 8
    SPOOL_UNWRITABLE = 9
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How one worker behaves.

    Attributes:
        spool_dir: The spool's folder.
        root: The scratch tree, exported to tasks as FLEET_ROOT.
        slots: ``1``, a number, or ``gpu`` for one slot per physical GPU.
        run: The run of the Slurm job that it is part of.
        rank: The launcher's index of this node.
        ranks: How many workers share the spool's work, for the stride.
        idle_s: It leaves after so long without anything to claim.
        heartbeat_s: Seconds between heartbeats.
        grace_s: Seconds between TERM and KILL when a task is stopped.
        walltime_s: Seconds left of the allocation when the worker starts; None without a limit.
        drain_margin_s: It stops claiming when less is left; None takes the smaller of 120 s and a
            tenth of the walltime.
        until_marker: It leaves only after this file exists and the queue was seen empty after it.
        after_marker: It claims nothing before the barrier record at this path verifies.
        orders: Whether its launcher writes orders to its input (see `orders`).
        node_failures: So many different tasks in a row, each failed within ``node_failure_s``,
            make the node unfit.
        node_failure_s: See ``node_failures``.
        telemetry_dir: Where tasks report their forward calls, and the node's logger writes; empty
            for neither.
        telemetry_interval_s: Seconds between the logger's samples; 0 starts none.
        depth_every_s: Seconds between notes of the spool's depth, by one worker of all.
        batch_table: The frozen batch table; empty for none.
        batch_require: Whether tasks that name a family need a row of it.
        batch_python: The Python whose torch tasks use; empty for the worker's own.
        caches: What the project says of caches; None tells tasks nothing about them.
    """

    spool_dir: str
    root: str
    slots: str = "1"
    run: JobRun = NO_JOB
    rank: int = 0
    ranks: int = 1
    idle_s: float = 1800.0
    heartbeat_s: float = 30.0
    grace_s: float = 10.0
    walltime_s: float | None = None
    drain_margin_s: float | None = None
    until_marker: str = ""
    after_marker: str = ""
    orders: bool = False
    node_failures: int = 10
    node_failure_s: float = 10.0
    telemetry_dir: str = ""
    telemetry_interval_s: float = 0.0
    depth_every_s: float = DEPTH_EVERY_S
    batch_table: str = ""
    batch_require: bool = False
    batch_python: str = ""
    caches: CacheSettings | None = None


@dataclass(kw_only=True)
class WorkerReport:
    """What one worker did: attempts by outcome, why it left, and its exit code."""

    exit_code: int = 0
    reason: str = ""
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class LocalRunReport:
    """What a run on this machine did.

    Attributes:
        done: Tasks completed.
        failed: Tasks that failed for good.
        interrupted: Attempts that were stopped and put back.
        retried: Attempts that failed and were put back.
        recovered: Claims of workers that died, closed or rolled forward.
        wall_s: Wall time of the run.
        left: Tasks that are still waiting or pending at the end.
        stopped: Why workers left early, empty when all work was done.
        exit_code: 0, 1 when something failed for good, 130/143 after a signal.
    """

    done: int = 0
    failed: int = 0
    interrupted: int = 0
    retried: int = 0
    recovered: int = 0
    wall_s: float = 0.0
    left: dict[str, int] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    exit_code: int = 0
