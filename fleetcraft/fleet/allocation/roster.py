"""The workers of an allocation, node by node: which are started, which are over, and why.

Not here: signals, the walltime, and the command beside the workers (`launcher`). Invariants:
what Slurm did not say never counts as a node's death, and no second worker is started on a node
while the first may live.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleetcraft.errors import FleetError, SchedulerError
from fleetcraft.fleet.allocation.lookout import Sight
from fleetcraft.fleet.allocation.node_worker import NodeWorker
from fleetcraft.fleet.allocation.steps import Ending, describe_end, ending, srun
from fleetcraft.identity import this_host
from fleetcraft.layout import Scratch
from fleetcraft.slurm import commands
from fleetcraft.slurm.steps import step_environment
from fleetcraft.spool.control import read_markers
from fleetcraft.spool.tree import SpoolTree, describe_problem

Tell = Callable[[str, "NodeWorker | None", str], None]
DRAIN = "drain"
INTERRUPT = "interrupt"
_DOUBT_PATIENCE_S = 300.0
_ASK_AGAIN_S = 15.0
_AWAY_LOOK_S = 60.0
_SPOOL_REFUSES = 5
_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPlan:
    """What a launcher is told.

    Attributes:
        job_id: This job.
        job_restarts: How often it was requeued, as its environment says; empty: it does not say.
        nodes: Its nodes, in Slurm's order.
        gpus: GPUs that the job has on each node; a node that is missing is left to srun.
        worker: The worker's command line, but for its rank and the walltime.
        tree: The spool that the workers serve.
        root: The scratch tree, where logs go.
        project_dir: Where steps run.
        restarts: How often a worker that died is started again.
        grace_s: Seconds between TERM and KILL when a worker stops a task.
        warning_s: So long before the end Slurm was asked to warn.
        beside: A command that runs beside the workers; empty for none.
        beside_nodes: It runs on so many nodes, the first ones.
        after_marker: Workers claim nothing before this barrier record verifies.
        until_marker: Workers leave only after this file exists.
        claims_patience_s: When all others have left, the claims of a lost node are waited for so
            long: until its lease has fallen silent and they are back.
    """

    job_id: str
    nodes: tuple[str, ...]
    worker: tuple[str, ...]
    tree: SpoolTree
    root: str
    project_dir: str
    restarts: int
    grace_s: float
    warning_s: float
    job_restarts: str = ""
    gpus: Mapping[str, int]
    beside: str = ""
    beside_nodes: int = 0
    after_marker: str = ""
    until_marker: str = ""
    claims_patience_s: float = 0.0


class Roster:
    """The workers of one allocation.

    Args:
        plan: What the launcher is told.
        ask: Has Slurm asked about job, nodes and steps.
        tell: Told what happens, of which node, in words.

    Attributes:
        ends: When the walltime is over, monotonic; None while that is not known, or never.
        order: ``drain`` or ``interrupt`` once the workers were asked to leave.
    """

    def __init__(self, plan: AllocationPlan, ask: Callable[[], None], tell: Tell) -> None:
        self._plan = plan
        self._ask = ask
        self._tell = tell
        names = plan.nodes[plan.beside_nodes :]
        self.nodes = [NodeWorker(name=name, rank=rank) for rank, name in enumerate(names)]
        self.ends: float | None = None
        self.order = ""
        self._env = step_environment(
            os.environ, FLEET_RANKS=str(len(names)), FLEET_LAUNCHER_NODE=this_host().host
        )
        self._ask_at = _NEVER
        self._slurm_is_silent = False
        for node in self.nodes:
            node.remember_leases(plan.tree, plan.job_id)

    def is_over(self) -> bool:
        """Whether nothing more is to be expected: nobody stays for a node that may come back.

        While Slurm says nothing, a worker in doubt may live, and the end of the job would end it.
        """
        active = [node for node in self.nodes if node.active]
        doubts = [node.doubt for node in active if node.doubt is not None]
        if len(doubts) < len(active) or (doubts and self._slurm_is_silent):
            return False
        return not doubts or time.monotonic() > max(doubts) + _DOUBT_PATIENCE_S

    def stranded(self) -> int:
        """Claims that a worker which did not leave in order may have left behind.

        Asked when no worker runs any more; what cannot be listed now is not waited for.
        """
        if all(node.over and node.in_order for node in self.nodes):
            return 0
        try:
            claims = self._plan.tree.claims()
        except OSError:
            return 0
        return sum(owner.job == self._plan.job_id for _, owner in claims)

    def start_again(self, count: int) -> bool:
        """Starts so many workers again that had left in order; says whether there are any."""
        left = [node for node in self.nodes if node.over and node.in_order][:count]
        for node in left:
            node.comes_again()
        return bool(left)

    def due_at(self) -> float:
        """The monotonic time at which something is to be done."""
        times = [self._ask_at]
        times += [node.due for node in self.nodes if node.due is not None]
        times += [n.doubt + _DOUBT_PATIENCE_S + 1 for n in self.nodes if n.doubt is not None]
        return min(times)

    def act(self) -> None:
        """Does what is due."""
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = _NEVER
            self._ask()
        for node in self.nodes:
            if node.due is not None and node.due <= now:
                self._start(node)

    def close(self) -> list[NodeWorker]:
        """Every node with why it is over, also those about which nothing was found out."""
        for node in self.nodes:
            if node.away:
                node.finish("the node is down", in_order=False, lost=True)
            elif not node.over:
                why = f"{describe_end(node.code or 0)}, and nobody can say what became of it"
                node.finish(why, in_order=False)
        return self.nodes

    # -- orders

    def release(self) -> None:
        """Workers may start now."""
        now = time.monotonic()
        for node in self.nodes:
            if node.starts == 0 and not node.over:
                node.due = now

    def leave(self, order: str, why: str) -> None:
        """Asks every worker to leave, and starts none any more."""
        if self.order in (order, INTERRUPT):
            return
        self.order = order
        self._tell(order, None, why)
        for node in self.nodes:
            if node.step is not None:
                node.step.say(order)
            elif not node.over:
                node.finish(why, in_order=node.code is None)

    def kill(self) -> None:
        """Ends what still runs, tasks included; recovery puts these back."""
        for node in self.nodes:
            if node.step is not None:
                node.step.signal(signal.SIGTERM)

    # -- starting

    def _start(self, node: NodeWorker) -> None:
        plan = self._plan
        node.remember_leases(plan.tree, plan.job_id)
        argv = srun(
            [node.name],
            name=node.step_name,
            project_dir=plan.project_dir,
            gpus=plan.gpus.get(node.name),
            orders=True,
        )
        worker = [*plan.worker, "--orders"]
        if self.ends is not None:
            worker.append(f"--walltime={max(1, int(self.ends - time.monotonic()))}s")
        log = Scratch(plan.root).worker_log(plan.job_id, node.rank)
        try:
            node.begin([*argv, *worker], {**self._env, "FLEET_RANK": str(node.rank)}, log)
        except (OSError, FleetError) as error:
            self._finish(
                node, f"it could not be started: {describe_problem(error)}", in_order=False
            )
            return
        self._tell("start", node, f"started, log {log}")

    # -- what has ended

    def collect(self) -> None:
        """Looks which steps have ended, and decides what follows."""
        for node in self.nodes:
            if node.ended():
                self._judge(node, node.code or 0)

    def _judge(self, node: NodeWorker, code: int) -> None:
        meaning = ending(code)
        how = describe_end(code)
        if meaning is Ending.MAYBE_LEFT:
            why = node.goodbye(self._plan.tree, self._plan.job_id)
            if why is not None or self.order:
                self._finish(node, why or "its step is over", in_order=True)
            else:
                self._doubt(node, "its step is over, but it did not say that it left")
        elif meaning is Ending.TOLD and self.order == INTERRUPT:
            self._finish(node, "it put back what it ran", in_order=True)
        elif self.order or meaning in (Ending.STAYS_AWAY, Ending.TOLD):
            in_order = code == _SPOOL_REFUSES and self._markers_stand()
            self._finish(node, how, in_order=in_order)
        elif meaning is Ending.SRUN:
            self._doubt(node, how)
        else:
            self._restart(node, how)

    def _markers_stand(self) -> bool:
        try:
            return bool(read_markers(self._plan.tree))
        except OSError:
            return False

    def _finish(self, node: NodeWorker, why: str, *, in_order: bool, lost: bool = False) -> None:
        node.finish(why, in_order=in_order, lost=lost)
        self._tell("left" if in_order else "over", node, why)

    def _restart(self, node: NodeWorker, how: str) -> None:
        limit = self._plan.restarts
        pause_s = node.restart(limit)
        if pause_s is None:
            self._finish(node, f"{how}, and restarts are used up ({limit})", in_order=False)
        else:
            self._tell("died", node, f"{how}; it is started again in {pause_s:.0f} s")

    def _doubt(self, node: NodeWorker, how: str) -> None:
        """Nobody here knows what became of it: Slurm is asked."""
        node.doubt = time.monotonic()
        self._tell("doubt", node, f"{how}; Slurm is asked about the node")
        self._ask()

    # -- what Slurm says

    def heed(self, sight: Sight) -> None:
        """Takes in what was found out."""
        self._slurm_is_silent = bool(sight.trouble)
        self._heed_job(sight)
        for node in self.nodes:
            if node.doubt is not None and sight.asked_at >= node.doubt:
                self._settle(node, sight)
            elif node.away and sight.nodes is not None:
                self._settle_away(node, sight)
        pause_s = _NEVER
        if any(node.doubt is not None for node in self.nodes):
            pause_s = _ASK_AGAIN_S
        elif any(node.away for node in self.nodes):
            pause_s = _AWAY_LOOK_S
        self._ask_at = min(self._ask_at, time.monotonic() + pause_s)

    def _heed_job(self, sight: Sight) -> None:
        job = sight.job
        if job is None:
            return
        self._env["FLEET_JOB_ID"] = job.job_id
        if job.started_at is not None:
            self._env["FLEET_JOB_START"] = str(int(job.started_at.timestamp()))
        restarts = self._plan.job_restarts if job.restarts is None else str(job.restarts)
        self._env["FLEET_JOB_RESTARTS"] = restarts or "0"
        if sight.ends is not None and (self.ends is None or abs(sight.ends - self.ends) > 2):
            self.ends = sight.ends
            for node in self.nodes:
                if node.step is not None:
                    node.step.say(f"walltime {max(1, int(self.ends - time.monotonic()))}")

    def _settle(self, node: NodeWorker, sight: Sight) -> None:
        """Decides about a node in doubt; what the answer does not tell is asked again."""
        how = "it vanished" if node.code == 0 else describe_end(node.code or 0)
        goodbye = node.goodbye(self._plan.tree, self._plan.job_id) if node.code == 0 else None
        if goodbye is not None:
            self._finish(node, goodbye, in_order=True)
        elif sight.job_nodes is None:
            return
        elif node.name not in sight.job_nodes:
            self._finish(node, f"{how}: the job has lost the node", in_order=False, lost=True)
        elif node.is_away(sight):
            node.away = True
            node.doubt = None
            self._tell("away", node, "Slurm says that the node is down; it is looked at again")
        elif sight.nodes is not None and sight.steps is not None:
            step = node.listed_step(sight, self._plan.job_id)
            if step:
                self._end_step(node, step)
            else:
                self._restart(node, how)

    def _end_step(self, node: NodeWorker, step: str) -> None:
        """A step whose srun is gone may run on: it is ended, so that it is not there twice."""
        self._tell("doubt", node, f"step {step} has no srun any more and is cancelled")
        with contextlib.suppress(SchedulerError):
            commands.cancel(step)

    def _settle_away(self, node: NodeWorker, sight: Sight) -> None:
        if sight.job_nodes is None:
            return
        if node.name not in sight.job_nodes:
            self._finish(node, "the job has lost the node", in_order=False, lost=True)
        elif not node.is_away(sight):
            if sight.steps is None:
                return
            if step := node.listed_step(sight, self._plan.job_id):
                self._end_step(node, step)  # it outlived the time in which its node was away
                return
            node.is_back()
            self._tell("back", node, "the node is back")
