"""Whether a launch that was found moves: its reports or the step in its logs, by the own clock.

Needed before a live run is adopted. Invariant: what stands in files already proves nothing; only a
change that was seen does.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.training.diagnosing.scan import LogScan
from fleetcraft.training.launching.adoption import Adoption
from fleetcraft.training.launching.sights import Whole
from fleetcraft.training.plan.records import RunPlan
from fleetcraft.training.progress.reading import ProgressReader
from fleetcraft.training.watching.expectation import alarm_after_s, expected_step


class Moved:
    """Looks whether anything of an attempt has moved since it was first looked at.

    Args:
        plan: The run.
        paths: The attempt.
        fs: The seam.
        clock: Monotonic seconds.

    Attributes:
        answer: What the last look found; None while it was not asked.
        patience_s: How long it makes sense to go on looking: a warm-up and an alarm; a declared
            phase, in which no counter has to move, is given its budget.
    """

    def __init__(
        self,
        plan: RunPlan,
        paths: AttemptPaths,
        *,
        fs: FileSystem | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer: bool | None = None
        self._paths = paths
        self._fs = fs or FileSystem()
        self._scans: dict[str, LogScan] = {}
        self._reader = ProgressReader(
            paths.progress, fs=self._fs, clock=clock, log_steps=self._log_step
        )
        self._scan()
        phases = {rank.phase for rank in self._reader.look().values() if rank.phase}
        alarm_s = alarm_after_s(plan.progress, expected_step(plan.progress))
        budgets = [plan.phases[phase] for phase in phases if phase in plan.phases]
        self.patience_s = max([plan.warmup_s + alarm_s, *budgets])

    def __call__(self) -> bool:
        """Whether anything was seen to move."""
        self._scan()
        ranks = self._reader.look()
        self.answer = any(rank.changed_s is not None for rank in ranks.values())
        return self.answer

    def close(self) -> None:
        """Closes its logs."""
        for scan in self._scans.values():
            scan.close()

    def _scan(self) -> None:
        try:
            names = self._fs.listdir(self._paths.logs)
        except OSError:
            return
        for name in names:
            path = f"{self._paths.logs}/{name}"
            if path not in self._scans:
                self._scans[path] = LogScan(path, fs=self._fs)
            self._scans[path].look()

    def _log_step(self) -> int | None:
        steps = [scan.step for scan in self._scans.values() if scan.step is not None]
        return max(steps, default=None)


def is_stuck(found: Adoption, moved: Moved) -> bool:
    """Whether a launch that may not be adopted is at least known well enough to be stopped.

    Its processes live, each of them identified by the nonce of the launch, and either nothing of
    it moved for as long as an alarm takes, or the keeper that would have to tell its end is gone.
    """
    if found.launch is None or found.alive is not True:
        return False
    if moved.answer is False:
        return True
    sight = found.launch.look()
    return sight.whole is Whole.LOST and all(
        node.node == found.launch.here.host for node in sight.nodes
    )


def has_ended_meanwhile(found: Adoption) -> bool:
    """Whether a launch that lived when it was looked for has ended while it was looked at."""
    if found.launch is None or found.alive is not True:
        return False
    return found.launch.look().whole is Whole.ENDED
