"""Signals to processes that are known for good: host, boot, pid, start time, and launch nonce.

Not here: which processes are found, and when they are stopped. Invariant: a process is pinned by a
pidfd, then identified, then signalled through that pidfd; what cannot be identified gets nothing.
"""

from __future__ import annotations

import errno
import os
import signal

from fleetcraft.identity import HostId, ProcessId, is_seen_from, this_host
from fleetcraft.training.launching.order import NODE, NONCE
from fleetcraft.training.records import ProcessRecord

PROC = "/proc"


def identify(record: ProcessRecord, *, here: HostId | None = None, proc: str = PROC) -> bool | None:
    """Whether this very process lives on this machine.

    Pid and start time name a process for good within one boot; the nonce in its environment shows
    in addition that the record speaks of a process of this launch.

    Args:
        record: The process.
        here: This machine.
        proc: Where its processes are described; a stand-in in tests.

    Returns:
        True: it lives. False: positively gone (a reboot, another start time, another nonce).
        None: another host or pid namespace, or it cannot be looked at.
    """
    seen = is_seen_from(record.place, here or this_host())
    if not seen:
        return seen
    try:
        found = read_process(record.process.pid, proc)
        if found != record.process:
            return False
        if not record.nonce:  # found by its kin; pid and start time alone name it
            return True
        marks = read_marks(record.process.pid, proc)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return None
    return marks[0] == record.nonce if marks else None


def send(
    record: ProcessRecord, number: int, *, here: HostId | None = None, proc: str = PROC
) -> bool | None:
    """Signals one process of this machine, if it is the one of the record.

    Returns:
        True: it was signalled. False: it is gone. None: not known, and nothing was signalled.
    """
    if here is not None and here.host != record.place.host:
        return None
    try:
        pidfd = os.pidfd_open(record.process.pid)
    except ProcessLookupError:
        return False
    except OSError as error:
        return _send_plainly(record, number, here, proc) if _no_pidfd(error) else None
    try:
        lives = identify(record, here=here, proc=proc)
        if lives:
            signal.pidfd_send_signal(pidfd, number)
        return lives
    except ProcessLookupError:
        return False
    except PermissionError:
        return None
    finally:
        os.close(pidfd)


def _no_pidfd(error: OSError) -> bool:
    return error.errno in (errno.ENOSYS, errno.EPERM)


def _send_plainly(
    record: ProcessRecord, number: int, here: HostId | None, proc: str
) -> bool | None:
    # Kernels before 5.3, and sandboxes that forbid the call: identified right before the signal.
    lives = identify(record, here=here, proc=proc)
    if not lives:
        return lives
    try:
        os.kill(record.process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None
    return True


def read_process(pid: int, proc: str = PROC) -> ProcessId | None:
    """The identity of a living process; None for a zombie.

    Raises:
        OSError: There is none (FileNotFoundError, ProcessLookupError), or it cannot be read.

    Source: proc_pid_stat(5).
    """
    with open(f"{proc}/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return ProcessId(pid=pid, start_ticks=int(fields[19]))


def read_marks(pid: int, proc: str = PROC) -> tuple[str, str] | None:
    """Launch nonce and launch node in a process's environment, each empty where it has none.

    Returns:
        None for no environment at all, which a process that is just ending shows: it says nothing.

    Raises:
        OSError: It cannot be read, or there is no such process.
    """
    with open(f"{proc}/{pid}/environ", "rb") as file:
        environment = file.read()
    if not environment:
        return None
    words = environment.split(b"\0")
    return _value(words, NONCE), _value(words, NODE)


def _value(words: list[bytes], name: str) -> str:
    mark = f"{name}=".encode()
    found = next((word for word in words if word.startswith(mark)), mark)
    return found[len(mark) :].decode("utf-8", "replace")
