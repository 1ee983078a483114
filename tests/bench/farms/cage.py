"""Runs one command to its end as the reaper of all that it starts, and ends what it leaves behind.

    cage.py RESULT.json LIMIT_S COMMAND ...

Servers that detach themselves become children of this process, so their CPU time is counted and
none of them outlives it. Invariant: nothing is signalled that is no descendant of this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time

import psutil

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_LAST_TASKS_S = 1.0  # what runs when its farm dies may end by itself, as it would elsewhere
_GRACE_S = 5.0


def main() -> int:
    """Runs it; the exit code says only whether this itself worked."""
    result, limit_s, argv = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])  # taken by sigtimedwait(2)
    began_at, began = time.time(), time.perf_counter()
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions, setsigmask=())
    status = _await(pid, began + limit_s)
    wall_s = time.perf_counter() - began
    left = _end_the_rest(_LAST_TASKS_S if status else 0.0)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = {
        "began_at": began_at,
        "wall_s": wall_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "code": None if status is None else os.waitstatus_to_exitcode(status),
        "left_behind": left,
    }
    with open(result, "w") as file:
        json.dump(said, file)
    return 0


def _await(pid: int, deadline: float) -> int | None:
    """The status of the command, orphans reaped meanwhile; None when it was out of time."""
    while time.perf_counter() < deadline:
        signal.sigtimedwait([signal.SIGCHLD], 0.2)
        while True:
            try:
                found, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if found == pid:
                return status
            if found == 0:
                break
    return None


def _end_the_rest(patience_s: float) -> int:
    """Ends every descendant: a moment, TERM, a grace, KILL; returns how many had to be ended."""
    me = psutil.Process()
    _reap_for(me, patience_s)
    ended = 0
    for number, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        for process in me.children(recursive=True):
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    process.send_signal(number)
                    ended += number == signal.SIGTERM
            except psutil.Error:
                continue
        _reap_for(me, wait_s)
    return ended


def _reap_for(me: psutil.Process, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() >= deadline:
            return
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
