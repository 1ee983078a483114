"""What ends the main loop's wait: a pipe that signals, child exits and the heartbeat write to.

Invariant: a signal is only noted here; what it means is decided in the loop, between two steps.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Wakeup:
    """A pipe that ends the main loop's wait: from signals, and from the heartbeat's thread."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """Ends the wait."""
        with contextlib.suppress(OSError):  # full, which will do, or closed
            os.write(self.write_fd, b"!")

    def clear(self) -> None:
        """Empties the pipe, which must be readable."""
        os.read(self.read_fd, 4096)

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self.read_fd)
        write_fd, self.write_fd = self.write_fd, -1  # threads may still wake it
        os.close(write_fd)


class CaughtSignals:
    """Catches the signals that tell a worker to leave, and SIGCHLD, which wakes it.

    Args:
        wakeup: Written to by every signal.
    """

    def __init__(self, wakeup: Wakeup) -> None:
        self._last = 0
        self._old: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        signal.set_wakeup_fd(wakeup.write_fd, warn_on_full_buffer=False)
        for number in _CAUGHT:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup
            self._old[number] = signal.signal(number, self._note)
        self._old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)

    @property
    def pending(self) -> bool:
        """Whether a signal has come since the last `take`."""
        return self._last != 0

    def await_one(self, limit_s: float = 0.25) -> None:
        """Waits a moment for a signal that is on its way."""
        deadline = time.monotonic() + limit_s
        while not self._last and time.monotonic() < deadline:
            time.sleep(0.01)

    def take(self) -> int:
        """The last signal since the last call, orders to end first; 0 if there was none."""
        number, self._last = self._last, 0
        return number

    def restore(self) -> None:
        """Gives the signals back to whoever had them."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        # A mere warning does not make an order to end forgotten.
        if number != signal.SIGUSR1 or not self._last:
            self._last = number
