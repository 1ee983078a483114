"""One step of an allocation: its srun, what its end means, and words to its worker.

Not here: which steps there are and when they start, and what any step needs (`slurm.steps`).
Invariant: no order is a signal to a step: Slurm delivers those to every process in it, tasks
included, and USR1 ends most programs; and srun itself answers TERM by killing the step (seen with
22.05).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from enum import StrEnum

from fleetcraft.slurm import commands
from fleetcraft.slurm.steps import BEGIN_S, SRUN_FAILED, SRUN_NOT_IN_TIME, one_per_node

_STAYS_AWAY = {
    2: "its options were refused",
    3: "its configuration is wrong",
    5: "the spool refuses",
    6: "no GPU can be used there",
    8: "the node fails task after task",
}
_TOLD_TO_END = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM})


class Ending(StrEnum):
    """What the exit code of a worker's srun says.

    ``MAYBE_LEFT``: 0, which srun also answers when the node dies (seen with 22.05).
    ``STAYS_AWAY``: it would end the same way again. ``TOLD``: somebody ended it by a signal.
    ``DIED``: it ended out of order. ``SRUN``: srun itself failed, so nothing is known of it.
    """

    MAYBE_LEFT = "maybe left"
    STAYS_AWAY = "stays away"
    TOLD = "told to end"
    DIED = "died"
    SRUN = "srun failed"


def ending(code: int) -> Ending:
    """What an exit code of srun means; negative for a signal that ended srun."""
    if code == 0:
        return Ending.MAYBE_LEFT
    if code < 0 or code in (SRUN_FAILED, SRUN_NOT_IN_TIME):
        return Ending.SRUN
    if code in _STAYS_AWAY:
        return Ending.STAYS_AWAY
    return Ending.TOLD if code in _TOLD_TO_END else Ending.DIED


def describe_end(code: int) -> str:
    """How a worker's step ended, in words."""
    if code < 0:
        return f"its srun was ended by signal {-code}"
    if code == SRUN_FAILED:
        return "srun failed (its log says why)"
    if code == SRUN_NOT_IN_TIME:
        return f"srun could not begin within {BEGIN_S} s"
    if code in _STAYS_AWAY:
        return f"{_STAYS_AWAY[code]} (exit code {code})"
    if code in _TOLD_TO_END:
        return f"it was told to end by signal {code - 128}"
    if code > 128:
        return f"it was ended by signal {code - 128}"
    return f"it ended with exit code {code}"


def srun(
    nodes: Sequence[str], *, name: str, project_dir: str, gpus: int | None, orders: bool
) -> list[str]:
    """The srun that starts one process on each of some nodes of this job, with all they have.

    Args:
        nodes: Names of the nodes.
        name: The step's name.
        project_dir: Where it runs.
        gpus: GPUs that the job has on each of them; None leaves it to srun, which gives what the
            job asked for, and so none where it only asked for whole nodes.
        orders: Whether its input is for orders; else it gets none.
    """
    # Overlapping, it never waits for a step that Slurm still lists, such as a dead one.
    words = one_per_node(
        len(nodes), name=name, directory=project_dir, gpus=gpus, overlap=True, nodes=nodes
    )
    if not orders:
        words += ["--input=none", "--kill-on-bad-exit=1", "--disable-status"]
    return words


class Step:
    """A step that was started; its srun is a child of this process.

    Args:
        argv: srun, its options, and the command.
        env: Its environment.
        log: Where output and errors are appended; made private if it is not there.
        orders: Whether its command takes orders on its input.

    Raises:
        SlurmMissingError: srun cannot be started.
        OSError: The log cannot be made.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log: str, *, orders: bool
    ) -> None:
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._child = commands.start_step(
                argv,
                env=env,
                stdin=subprocess.PIPE if orders else subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
            )
        finally:
            os.close(fd)
        self.pid = self._child.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal that ended srun; None while it runs."""
        code = self._child.poll()
        if code is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        return code

    def say(self, order: str) -> None:
        """Writes an order to its input; one that has ended hears nothing."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            with contextlib.suppress(OSError):
                self._child.stdin.write(f"{order}\n".encode())
                self._child.stdin.flush()

    def signal(self, number: int) -> None:
        """Signals srun: TERM makes it kill its step; INT it passes on where it takes no orders."""
        self._child.send_signal(number)
