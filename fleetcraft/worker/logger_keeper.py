"""The parent of a node's telemetry logger: starts it, and starts it again when it dies.

A process of its own, since a worker that runs one task at a time takes every descendant for that
task's. Told by its command line: the descriptor at whose end everything ends, the one for its words
to the worker, the pauses before each new start, and then the logger's command line.
Not here: what is logged. Invariant: it does not outlive its worker by more than the logger's end.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence

REFUSED = 75
"""The logger's exit code when another one logs the same node for the same job."""
AGAIN = "again"
LAST = "last"
"""The first word of what it tells the worker: whether that is the last that will be heard."""
_STAYS_AWAY = frozenset({2, 3})  # usage and configuration: it would end the same way again
_REFUSED_PAUSE_S = 60.0
_GOOD_RUN_S = 600.0
_TAIL_BYTES = 400
_ORDERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, *_ORDERS)


class Keeper:
    """Keeps one logger running.

    Args:
        watch_fd: Readable at its end: the worker is gone, or leaves.
        words_fd: Where it tells the worker, one line at a time.
        pauses_s: Before each start after a death; past the last one it gives up.
        argv: The logger's command line. It inherits both descriptors under the same numbers.
    """

    def __init__(
        self, watch_fd: int, words_fd: int, pauses_s: Sequence[float], argv: list[str]
    ) -> None:
        self._watch_fd = watch_fd
        self._words_fd = words_fd
        self._pauses_s = pauses_s
        self._argv = argv
        self._pid = 0
        self._told_to_end = False
        self._refusal_told = False
        self._deaths = 0
        for number in _ORDERS:
            signal.signal(number, self._pass_on)

    def serve(self) -> None:
        """Until the worker leaves, the logger has ended in order, or it has died too often."""
        while not self._told_to_end and not self._worker_is_gone(0.0):
            pause_s = self._after(*self._run())
            if pause_s is None or self._worker_is_gone(pause_s):
                return

    def _run(self) -> tuple[int, str, float]:
        """Runs the logger to its end: its exit code, its last line of errors, and its seconds."""
        began = time.monotonic()
        read_fd, write_fd = os.pipe()
        # An order that came between the start and the note of its pid would be passed to nobody.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ORDERS)
        try:
            self._pid = os.posix_spawn(
                self._argv[0],
                self._argv,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, write_fd, 2)],
                setsigmask=before,
                setsigdef=_DEFAULT_SIGNALS,
            )
        except OSError as error:
            os.close(read_fd)
            return 127, error.strerror or str(error), 0.0
        finally:
            os.close(write_fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        tail = b""
        while chunk := os.read(read_fd, 4096):
            tail = (tail + chunk)[-_TAIL_BYTES:]
        os.close(read_fd)
        pid = self._pid
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._pid = 0  # before its number is free for another process
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        lines = tail.decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return code, last, time.monotonic() - began

    def _after(self, code: int, said: str, ran_s: float) -> float | None:
        """Tells the worker what is to be told; the pause before the next start, None for none."""
        if self._told_to_end or self._worker_is_gone(0.0):
            return None
        if code == 0:
            self._tell(LAST, "was told to end; nothing more is logged here")
            return None
        if code == REFUSED:
            if not self._refusal_told:
                self._tell(AGAIN, f"stands back: {said or 'this node is logged already'}")
            self._refusal_told = True
            return _REFUSED_PAUSE_S
        self._deaths = 0 if ran_s >= _GOOD_RUN_S else self._deaths
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        how += f" ({said})" if said else ""
        if code in _STAYS_AWAY or self._deaths >= len(self._pauses_s):
            often = "" if code in _STAYS_AWAY else ", time and again"
            self._tell(LAST, f"{how}{often}; nothing more is logged here")
            return None
        pause_s = self._pauses_s[self._deaths]
        self._deaths += 1
        self._tell(AGAIN, f"{how}; it is started again in {pause_s:g} s")
        return pause_s

    def _worker_is_gone(self, wait_s: float) -> bool:
        """Whether the worker has closed its end, looked at for so long."""
        ready, _, _ = select.select([self._watch_fd], [], [], wait_s)
        return bool(ready)

    def _tell(self, kind: str, text: str) -> None:
        try:
            os.write(self._words_fd, f"{kind} the telemetry logger {text}\n".encode())
        except OSError:
            return  # the worker is gone, which the watched descriptor tells too

    def _pass_on(self, number: int, _frame: object) -> None:
        self._told_to_end = True
        if not self._pid:
            raise SystemExit(0)
        os.kill(self._pid, number)


def main() -> None:
    """Keeps the logger of this command line."""
    watch_fd, words_fd = int(sys.argv[1]), int(sys.argv[2])
    pauses_s = [float(text) for text in sys.argv[3].split(",") if text]
    _close_all_but({0, 1, 2, watch_fd, words_fd})
    Keeper(watch_fd, words_fd, pauses_s, sys.argv[4:]).serve()


def _close_all_but(kept: set[int]) -> None:
    """Closes what the worker was given open, such as a lock or a pipe that somebody reads."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # that of the listing itself


if __name__ == "__main__":
    main()
