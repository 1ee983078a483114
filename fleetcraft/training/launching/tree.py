"""One command's process tree under a keeper, stopped whole also when it forks without end.

Not here: who orders a stop. Invariant: KILL goes to children of this process that nobody has waited
for, so their pids cannot have been used again; every other process becomes such a child once its
parent is dead, since this process is a child subreaper.
"""

from __future__ import annotations

import os
import signal
import time

from fleetcraft.process import TaskProcess, descendants

_POLL_S = 0.005
_MOST_S = 0.1


class CommandTree(TaskProcess):
    """A `TaskProcess` whose KILL phase never pauses while new processes appear.

    One that forks and exits every millisecond is gone before a listing of all descendants has been
    read: `TaskProcess` met it once in 10 s, this does within milliseconds.

    Args:
        kill_wait_s: How long it is waited for what was killed.
    """

    def __init__(self, kill_wait_s: float) -> None:
        super().__init__()
        self._kill_wait_s = kill_wait_s
        self.killed = 0

    def _stop_tree(self, grace_s: float) -> tuple[int, bool]:
        signalled: set[tuple[int, float]] = set()
        if self._signal_new(signal.SIGTERM, signalled, grace_s):
            return len(signalled), True
        gone = self._kill_children()
        return max(len(signalled), self.killed), gone

    def _kill_children(self) -> bool:
        """KILL to every child until there is none, bounded; says whether there is none."""
        deadline = time.monotonic() + self._kill_wait_s
        killed: set[int] = set()
        pause = _POLL_S
        while True:
            children = set(_children())
            for pid in children:
                _kill(pid)
            fresh = children - killed
            killed |= children
            self.killed = len(killed)
            if not self._reap():
                return True
            if time.monotonic() >= deadline:
                return False
            if fresh:
                pause = _POLL_S
            else:  # only what was killed before: nothing to be quick for
                time.sleep(pause)
                pause = min(pause * 1.5, _MOST_S)


def _children() -> list[int]:
    """Pids of this process's children.

    Source: proc_pid_task_children(5); a kernel without it is asked for all descendants.
    """
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return [process.pid for process in descendants() if process.ppid() == me]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # dead, or of another user; either shows in what is left
