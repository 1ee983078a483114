"""Processes: starting one task's process tree, owning every wait, and stopping all of it.

`TaskProcess` belongs to a process that is a child subreaper and runs one task at a time, so that
whatever a task leaves behind, double-forked and in a session of its own, becomes its child again.
Once ``waitpid(-1)`` has taken a child, ``Popen.wait()`` answers 0 for a failure; hence this module
owns every wait of such a process. Invariant: nothing is ever signalled by name, or by a pid that
could have been used again; KILL goes to children that nobody has waited for.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from fleetcraft.trust import find_program

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
KILL_WAIT_S = 10.0
"""How long it is waited for what was killed, if not told otherwise."""
_POLL_S = 0.01
_MOST_S = 0.2
# Python ignores SIGPIPE and SIGXFSZ, and an ignored signal stays ignored across exec.
_DEFAULT_SIGNALS = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD,
)  # fmt: skip
GATE_FD = 9
"""Descriptor on which a task inherits its node's gate, so the gate outlives a killed worker."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a task's first process ended.

    Attributes:
        exit_code: Its exit code; None when a signal ended it.
        signal: The signal's number; None when it exited.
        cpu_s: CPU seconds of it and of every descendant that was waited for.
        max_rss_bytes: Largest resident size of any one of these processes.
        leftovers: Processes that it left behind and that were stopped.
        clean: Whether nothing of it is alive any more.
    """

    exit_code: int | None
    signal: int | None
    cpu_s: float
    max_rss_bytes: int
    leftovers: int = 0
    clean: bool = True

    @property
    def known(self) -> bool:
        """Whether its first process has ended at all; one that KILL cannot end has not."""
        return self.exit_code is not None or self.signal is not None


def become_subreaper() -> None:
    """Makes orphaned descendants children of this process.

    Raises:
        OSError: The kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, number: int = signal.SIGTERM) -> bool:
    """Asks the kernel for a signal when the parent dies.

    Returns:
        False when the parent is dead already, so that no signal would come.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent_pid


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def find_bash() -> str:
    """The path of bash."""
    return find_program("bash") or "/bin/bash"


class TaskProcess:
    """One task's process tree, child of this process.

    Use: `start`, then `poll` after each SIGCHLD until it returns how the task ended; `stop` at any
    time. By then every process of the task is gone, or `Ended.clean` is False.

    Args:
        kill_wait_s: How long it is waited for what was killed.
    """

    def __init__(self, kill_wait_s: float = KILL_WAIT_S) -> None:
        self.pid: int | None = None
        self._kill_wait_s = kill_wait_s
        self._status: int | None = None
        self._cpu_s = 0.0
        self._max_rss_kib = 0
        self._grace_s = 10.0

    def start(
        self,
        argv: Sequence[str | bytes],
        env: Mapping[bytes, bytes],
        *,
        log_fd: int,
        gate_fd: int | None,
        grace_s: float,
    ) -> int:
        """Starts the task in a session of its own, output to its log, input from nothing.

        Spawned, never forked: plain fork from a large process costs 75 ms at 2 GiB.

        Returns:
            The pid; it stays this process until `poll` or `stop` has returned how it ended.

        Raises:
            OSError: It could not be started (E2BIG, EAGAIN, ENOENT).
        """
        actions: list[tuple[object, ...]] = [
            # The log first: it may itself be one of the three where a worker had them closed.
            (os.POSIX_SPAWN_DUP2, log_fd, 1),
            (os.POSIX_SPAWN_DUP2, log_fd, 2),
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        ]
        if gate_fd is not None:
            actions.append((os.POSIX_SPAWN_DUP2, gate_fd, GATE_FD))
        self._status = None
        self._cpu_s = 0.0
        self._max_rss_kib = 0
        self._grace_s = grace_s
        pid = os.posix_spawn(
            argv[0],
            list(argv),
            env,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
        self.pid = pid
        return pid

    def poll(self) -> Ended | None:
        """Takes every child that has exited.

        Returns:
            How the task ended, once its first process has and nothing of it is left; else None.
        """
        if self.pid is None:
            return None
        children_left = self._reap()
        if self._status is None:
            return None
        leftovers = 0
        clean = True
        if children_left:
            leftovers, clean = self._stop_tree(self._grace_s)
        return self._ended(leftovers, clean)

    def stop(self, grace_s: float) -> Ended | None:
        """TERM to every process of the task, a bounded grace, KILL, bounded.

        Returns:
            How it ended, not `Ended.known` when even KILL did not end its first process in time;
            None when nothing was running.
        """
        if self.pid is None:
            return None
        _, clean = self._stop_tree(grace_s)
        # What a running task has started was not left behind by it.
        return self._ended(0, clean)

    def _ended(self, leftovers: int, clean: bool) -> Ended:
        status = self._status
        self.pid = None
        exited = status is not None and os.WIFEXITED(status)
        signalled = status is not None and os.WIFSIGNALED(status)
        return Ended(
            exit_code=os.WEXITSTATUS(status) if exited and status is not None else None,
            signal=os.WTERMSIG(status) if signalled and status is not None else None,
            cpu_s=self._cpu_s,
            max_rss_bytes=self._max_rss_kib * 1024,
            leftovers=leftovers,
            clean=clean,
        )

    def _reap(self) -> bool:
        """Takes the dead; says whether children are left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._cpu_s += usage.ru_utime + usage.ru_stime
            self._max_rss_kib = max(self._max_rss_kib, usage.ru_maxrss)
            if pid == self.pid:
                self._status = status

    def _stop_tree(self, grace_s: float) -> tuple[int, bool]:
        """Stops every descendant; returns how many were found, and whether all are gone."""
        found: set[int] = set()
        gone = self._ask_all_to_end(found, grace_s) or self._kill_all(found)
        return len(found), gone

    def _ask_all_to_end(self, found: set[int], wait_s: float) -> bool:
        """TERM once to each descendant, also to those that appear meanwhile, until none is left."""
        asked: set[tuple[int, float]] = set()
        deadline = time.monotonic() + wait_s
        pause = _POLL_S
        while True:
            for process in descendants():
                key = (process.pid, process.create_time())
                if key not in asked:
                    asked.add(key)
                    found.add(process.pid)
                    _ask_to_end(process)
            if not self._reap():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, _MOST_S)

    def _kill_all(self, found: set[int]) -> bool:
        """KILL to every child until there is none; what these have started are children then.

        Children only, and no pause while new ones appear: a process that forks and exits every
        millisecond is gone before a listing of all descendants has been read.
        """
        deadline = time.monotonic() + self._kill_wait_s
        killed: set[int] = set()
        pause = _POLL_S
        while True:
            children = _children()
            for pid in children:
                _kill(pid)
            new = not children <= killed
            killed |= children
            found |= children
            if not self._reap():
                return True
            if time.monotonic() >= deadline:
                return False
            if new:
                pause = _POLL_S
            else:
                time.sleep(pause)
                pause = min(pause * 1.5, _MOST_S)


def has_children() -> bool:
    """Whether this process has children already, such as those of a shell that it replaced."""
    return bool(_children())


def descendants() -> list[psutil.Process]:
    """Every living descendant of this process, zombies left out."""
    import psutil  # only when something must be stopped: it costs 15 ms to import

    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                process.create_time()  # remembered from here on: the identity of the process
                found.append(process)
        except psutil.Error:
            continue
    return found


def _ask_to_end(process: psutil.Process) -> None:
    import psutil

    try:
        process.send_signal(signal.SIGTERM)
    except psutil.Error:
        return  # gone meanwhile, which is what was wanted


def _children() -> set[int]:
    """Pids of this process's children, dead ones included; one that dies meanwhile may lack.

    Source: proc_pid_task_children(5). A kernel without it is asked for all descendants.
    """
    me = os.getpid()
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{me}/task"):
            with open(f"/proc/{me}/task/{thread}/children", "rb") as file:
                found.update(map(int, file.read().split()))
    except OSError:
        found.update(process.pid for process in descendants() if process.ppid() == me)
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # dead, or of another user; either shows in what is left
