"""What one client of the passthrough believes: facts and listings that are old, and a quota.

Not here: when it believes them (`rules`), and the file system (`passthrough`). Invariant: safe for
threads, and nothing here touches a file, except to count the bytes there are at first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, TypeVar

T = TypeVar("T")
Entry = tuple[str, int, int]
"""Of a listing: name, inode, kind."""


class Seen:
    """What this client has seen, and may go on believing for a while: facts and listings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: dict[str, tuple[float, dict[str, Any] | None]] = {}
        self._listings: dict[str, tuple[float, list[Entry]]] = {}

    def facts(
        self, path: str, now: dict[str, Any] | None, most_s: float
    ) -> tuple[dict[str, Any] | None, bool]:
        """What is believed of a path, and whether that is stale; None: it is not there."""
        return self._believed(self._facts, path, now, most_s)

    def listing(self, path: str, now: list[Entry], most_s: float) -> tuple[list[Entry], bool]:
        """What is believed to be in a folder, and whether that is stale."""
        return self._believed(self._listings, path, now, most_s)

    def _believed(
        self, known: dict[str, tuple[float, T]], path: str, now: T, most_s: float
    ) -> tuple[T, bool]:
        with self._lock:
            at = time.monotonic()
            if path in known and at - known[path][0] < most_s:
                return known[path][1], known[path][1] != now
            known[path] = (at, now)
            return now, False

    def forget(self, *paths: str) -> None:
        """Forgets paths, what is below them, and the listings of their folders."""
        with self._lock:
            for path in paths:
                parent = path.rpartition("/")[0] or "/"
                for known in (self._facts, self._listings):
                    for gone in [p for p in known if p == path or p.startswith(f"{path}/")]:
                        del known[gone]
                    known.pop(parent, None)

    def forget_facts(self, path: str) -> None:
        """Forgets what is known of one path alone."""
        with self._lock:
            self._facts.pop(path, None)


class Quota:
    """Bytes of all files together, counted as they grow and go."""

    def __init__(self, backing: str) -> None:
        self._lock = threading.Lock()
        self.used = 0
        for folder, _, files in os.walk(backing):
            for file in files:
                with contextlib.suppress(FileNotFoundError):  # it is in use meanwhile
                    self.used += os.lstat(os.path.join(folder, file)).st_size

    def grow(self, wanted: int, most: int) -> int:
        """Takes as many of the wanted bytes as are left."""
        with self._lock:
            given = max(0, min(wanted, most - self.used)) if wanted > 0 else wanted
            self.used += given
            return given
