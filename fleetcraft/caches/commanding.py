"""Running the download command of a fill: in a session of its own, and wholly gone afterwards.

Not here: what it downloads. Invariant: when this returns or raises, no process of the command's
session that it did not hide is left, so nobody writes to what is then proved.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from fleetcraft.errors import FleetError, UsageError

_GRACE_S = 10.0
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)
# Becomes the command, which the kernel then ends with this process, also if that is killed. Done in
# a process of its own: code between fork and exec can hang where threads are, and the lock has one.
_BOUND_TO_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class CommandFailedError(FleetError):
    """The download command failed; the shared hub is as it was."""

    exit_code = 1


def run_command(
    command: Sequence[str], environ: dict[str, str], *, tell: Callable[[str], None]
) -> None:
    """Runs a command to its end; what it prints goes to stderr, and it reads nothing.

    Raises:
        UsageError: It cannot be started.
        CommandFailedError: It exited with something else than 0, or by a signal.
        KeyboardInterrupt: The user has interrupted; the command was stopped.
        SystemExit: This process was asked to end; the command was stopped.
    """
    if shutil.which(command[0], path=environ.get("PATH", os.defpath)) is None:
        raise UsageError(
            f"cannot start {command[0]!r}: no such program; the hub is as it was",
            hint="name a program that is on PATH, such as hf download", command=list(command),
        )  # fmt: skip
    tell(f"running {shlex.join(command)}")
    process = subprocess.Popen(
        [sys.executable, "-ISc", _BOUND_TO_PARENT, str(os.getpid()), *command],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=2,
        start_new_session=True,
    )
    with _signals_reach(process.pid):
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except BaseException:
            _end_session(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                _wait_quietly(process.pid)
            raise
        finally:
            # The first process is not waited for yet, so its number still names this session.
            _end_session(process.pid, signal.SIGKILL)
            code = process.wait()
    if code != 0:
        how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise CommandFailedError(
            f"{command[0]} {how}; the hub is as it was",
            hint="what it had fetched is kept for the next call; --fresh begins anew",
            command=list(command), returned=code,
        )  # fmt: skip


def _wait_quietly(pid: int) -> None:
    """Gives a command that was asked to end some time for it."""
    done = threading.Event()

    def look() -> None:
        with contextlib.suppress(OSError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        done.set()

    threading.Thread(target=look, daemon=True).start()
    done.wait(_GRACE_S)


def _end_session(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


@contextlib.contextmanager
def _signals_reach(pid: int) -> Iterator[None]:
    """While a command runs, a request to end goes to it, and then ends this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    got: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        got.append(number)
        _end_session(pid, signal.SIGTERM if len(got) == 1 else signal.SIGKILL)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if got:
            # As an exception, so that the lock is let go on the way out.
            raise SystemExit(128 + got[0])
