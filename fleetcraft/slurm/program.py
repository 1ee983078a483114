"""One run of one outside program: bounded in time and output, whatever it does.

Not here: which program, and what its output means. Invariant: the call returns within its timeout
plus a few seconds, also when the program ignores TERM, hangs in the kernel, or leaves a child that
keeps its pipes open; its process group is signalled only while it cannot be another's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_BYTES = 64 << 20
"""More output than this is no answer: a queue of 100,000 jobs takes about 30 MiB."""
_TERM_GRACE_S = 2.0
_KILL_WAIT_S = 2.0
_LONGEST_PAUSE_S = 0.1
_LOOK_ONLY = os.WEXITED | os.WNOHANG | os.WNOWAIT
_RUNNING = object()
_LINE_MAX = 300
_SPELLED = {c: f"\\x{c:02x}" for c in (*range(32), *range(127, 160))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a program printed and how it ended.

    Attributes:
        exit_code: Negative for a signal; None when it is not known.
        stdout: What it printed.
        stderr: What it said beside.
        timed_out: It did not end in time and was stopped.
        too_much: It printed more than `MAX_BYTES` and was stopped.
        lost: Why its output or its end could not be followed, in the system's words; it was
            stopped.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    too_much: bool = False
    lost: str = ""

    @property
    def said(self) -> str:
        """The first line of its errors, printable."""
        return self.lost or first_line(self.stderr)


def first_line(data: bytes) -> str:
    """The first line that is not blank, with control characters spelled out, of bounded length."""
    for line in data[: 1 << 16].decode("utf-8", "replace").splitlines():
        if stripped := line.strip():
            return stripped[:_LINE_MAX].translate(_SPELLED)
    return ""


def run_program(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Ended:
    """Runs a program to its end in a process group of its own, without input.

    Args:
        argv: Path and arguments.
        env: Its whole environment.
        timeout_s: Seconds until it is stopped: TERM, two seconds, KILL.

    Raises:
        OSError: It was not started. Once it was, nothing of the system's is raised.
    """
    # Before the program: without a descriptor for it, one that runs could not be followed.
    selector = selectors.DefaultSelector()
    try:
        child = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
    except BaseException:
        selector.close()
        raise
    return _Run(child, selector).to_the_end(timeout_s)


class _Run:
    """One child, its two pipes, and what came through them."""

    def __init__(self, child: subprocess.Popen[bytes], selector: selectors.BaseSelector) -> None:
        assert child.stdout is not None
        assert child.stderr is not None
        self._child = child
        self._pipes = (child.stdout, child.stderr)
        self._output = {pipe.fileno(): bytearray() for pipe in self._pipes}
        self._selector = selector

    def to_the_end(self, timeout_s: float) -> Ended:
        deadline = time.monotonic() + timeout_s
        timed_out = False
        lost = ""
        try:
            self._open()
            timed_out = not self._wait(deadline)
        except OSError as error:
            lost = f"it could not be followed to its end: {error.strerror or error}"
        finally:
            # Also when a signal handler of the caller raised: nothing is left behind.
            code = self._stop() if self._is_running() else self._reap()
            with contextlib.suppress(OSError):
                self._drain()
            self._selector.close()
            for pipe in self._pipes:
                pipe.close()
        stdout, stderr = (bytes(data) for data in self._output.values())
        too_much = self._too_much()
        return Ended(
            exit_code=None if lost else code,
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out and not too_much,
            too_much=too_much,
            lost=lost,
        )

    def _open(self) -> None:
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe.fileno(), selectors.EVENT_READ)

    def _wait(self, deadline: float) -> bool:
        """Reads until the program has ended or printed too much; False when time is up."""
        pause = 0.001
        while not self._too_much():
            if not self._is_running():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._selector.get_map():
                if self._read(min(left, pause)):
                    pause = 0.001
                    continue
            else:
                time.sleep(min(left, pause))
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)
        return True

    def _read(self, wait_s: float) -> bool:
        """Takes what the pipes hold; says whether anything came."""
        came = False
        for key, _ in self._selector.select(wait_s):
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                self._output[key.fd] += data
                came = True
            else:
                self._selector.unregister(key.fd)
        return came

    def _drain(self) -> None:
        """Takes what is left in the pipes, without waiting for whoever else holds them open."""
        while not self._too_much() and self._selector.get_map() and self._read(0):
            pass

    def _too_much(self) -> bool:
        return any(len(data) > MAX_BYTES for data in self._output.values())

    def _is_running(self) -> bool:
        return self._look() is _RUNNING

    def _look(self) -> object:
        """Whether it runs, has ended and is still ours to wait for, or neither.

        Leaves the exit code in place, and with it the process id.
        """
        try:
            return os.waitid(os.P_PID, self._child.pid, _LOOK_ONLY) or _RUNNING
        except ChildProcessError:
            return None

    def _stop(self) -> int | None:
        """TERM, a grace, KILL, a bounded wait, all to its group."""
        for number, wait_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, _KILL_WAIT_S)):
            self._signal_group(number)
            deadline = time.monotonic() + wait_s
            while self._is_running() and time.monotonic() < deadline:
                time.sleep(0.01)
            if not self._is_running():
                break
        self._signal_group(signal.SIGKILL)  # what it has started may be left
        return self._reap()

    def _signal_group(self, number: signal.Signals) -> None:
        # Until it has been waited for, this number can be no other group's.
        if self._look() is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    def _reap(self) -> int | None:
        try:
            found = os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            # Somebody else of this process has taken the exit code.
            self._child.returncode = 0
            return None
        if found is None:
            return None  # even KILL has not ended it; Popen remembers it and looks again later
        exited = found.si_code == os.CLD_EXITED
        code = found.si_status if exited else -found.si_status
        self._child.returncode = code
        return code
