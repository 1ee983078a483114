"""Slurm's own word about the end of a launch that was a step of a job.

Asks for that step only; judges nothing. Invariant: a step of which Slurm has told no end has none,
and why it was not told goes along.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from fleetcraft.errors import DataError, SchedulerError
from fleetcraft.files import FileSystem
from fleetcraft.layout.runs import AttemptPaths
from fleetcraft.slurm import polls
from fleetcraft.slurm.step_ends import StepEnd
from fleetcraft.training.launching.reading import Reports, read_order
from fleetcraft.training.records import StepRecord

AskStepEnd = Callable[[StepRecord, str, float], StepEnd | None]
"""Asks how a step of that name ended, for so many seconds: None while it has not, as far as is
known; no answer is a SchedulerError."""
PATIENCE_S = 25.0
"""After this no further question is put; the accounting learns of an end within seconds."""
_PAUSE_S = 1.0


class SlurmWord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Slurm says of the end of one step.

    Attributes:
        step: ``JOB.STEP``; empty for a launch that was none.
        state: Its state, such as ``OUT_OF_MEMORY``; None when it is not known.
        exit_code: ``exit:signal``.
        trouble: Why that is not known.
    """

    step: str = ""
    state: str | None = None
    exit_code: str = ""
    trouble: str = ""

    @property
    def cause(self) -> str | None:
        """The state as evidence of a cause; None where it names none.

        Slurm writes CANCELLED, by nobody, of a task that any signal ended: no person did that.
        """
        return None if self.state == "CANCELLED" else self.state


NO_STEP = SlurmWord()
"""Of a launch that was no step, or that has not ended."""


def ask_slurm(
    paths: AttemptPaths,
    ask: AskStepEnd | None,
    *,
    fs: FileSystem | None = None,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> SlurmWord:
    """Asks until the end of an attempt's step is known, but not for long.

    Args:
        paths: The attempt.
        ask: How Slurm is asked; None where there is no Slurm.
        fs: The seam.
        wait: Waits so many seconds; when it returns early, waiting is over.
        clock: Monotonic seconds.
    """
    if ask is None:
        return NO_STEP
    try:
        step, name = _step_of(paths, fs or FileSystem())
    except (OSError, DataError) as error:
        return SlurmWord(trouble=f"which step it was cannot be read: {error}")
    if step is None:
        return NO_STEP
    deadline = clock() + PATIENCE_S
    while clock() < deadline:
        try:
            end = ask(step, name, polls.PATIENCE_S)
        except SchedulerError as error:
            return SlurmWord(step=step.id, trouble=error.message)
        if end is not None:
            return SlurmWord(step=step.id, state=end.state, exit_code=end.exit_code)
        before = clock()
        wait(_PAUSE_S)
        if clock() - before < _PAUSE_S / 2:
            break
    return SlurmWord(step=step.id, trouble="no end of it is written down yet")


def _step_of(paths: AttemptPaths, fs: FileSystem) -> tuple[StepRecord | None, str]:
    """The step of a launch and its name; None for a launch that was none, or told none."""
    order = read_order(paths, fs)
    if order is None or not order.step_name:
        return None, ""
    reports = Reports(paths, fs)
    reports.read()
    known = (keeper.step for keeper in reports.keepers.values() if keeper.step is not None)
    return next(known, None), order.step_name
