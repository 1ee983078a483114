"""Looking at a launch: which keepers have reported, which live, how their nodes ended.

Not here: judging progress or evidence. Invariant: an end is believed as soon as it is published; a
keeper counts as gone only when this machine or a successful answer of Slurm says so, and its node's
end was looked for once more after that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from subprocess import Popen

from fleetcraft.errors import DataError, SchedulerError
from fleetcraft.files import FileSystem
from fleetcraft.identity import this_host
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.slurm.queue import Step
from fleetcraft.slurm.steps import SRUN_NOT_IN_TIME
from fleetcraft.training.launching.order import Order
from fleetcraft.training.launching.reading import Reports
from fleetcraft.training.launching.sights import LaunchSight, NodeSight, Whole
from fleetcraft.training.launching.signalling import PROC, identify
from fleetcraft.training.launching.steps import find_step
from fleetcraft.training.records import Keeper, StepRecord

AskSteps = Callable[[], Mapping[str, Step]]
"""Asks Slurm for this user's steps; no answer is a SchedulerError, never an empty mapping."""
_ASK_EVERY_S = 30.0


class Starter:
    """What starts the keepers, a child of this process: srun, or the one keeper itself."""

    def __init__(self, pid: int, srun: Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.srun = srun
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.srun is not None:
            return self.srun.poll()
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Somebody else has waited for it; how it ended is in its records.
                self._code = 0
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


class Launch:
    """One launch: of this process, or found by a later one.

    Args:
        paths: The attempt.
        order: What its keepers were told.
        starter: What starts them; None for a launch that was found.
        steps: Asks Slurm for this user's steps; asked only where nothing nearer can tell.
        fs: The seam.
        proc: Where processes are described; a stand-in in tests.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        paths: AttemptPaths,
        order: Order,
        *,
        starter: Starter | None = None,
        steps: AskSteps | None = None,
        fs: FileSystem | None = None,
        proc: str = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.paths = paths
        self.order = order
        self.fs = fs or FileSystem()
        self.starter = starter
        self.steps = steps
        self.proc = proc
        self.here = this_host()
        self._clock = clock
        self._reports = Reports(paths, self.fs)
        self._asked_s = -_ASK_EVERY_S
        self._in_queue: bool | None = None
        self._asking_failed = ""

    @property
    def nonce(self) -> str:
        """Of the launch."""
        return self.order.nonce

    @property
    def step(self) -> StepRecord | None:
        """The step that it was launched as, once a keeper has told its id; None without one."""
        if not self.order.step_name:
            return None
        return next((k.step for k in self._reports.keepers.values() if k.step is not None), None)

    def keepers(self) -> tuple[Keeper, ...]:
        """Those that had reported at the last look."""
        return tuple(self._reports.keepers.values())

    @property
    def has_reports(self) -> bool:
        """Whether any node had published anything at the last reading."""
        return bool(self._reports.nodes())

    def read(self) -> None:
        """Reads what the keepers have published, for a caller that must know whether it could.

        Raises:
            OSError: The folder or a record cannot be read.
            DataError: A record is torn.
        """
        self._reports.read()

    def log_paths(self) -> tuple[str, ...]:
        """Logs that the last look has shown to be there, or to come: one a node."""
        return tuple(self.paths.log(node) for node in self._reports.nodes())

    def look(self) -> LaunchSight:
        """Looks once; never raises and never waits longer than one question to Slurm."""
        code = self.starter.poll() if self.starter else None
        try:
            self._reports.read()
            nodes = self._nodes()
            if self._needs_second_reading(nodes, code):
                # A keeper publishes the end of its node and then leaves, in that order.
                self._reports.read()
                nodes = self._nodes()
        except (OSError, DataError) as error:
            return self._sight(Whole.UNKNOWN, (), f"the keepers' records cannot be read: {error}")
        return self._judge(nodes, code)

    def _nodes(self) -> tuple[NodeSight, ...]:
        found = []
        for node in self._reports.nodes():
            keeper = self._reports.keepers.get(node)
            end = self._reports.ends.get(node)
            alive = False if end else self._lives(keeper)
            found.append(NodeSight(node=node, keeper=keeper, alive=alive, end=end))
        return tuple(found)

    def _lives(self, keeper: Keeper | None) -> bool | None:
        return identify(keeper.keeper, here=self.here, proc=self.proc) if keeper else None

    def _needs_second_reading(self, nodes: tuple[NodeSight, ...], code: int | None) -> bool:
        if sum(node.end is not None for node in nodes) >= self.order.nodes:
            return False
        return code is not None or any(node.alive is False and not node.end for node in nodes)

    def _judge(self, nodes: tuple[NodeSight, ...], code: int | None) -> LaunchSight:
        if sum(node.end is not None for node in nodes) >= self.order.nodes:
            return self._sight(Whole.ENDED, nodes)
        gone = [node.node for node in nodes if node.alive is False and not node.end]
        if gone:
            why = f"the keeper on {', '.join(gone)} is gone and has told no end"
            return self._sight(Whole.LOST, nodes, why)
        if self.starter is not None and (code is None or code >= 0 or not self.order.step_name):
            return self._by_starter(nodes, code)
        return self._by_queue(nodes)

    def _by_starter(self, nodes: tuple[NodeSight, ...], code: int | None) -> LaunchSight:
        if code is None or (not self.order.step_name and nodes):
            complete = len(nodes) >= self.order.nodes
            return self._sight(Whole.RUNNING if complete else Whole.STARTING, nodes)
        told = sum(node.end is not None for node in nodes)
        why = (
            f"{self._starter_end(code)}, and only {told} of {self.order.nodes} nodes have told "
            "their end"
        )
        return self._sight(Whole.LOST, nodes, why)

    def _starter_end(self, code: int) -> str:
        what = "srun" if self.order.step_name else "the keeper"
        if self.order.step_name and code == SRUN_NOT_IN_TIME:
            return "srun could not begin the step in time"
        return f"{what} ended by signal {-code}" if code < 0 else f"{what} ended with {code}"

    def _by_queue(self, nodes: tuple[NodeSight, ...]) -> LaunchSight:
        """Without a starter: this machine's word for its own keepers, else Slurm's."""
        open_nodes = [node for node in nodes if not node.end]
        here_alone = len(nodes) >= self.order.nodes and all(node.alive for node in open_nodes)
        if here_alone:
            return self._sight(Whole.RUNNING, nodes)
        if not nodes and not self.order.step_name:
            return self._sight(Whole.LOST, nodes, "no keeper has reported")
        present = self.in_queue()
        if present is None:
            why = self._asking_failed or "its processes are on another machine, out of sight"
            return self._sight(Whole.UNKNOWN, nodes, why)
        if present:
            complete = len(nodes) >= self.order.nodes
            return self._sight(Whole.RUNNING if complete else Whole.STARTING, nodes)
        why = f"Slurm has no step {self.order.step_name} any more, and its end was not told"
        return self._sight(Whole.LOST, nodes, why)

    def in_queue(self, *, fresh: bool = False) -> bool | None:
        """Whether Slurm lists the step: True, False (a successful answer without it), None.

        Args:
            fresh: Ask anew, whatever was heard in the last 30 s.
        """
        if self.steps is None or not self.order.step_name:
            return None
        if fresh or self._clock() - self._asked_s >= _ASK_EVERY_S:
            self._asked_s = self._clock()
            try:
                found = find_step(self.steps(), self.order.step_name, self.step)
                self._in_queue, self._asking_failed = found is not None, ""
            except SchedulerError as error:
                self._in_queue, self._asking_failed = None, f"Slurm did not tell: {error}"
        return self._in_queue

    def _sight(self, whole: Whole, nodes: tuple[NodeSight, ...], why: str = "") -> LaunchSight:
        return LaunchSight(whole=whole, nodes=nodes, expected=self.order.nodes, why=why)
