"""Processes of a launch on this machine, found by its nonce in their environment.

The second net under the keepers: it also finds what was left when a keeper was killed, and what was
started by others on request. Not here: signals. Invariant: a process is found by the nonce itself,
or as descendant or session member of one so found; never by a name, and never this process or one
of its ancestors.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

import msgspec

from fleetcraft.identity import HostId, ProcessId, this_host
from fleetcraft.training.launching.signalling import PROC, read_marks, read_process
from fleetcraft.training.records import ProcessRecord

_MOST_TURNS = 10_000


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass over the processes of this machine found.

    Attributes:
        found: Living processes of the launch; the nonce is empty for one that wiped its
            environment and was found by its kin.
        unreadable: Processes of this user whose environment could not be read, so that they may or
            may not belong to it.
    """

    found: tuple[ProcessRecord, ...] = ()
    unreadable: tuple[ProcessId, ...] = ()


def find_by_nonce(nonce: str, *, proc: str = PROC) -> tuple[ProcessRecord, ...]:
    """Living processes of a launch on this machine; see `scan` for those that cannot be read."""
    return scan((nonce,), proc=proc).found


def scan(
    nonces: Collection[str], *, since_ticks: int = 0, here: HostId | None = None, proc: str = PROC
) -> Scan:
    """Looks at every process of this machine once.

    Args:
        nonces: Of the launches that are looked for.
        since_ticks: Processes that started before this many clock ticks after boot are not told
            as unreadable: they cannot belong to a launch that began later.
        here: This machine.
        proc: Where its processes are described; a stand-in in tests.

    Raises:
        OSError: The processes cannot be listed.
    """
    here = here or this_host()
    spared = _own_line(proc)
    found: dict[int, ProcessRecord] = {}
    unreadable: list[ProcessId] = []
    for process in _processes(proc, spared):
        try:
            marks = read_marks(process.pid, proc)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            if (
                process.start_ticks >= since_ticks
                and _status_field(process.pid, b"Uid:", proc) == os.geteuid()
            ):
                unreadable.append(process)
            continue
        if marks and marks[0] in nonces:
            found[process.pid] = ProcessRecord(place=here, process=process, nonce=marks[0])
    if found:
        found = _with_kin(found, here, proc, spared)
    return Scan(
        found=tuple(found.values()),
        unreadable=tuple(process for process in unreadable if process.pid not in found),
    )


def newest_first(nonce: str, *, node: str = "", proc: str = PROC) -> Iterator[ProcessRecord]:
    """Processes of a launch as they are met, the highest pid first.

    For whoever signals each at once: a process that forks and exits without end is met soon after
    it began, or never.

    Args:
        nonce: Of the launch.
        node: Only those that the keeper of this node has started; all if empty.
        proc: Where processes are described; a stand-in in tests.

    Raises:
        OSError: The processes cannot be listed.
    """
    here = this_host()
    for process in _processes(proc, _own_line(proc)):
        try:
            marks = read_marks(process.pid, proc)
            if marks and marks[0] == nonce and node in ("", marks[1]):
                yield ProcessRecord(place=here, process=process, nonce=nonce)
        except OSError:
            continue


def _processes(proc: str, spared: Collection[int]) -> Iterator[ProcessId]:
    """Every living process, the highest pid first, and then those that began meanwhile.

    A listing is no proof of absence: a process that forks and exits is gone when its turn comes,
    and its child is not in the list. So the pids that were given out meanwhile are looked at too,
    until a look went by in which none was: whatever is then alive has been met.

    Source: proc_loadavg(5): the last field is the pid that was given out last.
    """
    last = _last_pid(proc)
    pids = sorted(_pids(proc), reverse=True)
    for turn in range(_MOST_TURNS):
        for pid in pids:
            if pid not in spared:
                # A thread has a number and a folder too, which a listing leaves out.
                process = _read(pid, proc) if turn == 0 or _is_leader(pid, proc) else None
                if process is not None:
                    yield process
        now = _last_pid(proc)
        if now == last or now is None or last is None:
            return
        pids = list(range(now, last, -1)) if now > last else sorted(_pids(proc), reverse=True)
        last = now


def _last_pid(proc: str) -> int | None:
    try:
        with open(f"{proc}/loadavg", "rb") as file:
            return int(file.read().split()[-1])
    except (OSError, ValueError, IndexError):
        return None


def _read(pid: int, proc: str) -> ProcessId | None:
    try:
        return read_process(pid, proc)
    except OSError:
        return None  # gone meanwhile: these facts of a process are readable for everybody


def _is_leader(pid: int, proc: str) -> bool:
    return _status_field(pid, b"Tgid:", proc) == pid


def _pids(proc: str) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdecimal()]


def _own_line(proc: str) -> set[int]:
    """This process and its ancestors."""
    line: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in line:
        line.add(pid)
        pid = _stat_field(pid, 1, proc)
    return line


def _with_kin(
    found: dict[int, ProcessRecord], here: HostId, proc: str, spared: Collection[int]
) -> dict[int, ProcessRecord]:
    """Adds those that wiped their environment: descendants, and members of a found one's session.

    A session counts only when its leader was found: a found process may be a guest in the session
    of somebody's shell.
    """
    others = [pid for pid in _pids(proc) if pid not in spared]
    leads = {pid: (_stat_field(pid, 1, proc), _stat_field(pid, 3, proc)) for pid in others}
    kin = dict(found)
    grew = True
    while grew:
        grew = False
        for pid, (parent, session) in leads.items():
            if pid not in kin and (parent in kin or session in kin):
                record = _record(pid, here, proc)
                if record is not None:
                    kin[pid] = record
                    grew = True
    return kin


def _record(pid: int, here: HostId, proc: str) -> ProcessRecord | None:
    process = _read(pid, proc)
    return ProcessRecord(place=here, process=process, nonce="") if process else None


def _status_field(pid: int, name: bytes, proc: str) -> int:
    """The first number of a line of ``status``; -1 when that cannot be read.

    Source: proc_pid_status(5). Whose a process is stands only there: the owner of its folder is
    root for one that may not be traced.
    """
    try:
        with open(f"{proc}/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return -1
    return -1


def _stat_field(pid: int, index: int, proc: str) -> int:
    """A field of ``stat`` counted from the state (0); -1 when it is gone."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[index])
    except (OSError, ValueError, IndexError):
        return -1
