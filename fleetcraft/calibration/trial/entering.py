"""The first steps of a trial's process: its limits, its groups, and its end with its keeper.

Run as ``python -m fleetcraft.calibration.trial.entering ENTRY`` it becomes the trial's program; a
forked process calls `enter`. No torch here. Invariant: a limit that was asked for and cannot be set
ends the process before the trial begins; it never runs unlimited.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import NoReturn

import msgspec

from fleetcraft.process import die_with_parent

REFUSED = 97
"""Exit code of a process that could not be limited; its last words say why."""
_OOM_SCORE = 800
PROGRAM = "fleetcraft.calibration.trial.child"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """How one trial's process is to begin.

    Attributes:
        order: Path of its order.
        journal: Path of the journal that it will write.
        log: Path of what it prints.
        program: Module whose ``main(order)`` is the trial.
        fresh: Whether it gets an interpreter of its own.
        entrances: Files of its groups into which it writes itself.
        group_folders: Its groups, to be removed by whoever outlives the parent.
        data_bytes: How much its data segment may grow; None: no such limit.
        processes: How many processes and threads its user may have more than now.
    """

    order: str
    journal: str
    log: str
    program: str = PROGRAM
    fresh: bool = False
    entrances: tuple[str, ...] = ()
    group_folders: tuple[str, ...] = ()
    data_bytes: int | None = None
    processes: int | None = None


def enter(entry: Entry, keeper_pid: int) -> None:
    """Puts this process where it belongs; does not return when it cannot.

    Args:
        entry: What to do.
        keeper_pid: The parent, with which this process dies.
    """
    try:
        if not die_with_parent(keeper_pid, signal.SIGKILL):
            os._exit(REFUSED)
        # Where the trial shares a group with who watches it, the kernel is to take the trial.
        _write_if_it_can("/proc/self/oom_score_adj", str(_OOM_SCORE))
        # A core of a process with a device's memory mapped can fill a disk.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if entry.processes is not None:
            _limit(resource.RLIMIT_NPROC, _threads_of_user() + entry.processes)
        for entrance in entry.entrances:
            with open(entrance, "w", encoding="ascii") as file:
                file.write("0")
        if entry.data_bytes is not None:
            _limit(resource.RLIMIT_DATA, _data_bytes() + entry.data_bytes)
    except (OSError, ValueError) as error:
        os.write(2, f"the trial's process could not be limited: {error}\n".encode())
        os._exit(REFUSED)


def become(entry: Entry) -> NoReturn:
    """Replaces this process by the trial's program, with the same limits and groups."""
    words = [sys.executable, "-P", "-X", "faulthandler", "-m", entry.program, entry.order]
    os.execv(sys.executable, words)


def _limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def _data_bytes() -> int:
    """What counts against RLIMIT_DATA now: libraries that were loaded before are not the trial's.

    Source: proc_pid_status(5), VmData; getrlimit(2), RLIMIT_DATA counts private writable mappings
    since Linux 4.7.
    """
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _threads_of_user() -> int:
    """How many threads this user has: RLIMIT_NPROC counts all of them, not only this trial's."""
    uid, threads = os.getuid(), 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == uid:
                threads += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return threads


def _write_if_it_can(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    except OSError:
        return


def main() -> NoReturn:
    """Enters and becomes the trial's program."""
    entry = msgspec.json.decode(sys.argv[1], type=Entry)
    enter(entry, int(sys.argv[2]))
    become(entry)


if __name__ == "__main__":
    main()
