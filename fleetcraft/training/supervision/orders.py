"""What this process is told by signals: to end. Waiting that a signal cuts short.

Nothing is decided here. Invariant: a second signal changes nothing, so a bounded stop stays whole.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Orders:
    """Signals that ask this process to end.

    Attributes:
        told: The first signal's number; None while there was none.
    """

    def __init__(self) -> None:
        self.told: int | None = None
        self._came = threading.Event()

    def end(self, number: int = signal.SIGTERM) -> None:
        """As if that signal had come."""
        if self.told is None:
            self.told = int(number)
        self._came.set()

    def is_told(self) -> bool:
        """Whether this process is to end."""
        return self.told is not None

    def wait(self, seconds: float) -> None:
        """Waits, at most until this process is told to end."""
        self._came.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Waits the whole time, whatever this process is told."""
        threading.Event().wait(seconds)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Takes TERM, INT and HUP meanwhile."""

        def take(number: int, frame: FrameType | None) -> None:
            self.end(number)

        before = {number: signal.signal(number, take) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
