"""Samples of the soak's workers: resident memory and open descriptors, each life by itself.

Not here: what is flat. Invariant: a process that cannot be read at a look has no sample of it,
never a zero.
"""

from __future__ import annotations

import json
import time

import psutil

from tests.soak.ground import Ground

EVERY_S = 3.0
WATCHED = ("worker", "pack", "keeper", "launcher", "logger")


class Watch:
    """Writes one line a look and process to ``samples.jsonl``.

    Attributes:
        workers: How many workers there were at the last look.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._file = (ground.base / "samples.jsonl").open("a")
        self._next = 0.0
        self.workers = 0

    def look(self) -> None:
        """Takes a sample of each, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        found = [proc for proc in self._ground.census() if proc.kind in WATCHED]
        self.workers = sum(proc.kind == "worker" for proc in found)
        for proc in found:
            try:
                process = psutil.Process(proc.pid)
                rss, fds = process.memory_info().rss, process.num_fds()
            except psutil.Error:
                continue
            line = {
                "at": round(now, 2),
                "life": f"{proc.pid}.{proc.start_ticks}",
                "kind": proc.kind,
                "node": proc.node,
                "rss_kib": rss // 1024,
                "fds": fds,
            }
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Writes what is not yet written."""
        self._file.close()
