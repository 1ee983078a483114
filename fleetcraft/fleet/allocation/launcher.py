"""The launcher of an allocation: one worker a node, each as a step of its own, watched to the end.

Runs as the batch script's own process, or where a person typed it inside an allocation. One dead
node kills every task of a step, so each worker has its own. Not here: what is done about a node
(`roster`), and asking Slurm (`lookout`). Invariant: it ends when all steps are over, and whoever
stops it first lets the workers put back what they run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleetcraft.fleet.allocation.beside import Beside
from fleetcraft.fleet.allocation.lookout import Lookout
from fleetcraft.fleet.allocation.node_worker import NodeWorker
from fleetcraft.fleet.allocation.roster import DRAIN, INTERRUPT, AllocationPlan, Roster
from fleetcraft.fleet.allocation.signals import Signals
from fleetcraft.fleet.allocation.steps import Step, srun
from fleetcraft.fleet.judge import SlurmTruth
from fleetcraft.layout import Scratch
from fleetcraft.slurm.polls import Polls
from fleetcraft.slurm.steps import step_environment
from fleetcraft.spool.recovery import RecoveryReport

OnEvent = Callable[[Mapping[str, object]], None]

_WALLTIME_PATIENCE_S = 60.0
_EARLIEST_WARNING_S = 90.0
_STOP_MARGIN_S = 45.0
_ONE_PRESS_S = 1.0
_STAY_LOOK_S = 2.0
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationReport:
    """How an allocation went.

    Attributes:
        nodes: The nodes that had workers, each with why it is over.
        beside: How the command beside the workers failed; empty if it did not.
        exit_code: 0 when everybody left in order whose node was not lost, and somebody did; else
            1; 130 or 143 after a signal.
    """

    nodes: list[NodeWorker]
    beside: str
    exit_code: int


class Allocation:
    """One launcher; see `run`.

    Args:
        plan: What it is told.
        polls: How Slurm is asked.
        recover: One recovery pass over the spools, run now and then by a thread.
        recover_every_s: Pause between two of them.
        on_event: Told what happens, as plain mappings.
    """

    def __init__(
        self,
        plan: AllocationPlan,
        polls: Polls,
        *,
        recover: Callable[[SlurmTruth], RecoveryReport],
        recover_every_s: float,
        on_event: OnEvent,
    ) -> None:
        self._plan = plan
        self._on_event = on_event
        self._signals = Signals()
        self._lookout = Lookout(
            plan.job_id,
            polls,
            recover=recover,
            recover_every_s=recover_every_s,
            wake=self._signals.wake,
        )
        self._roster = Roster(plan, self._lookout.look_at_all, self._tell)
        self._beside: Beside | None = None
        self._began = time.monotonic()
        self._hold_until = self._began + _WALLTIME_PATIENCE_S
        self._drain_at = _NEVER
        self._harder_at = _NEVER
        self._stop_number = 0
        self._stopped_at = 0.0
        self._stay_until: float | None = None
        self._stranded = 0
        self._trouble = ""

    def run(self) -> AllocationReport:
        """Starts the steps and stays until all of them are over.

        Workers start once Slurm has told how much walltime is left, or a minute later.

        Raises:
            SlurmMissingError: srun cannot be started for the command beside the workers.
        """
        with self._signals:
            self._lookout.start()
            try:
                if self._plan.beside:
                    self._beside = self._start_beside()
                while not self._is_over():
                    self._signals.wait(self._due_at())
                    self._look_around()
            finally:
                self._lookout.stop()
        return self._report()

    def _look_around(self) -> None:
        for number in self._signals.take():
            self._obey(number)
        self._roster.collect()
        if self._beside is not None:
            self._look_beside(self._beside)
        for sight in self._lookout.take():
            self._roster.heed(sight)
            self._trouble = sight.trouble
            if sight.job is not None and self._hold_until < _NEVER:
                self._release()
        now = time.monotonic()
        if now >= self._hold_until:
            why = self._trouble or "no answer yet"
            text = f"Slurm does not tell the walltime left ({why}); workers start without"
            self._tell("note", None, text)
            self._release()
        if now >= self._drain_at:
            self._drain_at = _NEVER
            self._roster.leave(DRAIN, "the allocation ends soon")
        if now >= self._harder_at:
            self._stop_harder()
        self._roster.act()

    def _release(self) -> None:
        self._hold_until = _NEVER
        if not self._roster.order:
            self._roster.release()

    def _is_over(self) -> bool:
        beside_over = self._beside is None or self._beside.over
        return beside_over and self._roster.is_over() and not self._stays()

    def _stays(self) -> bool:
        """Whether the claims of lost nodes are waited for, and then workers that take them."""
        stranded = 0 if self._roster.order else self._roster.stranded()
        now = time.monotonic()
        if self._stay_until is None:
            if not stranded or not self._plan.claims_patience_s:
                return False
            self._stay_until = now + self._plan.claims_patience_s
            self._stranded = stranded
            text = f"tasks of workers that were lost ({stranded}) are waited for and run by others"
            self._tell("stay", None, text)
        if stranded:
            return now < self._stay_until
        self._stay_until = None
        return not self._roster.order and self._roster.start_again(self._stranded)

    def _due_at(self) -> float:
        look_at = _NEVER if self._stay_until is None else time.monotonic() + _STAY_LOOK_S
        limits = (self._hold_until, self._drain_at, self._harder_at, look_at)
        return min(*limits, self._roster.due_at())

    def _report(self) -> AllocationReport:
        nodes = self._roster.close()
        failure = self._beside.failure if self._beside is not None else ""
        some_left = any(node.in_order for node in nodes) or not nodes
        code = int(
            bool(failure) or not some_left or not all(node.in_order or node.lost for node in nodes)
        )
        if self._stop_number:
            code = 130 if self._stop_number == signal.SIGINT else 143
        return AllocationReport(nodes=nodes, beside=failure, exit_code=code)

    # -- orders

    def _obey(self, number: int) -> None:
        if number == signal.SIGUSR1:
            self._warned()
        elif not self._stop_number:
            self._stop_number = number
            self._stopped_at = time.monotonic()
            self._harder_at = self._stopped_at + self._plan.grace_s + _STOP_MARGIN_S
            self._roster.leave(INTERRUPT, f"stopped by {signal.Signals(number).name}")
            if self._beside is not None:
                self._beside.stop(1)
        elif time.monotonic() - self._stopped_at > _ONE_PRESS_S:
            self._stop_harder()

    def _warned(self) -> None:
        """Drains, at the time for which the warning was asked.

        Slurm may send it a minute early, which on a short walltime would be most of it. One that
        comes earlier than that is from a person, or announces a preemption.

        Source: ``--signal`` of sbatch(1).
        """
        ends = self._roster.ends
        earliest_s = self._plan.warning_s + _EARLIEST_WARNING_S
        if ends is not None and ends - time.monotonic() <= earliest_s:
            # Asked for by hand, it may be meant for longer walltimes than this one.
            before_s = min(self._plan.warning_s, (ends - self._began) / 10)
            self._drain_at = min(self._drain_at, ends - before_s)
        else:
            self._roster.leave(DRAIN, "warned by SIGUSR1")

    def _stop_harder(self) -> None:
        self._tell("note", None, "what is left is killed; recovery puts its tasks back")
        self._harder_at = time.monotonic() + self._plan.grace_s + _STOP_MARGIN_S
        self._roster.kill()
        if self._beside is not None:
            self._beside.stop(2)

    # -- the command beside the workers

    def _start_beside(self) -> Beside:
        plan = self._plan
        nodes = plan.nodes[: plan.beside_nodes]
        counts = {plan.gpus.get(node) for node in nodes}
        argv = srun(
            nodes,
            name="fleet-beside",
            project_dir=plan.project_dir,
            gpus=counts.pop() if len(counts) == 1 else None,
            orders=False,
        )
        log = Scratch(plan.root).beside_log(plan.job_id)
        step = Step(
            [*argv, "bash", "-c", plan.beside],
            step_environment(os.environ, FLEET_ROOT=plan.root),
            log,
            orders=False,
        )
        self._tell("beside", None, f"started on {' '.join(nodes)}, log {log}")
        return Beside(
            step,
            after_marker=plan.after_marker,
            until_marker=plan.until_marker,
            wake=self._signals.wake,
        )

    def _look_beside(self, beside: Beside) -> None:
        if beside.poll():
            self._tell("beside", None, f"it is over: {beside.failure or 'it ended well'}")
        if beside.broken_promise:
            self._roster.leave(DRAIN, beside.broken_promise)

    def _tell(self, event: str, node: NodeWorker | None, text: str) -> None:
        facts: dict[str, object] = {"event": event, "text": text}
        if node is not None:
            facts |= {"node": node.name, "rank": node.rank}
        self._on_event(facts)
