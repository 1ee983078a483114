"""What ends the launcher's wait: signals, ended steps, and threads that have found something out.

Invariant: a signal is only noted here; what it means is decided in the loop, between two steps.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_ORDERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_LONGEST_WAIT_S = 3600.0


class Signals:
    """Catches what steers a launcher, and SIGCHLD; use as a context manager."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = threading.Lock()
        self._came: list[int] = []
        self._old: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __enter__(self) -> Signals:
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in _ORDERS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup
            self._old[number] = signal.signal(number, self._note)
        self._old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        with self._closing:  # threads may still wake it: never a file that has its number by then
            os.close(self._write_fd)
            self._write_fd = -1
        os.close(self._read_fd)

    def wake(self) -> None:
        """Ends the wait; from any thread."""
        with self._closing, contextlib.suppress(BlockingIOError):  # full, which will do
            if self._write_fd >= 0:
                os.write(self._write_fd, b"!")

    def take(self) -> list[int]:
        """The signals since the last call, in order, without SIGCHLD."""
        came, self._came = self._came, []
        return came

    def wait(self, until: float) -> None:
        """Waits for a signal, an ended child, a thread's word, or a monotonic time."""
        wait_s = max(0.0, min(until - time.monotonic(), _LONGEST_WAIT_S))
        ready, _, _ = select.select([self._read_fd], [], [], wait_s)
        if ready:
            os.read(self._read_fd, 4096)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
