"""What ends the logger's waits: orders to end, whoever started it being gone, and its own threads.

One pipe and one poll, so that no wait outlives an order, whatever it was for. Invariant: an order
is only noted here; the logger ends between two steps, with its file in order.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
from types import FrameType

_ORDERS = {signal.SIGTERM: "TERM", signal.SIGINT: "interrupted", signal.SIGHUP: "hung up"}
_IGNORED = (signal.SIGUSR1, signal.SIGUSR2)  # Slurm sends a job's warning to its steps too


class Waiting:
    """The logger's waits.

    Args:
        watch_fd: The read end of a pipe whose write end whoever started it holds.

    Attributes:
        ended_by: Why the logger is to end; empty while it is not.
    """

    def __init__(self, watch_fd: int | None = None) -> None:
        self.ended_by = ""
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watch_fd = watch_fd
        self._poll = select.poll()
        self._poll.register(self._read_fd, select.POLLIN)
        if watch_fd is not None:
            with contextlib.suppress(OSError):  # not open: the first wait finds that it is gone
                os.set_inheritable(watch_fd, False)
            self._poll.register(watch_fd, select.POLLIN)

    def catch_signals(self) -> None:
        """Takes TERM, INT and HUP as orders to end, and ignores USR1 and USR2, from here on."""
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in _ORDERS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup
            signal.signal(number, self._note)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = self.ended_by or _ORDERS[signal.Signals(number)]

    def end(self, why: str) -> None:
        """Notes an order of the logger's own."""
        self.ended_by = self.ended_by or why

    def wake(self) -> None:
        """Ends the wait; for other threads."""
        with contextlib.suppress(OSError):  # full, which will do, or closed
            os.write(self._write_fd, b"!")

    def wait(self, limit_s: float) -> bool:
        """Waits until it is woken, or the limit has passed by a clock that is never set.

        Returns:
            Whether the logger is to go on.
        """
        if self.ended_by:
            return False
        # Up to the next millisecond: a wait that ends too early would be followed by another.
        for fd, _ in self._poll.poll(max(0, math.ceil(limit_s * 1000))):
            if fd == self._read_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 4096)
            elif not _still_held(fd):
                self.end("its worker left")
        return not self.ended_by

    def close(self) -> None:
        """Closes the pipe, for who lives on; a logger's process ends instead."""
        signal.set_wakeup_fd(-1)
        os.close(self._read_fd)
        os.close(self._write_fd)


def _still_held(fd: int) -> bool:
    try:
        return bool(os.read(fd, 4096))
    except BlockingIOError:
        return True
    except OSError:
        return False
