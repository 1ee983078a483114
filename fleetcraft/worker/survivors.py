"""What a dead worker's attempt left running on this host: found and stopped before a requeue.

Found by the owner's name in its environment, and for one that wiped its environment by the
sessions and the descent of those so found. Invariant: only processes of this user are touched,
each as pid and start time, and never this process or one of its ancestors.
"""

from __future__ import annotations

import os
import signal
import time

from fleetcraft.identity import Owner, ProcessId, is_alive, process_id
from fleetcraft.spool.leases import Lease

OWNER_VARIABLES = ("FLEET_OWNER", "FLEET_OUTER_OWNER")
_GRACE_S = 5.0
_KILL_WAIT_S = 5.0


def stop_survivors(task: str, owner: Owner, lease: Lease) -> str:
    """Stops what is left of an attempt on this host: TERM, five seconds, KILL.

    Args:
        task: The task's name, for the message.
        owner: The gone owner.
        lease: Its lease; a rebooted host has no survivors.

    Returns:
        Empty when nothing is left; else what could not be stopped.
    """
    if not os.path.isdir("/proc/self"):
        return "this host has no /proc to look for survivors"
    left: dict[int, ProcessId] = {}
    for number, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_WAIT_S)):
        deadline = time.monotonic() + wait_s
        signalled: set[ProcessId] = set()
        while True:
            # Those seen before are kept: once their parent is dead nothing may lead to them.
            left = {pid: process for pid, process in left.items() if is_alive(process)}
            left.update(_identified(find_survivors(owner)))
            if not left:
                return ""
            for process in left.values():
                _signal_once(process, number, signalled)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
    return f"{len(left)} processes of {task!r} could not be stopped (pids {sorted(left)[:5]})"


def _identified(pids: list[int]) -> dict[int, ProcessId]:
    return {pid: process for pid in pids if (process := process_id(pid)) is not None}


def _signal_once(process: ProcessId, number: signal.Signals, signalled: set[ProcessId]) -> None:
    if process in signalled:
        return
    try:
        # A pidfd pins the process: what was identified is what is signalled.
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_alive(process):
            signalled.add(process)
            signal.pidfd_send_signal(pidfd, number)
    except (ProcessLookupError, PermissionError):
        return  # gone, or of another user by now: it is looked at again
    finally:
        os.close(pidfd)


def find_survivors(owner: Owner) -> list[int]:
    """Pids of living processes of this user that belong to an owner's attempt."""
    marks = [f"{variable}={owner}".encode() for variable in OWNER_VARIABLES]
    family = _own_line()
    sessions: set[int] = set()
    found: set[int] = set()
    for pid in _pids():
        if pid in family:
            continue
        environment = _environment(pid)
        if any(mark in environment for mark in marks) and not _is_of_another_job(
            environment, owner
        ):
            found.add(pid)
            sessions.add(_session(pid))
    sessions.discard(-1)
    sessions.discard(os.getsid(0))
    if found:
        # A process that wiped its environment is still in the session of the attempt, or, with a
        # session of its own, a descendant: a keeper adopts whoever escapes.
        found.update(p for p in _pids() if p not in family and _session(p) in sessions)
        found |= _descendants(found) - family
    return sorted(pid for pid in found if process_id(pid) is not None)


def _descendants(ancestors: set[int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid in _pids():
        children.setdefault(_stat_field(pid, 1), []).append(pid)
    found: set[int] = set()
    unread = list(ancestors)
    while unread:
        fresh = [pid for pid in children.get(unread.pop(), ()) if pid not in found]
        found.update(fresh)
        unread += fresh
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _own_line() -> set[int]:
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        pid = _stat_field(pid, 1)
    return line


def _environment(pid: int) -> list[bytes]:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return []
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _is_of_another_job(environment: list[bytes], owner: Owner) -> bool:
    """Whether Slurm started it for another job: one that the attempt has submitted inherits all."""
    job = b"SLURM_JOB_ID="
    return owner.job.isdecimal() and any(
        text.startswith(job) and text != job + owner.job.encode() for text in environment
    )


def _session(pid: int) -> int:
    return _stat_field(pid, 3)


def _stat_field(pid: int, index: int) -> int:
    """A field of ``/proc/<pid>/stat`` counted from the state (0); -1 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[index])
    except (OSError, ValueError, IndexError):
        return -1
