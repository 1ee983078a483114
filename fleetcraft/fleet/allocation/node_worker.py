"""One node of an allocation: its worker's step, how often that was started, and why it is over.

Not here: when something is to be done. Invariant: at most one step is started at a time, and a
node that is over is started again only if its worker had left in order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleetcraft.fleet.allocation.lookout import Sight
from fleetcraft.fleet.allocation.steps import Step
from fleetcraft.spool import leases
from fleetcraft.spool.tree import SpoolTree

_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_GOOD_RUN_S = 600.0
_AWAY_FLAGS = frozenset({"not_responding", "powered_down", "powering_down", "power_down"})


@dataclass(kw_only=True)
class NodeWorker:
    """A node and its worker.

    Attributes:
        name: The node.
        rank: Its index among those that have workers.
        step: What runs now.
        started: When that was started, monotonic.
        starts: How often it was started.
        restarts: How often it was started again since it last ran well for ten minutes.
        due: When it is to be started, monotonic; None unless it is to be.
        doubt: Since when Slurm's word about it is waited for, monotonic.
        code: How its last step ended.
        away: Slurm said that the node is down; it may come back.
        over: Why nothing more happens here; empty while something may.
        in_order: Whether it left as it should.
        lost: The node itself was lost, which is nobody's failure here.
        known_leases: Those of earlier starts.
        blind: They could not be listed, so that a lease of the last start cannot be told from them.
    """

    name: str
    rank: int
    step: Step | None = None
    started: float = 0.0
    starts: int = 0
    restarts: int = 0
    due: float | None = None
    doubt: float | None = None
    code: int | None = None
    away: bool = False
    over: str = ""
    in_order: bool = True
    lost: bool = False
    known_leases: set[str] = field(default_factory=set)
    blind: bool = False

    @property
    def step_name(self) -> str:
        """What its step is called in Slurm."""
        return f"fleet-{self.rank}"

    @property
    def active(self) -> bool:
        """Whether its worker runs, is to be started, or is asked about."""
        return not self.over and not self.away

    def begin(self, argv: Sequence[str], env: Mapping[str, str], log: str) -> None:
        """Starts its worker.

        Raises:
            SlurmMissingError: srun cannot be started.
            OSError: The log cannot be made.
        """
        self.due = None
        self.step = Step(argv, env, log, orders=True)
        self.started = time.monotonic()
        self.starts += 1

    def ended(self) -> bool:
        """Whether its step has ended just now; ``code`` then says how."""
        if self.step is None:
            return False
        code = self.step.poll()
        if code is None:
            return False
        self.code = code
        self.step = None
        if time.monotonic() - self.started >= _GOOD_RUN_S:
            self.restarts = 0
        return True

    def finish(self, why: str, *, in_order: bool, lost: bool = False) -> None:
        """Nothing more happens here, unless it left in order and is needed once more."""
        self.over = why
        self.in_order = in_order
        self.lost = lost
        self.due = self.doubt = None
        self.away = False

    def restart(self, limit: int) -> float | None:
        """Is to be started again after a pause that grows; its length, or None past the limit."""
        self.doubt = None
        if self.restarts >= limit:
            return None
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 3.0**self.restarts)
        self.restarts += 1
        self.due = time.monotonic() + pause_s
        return pause_s

    def is_back(self) -> None:
        """The node was away and is there again: its worker is to be started at once."""
        self.away = False
        self.doubt = None
        self.due = time.monotonic()

    def comes_again(self) -> None:
        """It had left in order, and there is work for it again."""
        self.over = ""
        self.due = time.monotonic()

    # -- what is known of it

    def remember_leases(self, tree: SpoolTree, job_id: str) -> None:
        """Takes note of the leases of earlier starts, and of an earlier run of the same job."""
        there = self._leases(tree, job_id)
        self.blind = there is None
        self.known_leases.update(there or ())

    def goodbye(self, tree: SpoolTree, job_id: str) -> str | None:
        """Why its last worker left, as its own lease says; None when it does not say that it has.

        Also None when the lease cannot be seen (yet): what another node wrote may come late.
        """
        there = self._leases(tree, job_id)
        if self.blind or there is None:
            return None
        fresh = [leases.read(tree, name) for name in there - self.known_leases]
        if not fresh or not all(lease is not None and lease.left_at for lease in fresh):
            return None
        return next((lease.reason for lease in fresh if lease is not None), "")

    def _leases(self, tree: SpoolTree, job_id: str) -> set[str] | None:
        try:
            names = tree.fs.listdir(tree.paths.workers)
        except OSError:
            return None
        return {
            name.removesuffix(".json")
            for name in names
            if name.startswith(f"{job_id}.{self.rank}.") and name.endswith(".json")
        }

    def is_away(self, sight: Sight) -> bool:
        """Whether Slurm said that the node is down or does not answer."""
        node = (sight.nodes or {}).get(self.name)
        return node is not None and (node.is_down or bool(node.flags & _AWAY_FLAGS))

    def listed_step(self, sight: Sight, job_id: str) -> str:
        """The step of this node's worker that Slurm still lists; empty if none."""
        for step in (sight.steps or {}).values():
            if step.step.startswith(f"{job_id}.") and step.name == self.step_name:
                return step.step
        return ""
