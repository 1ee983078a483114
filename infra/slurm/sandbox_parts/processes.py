"""Processes by pid and start time: written down, found again, and ended.

Not here: which processes belong to a cluster.
Invariant: a signal goes only to a process whose start time was read before, so that a pid that the
kernel has given to somebody else meanwhile is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .fault import SLURM, Fault

PROC = Path("/proc")
DEAD_STATES = ("Z", "X")  # a zombie holds nothing any more; its parent may never read its end
END_PATIENCE_S = 30.0
TERM_PATIENCE_S = 15.0


@dataclass(frozen=True)
class Process:
    """One process of this boot. Two are the same only if both numbers are."""

    pid: int
    start_ticks: int  # since boot, in clock ticks

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return at(self.pid) == self

    def kill(self) -> None:
        """Sends SIGKILL. One that has ended is no error; one of another user is left to it."""
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Sends a signal, as `kill` does."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The descriptor holds on to whoever has the pid now, so the check cannot be overtaken.
            handle = os.pidfd_open(self.pid)
            try:
                if self.is_alive():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


@dataclass(frozen=True)
class _Stat:
    process: Process
    parent_pid: int
    alive: bool


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses, which may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(Process(pid, int(fields[19])), int(fields[1]), fields[0] not in DEAD_STATES)


def at(pid: int) -> Process | None:
    """The live process that has this pid now, or None."""
    stat = _stat(pid)
    return stat.process if stat and stat.alive else None


def all_pids() -> list[int]:
    """Every pid that can be seen from here."""
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def boot_id() -> str:
    """What tells this boot from others: start times count from it."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def write_down(file: Path, process: Process) -> None:
    """Keeps who a process is, for `read_back`."""
    file.write_text(f"{process.pid} {process.start_ticks} {boot_id()}\n")


def read_back(file: Path) -> Process | None:
    """The process that was written down, or None if it is gone, or nothing was."""
    try:
        pid, start_ticks, boot = file.read_text().split()
        process = Process(int(pid), int(start_ticks))
    except (OSError, ValueError):  # a file that was cut short says nothing
        return None
    return process if boot == boot_id() and process.is_alive() else None


def with_descendants(roots: Iterable[Process]) -> list[Process]:
    """The roots and all that came from them and still lives, parents before their children."""
    stats = [stat for pid in all_pids() if (stat := _stat(pid))]
    children: dict[int, list[_Stat]] = {}
    for stat in stats:
        children.setdefault(stat.parent_pid, []).append(stat)
    found = [stat.process for root in roots for stat in stats if stat.process == root]
    for process in found:  # it grows while it is walked
        found.extend(child.process for child in children.get(process.pid, ()))
    return [process for process in found if process.is_alive()]


def end(process: Process) -> None:
    """Ends one process: TERM, and KILL after a quarter of a minute."""
    process.signal(signal.SIGTERM)
    give_up_at = time.monotonic() + TERM_PATIENCE_S
    while process.is_alive() and time.monotonic() < give_up_at:
        time.sleep(0.02)
    process.kill()


def end_all(find: Callable[[], Iterable[Process]]) -> int:
    """Kills what `find` returns until it returns nothing; returns how many that were.

    Raises:
        Fault: Some are still there after half a minute.
    """
    seen: set[Process] = set()
    give_up_at = time.monotonic() + END_PATIENCE_S
    while found := [process for process in find() if process.pid != os.getpid()]:
        if time.monotonic() > give_up_at:
            pids = " ".join(str(process.pid) for process in found)
            raise Fault(SLURM, f"these processes do not end: {pids}", f"look with: ps -fp {pids}")
        for process in found:
            process.kill()
        seen.update(found)
        time.sleep(0.02)
    return len(seen)
