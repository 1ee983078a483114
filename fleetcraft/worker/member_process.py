"""The process of one member of a local fleet, as its parent holds it: forked, or started afresh.

A fork of a small process of one thread begins to work in a moment; a fresh interpreter takes a
tenth of a second of CPU to be where its parent already is. Not here: what a member does.
Invariant: never forked from a process of several threads, or one that did not ask for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Protocol

import msgspec

from fleetcraft.worker.settings import WorkerSettings

MEMBER_NAME = b"fleet-member"
"""The name that ps and top show of a forked member; its command line is its parent's."""
_PR_SET_NAME = 15


class MemberProcess(Protocol):
    """What a local fleet needs of a child; `subprocess.Popen` has it."""

    pid: int
    returncode: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it runs."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""

    def terminate(self) -> None:
        """TERM, if it has not ended."""

    def send_signal(self, number: int) -> None:
        """A signal, if it has not ended."""


def start_afresh(settings: WorkerSettings) -> MemberProcess:
    """A member in an interpreter of its own.

    Raises:
        OSError: It cannot be started.
    """
    import subprocess  # who forks starts without it

    command = [
        sys.executable, "-m", "fleetcraft.worker.member",
        msgspec.json.encode(settings).decode(), str(os.getpid()),
    ]  # fmt: skip
    # A session of its own: Ctrl-C reaches the workers through this process, once.
    process: MemberProcess = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    return process


def may_fork() -> bool:
    """Whether this process has one thread only, native ones counted."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def fork(settings: WorkerSettings, run: Callable[[WorkerSettings, int], int]) -> MemberProcess:
    """A member as a copy of this process, which must have one thread.

    Args:
        settings: The member's.
        run: What it does, given its parent's pid; returns its exit code.

    Raises:
        OSError: No further process or pipe can be had.
    """
    parent = os.getpid()
    hears, tells = os.pipe2(os.O_CLOEXEC)
    listens, speaks = os.pipe2(os.O_CLOEXEC)
    # Until the child has its own, a signal would be handled by a copy of the parent's handlers.
    old = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _live(settings, run, parent, hears, speaks)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    os.close(hears)
    os.close(speaks)
    return _Forked(pid, os.fdopen(tells, "wb"), os.fdopen(listens, "rb"))


def _live(
    settings: WorkerSettings,
    run: Callable[[WorkerSettings, int], int],
    parent: int,
    hears: int,
    speaks: int,
) -> None:
    """The child's life; it never returns into its parent's stack."""
    code = 70
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_NAME, MEMBER_NAME, 0, 0, 0)
        os.dup2(hears, 0)
        os.dup2(speaks, 1)
        _close_all_but_three()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = run(settings, parent)
    except BaseException:  # whatever it is, it must not unwind into the parent's code
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _close_all_but_three() -> None:
    """Pipes of its fellows too: one that held these would hide their parent's end from them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # that of the listing itself is closed already
                os.close(int(name))


class _Forked:
    """A forked child. ``returncode`` means something once it has ended."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.returncode = 0
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self._ended = False

    def poll(self) -> int | None:
        """Its exit code, negative after a signal; None while it runs."""
        return self._take(os.WNOHANG)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = self._take(0)
        assert code is not None
        return code

    def terminate(self) -> None:
        """TERM, if it has not ended."""
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        """A signal, if it has not ended: its pid stays its own until it is waited for."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _take(self, flags: int) -> int | None:
        if not self._ended:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:
                # A signal came in the middle of this: its handler has waited for it, or asks now.
                return self.returncode
            if pid == 0:
                return None
            self.returncode = os.waitstatus_to_exitcode(status)
            self._ended = True
        return self.returncode
