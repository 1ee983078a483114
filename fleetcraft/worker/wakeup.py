"""What ends the main loop's wait: a pipe for signals and the like, and word of new tasks here.

Signals, child exits and the heartbeat write to the pipe; what is published on this machine is told
by the kernel. Invariant: a signal is only noted here; what it means is decided in the loop, between
two steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

_IN_MOVED_TO = 0x00000080
_IN_ONLYDIR = 0x01000000
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


class Arrivals:
    """Tells a waiting worker at once of what is renamed into a lane on this machine.

    A network file system says nothing of what other machines do, and there may be no watch to be
    had; so nothing rests on it: who listens looks now and then all the same.

    Args:
        folders: The lanes.

    Source: inotify(7).
    """

    def __init__(self, folders: Sequence[str]) -> None:
        libc = ctypes.CDLL(None)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest_until = float("inf")
        for folder in folders if self._fd >= 0 else ():
            libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_MOVED_TO | _IN_ONLYDIR)

    def rest(self, until: float = float("inf")) -> None:
        """Says until when, monotonic, no further look can be afforded; without end while busy."""
        self._rest_until = until

    def fds(self, next_look: float) -> list[int]:
        """What is readable when something has come; none if the next look is due by then anyhow."""
        return [self._fd] if self._fd >= 0 and self._rest_until < next_look else []

    def heard(self, ready: Sequence[int]) -> float | None:
        """When to look, monotonic, if something has come; forgets what it was."""
        if self._fd not in ready:
            return None
        with contextlib.suppress(OSError):
            while os.read(self._fd, 1 << 16):
                pass  # until it would block
        return self._rest_until

    def close(self) -> None:
        """Listens no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
