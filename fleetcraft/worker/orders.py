"""A worker of an allocation: it also obeys words that its launcher writes to its input.

Slurm delivers a signal for a step to every process in it, tasks included, and USR1 ends most
programs; a word reaches the worker alone. Not here: what a worker does by itself.
Invariant: an order can end a worker sooner, never keep it.
"""

from __future__ import annotations

import os

from fleetcraft.worker.loop import Worker
from fleetcraft.worker.settings import WorkerExit

_STDIN = 0


class OrderedWorker(Worker):
    """Obeys lines on its input.

    ``drain`` claims nothing more and leaves; ``interrupt`` also stops what runs and puts it back;
    ``walltime S`` says what is left of the allocation. Other words are passed over, so that an
    older worker serves a newer launcher. The end of the input means nothing: srun may be gone.
    """

    _heard = b""
    _listening = True

    def extra_fds(self) -> list[int]:
        """Its input, until that ends."""
        return [_STDIN] if self._listening else []

    def on_ready(self, ready: list[int]) -> None:
        """Reads what has come, and obeys each whole line."""
        if _STDIN not in ready:
            return
        try:
            data = os.read(_STDIN, 4096)
        except OSError:
            data = b""
        self._listening = bool(data)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._obey(line.decode("utf-8", "replace").split())

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["drain"]:
                self.leave("its launcher asked it to drain")
            case ["interrupt"]:
                self.interrupt("its launcher asked it to stop", WorkerExit.TERMINATED)
            case ["walltime", seconds] if seconds.isdecimal():
                self.walltime_left(float(seconds))
