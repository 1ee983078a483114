"""A file system that stops at the k-th operation which changes something.

Not here: what is disturbed, and what must hold afterwards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from fleetcraft.caches.hub import HubFiles


class Killed(BaseException):
    """The process ends at this operation."""


class StopsAt(HubFiles):
    """Counts operations that change something, and fails at one of them.

    Args:
        at: Which one; 0 never.
        error: An errno, or None for a process that is killed.
        after: Fail after it was done, as a network file system may.
    """

    def __init__(self, at: int, error: int | None, *, after: bool = False) -> None:
        super().__init__()
        self.count = 0
        self._at = at
        self._error = error
        self._after = after

    def disturb(self, act: Callable[[], None]) -> None:
        self.count += 1
        if self.count == self._at and not self._after:
            self._fail()
        act()
        if self.count == self._at:
            self._fail()

    def _fail(self) -> None:
        raise Killed if self._error is None else OSError(self._error, os.strerror(self._error))


def _disturbed(name: str) -> Callable[..., object]:
    def method(self: StopsAt, *args: object, **kwargs: object) -> object:
        results: list[object] = []
        original = getattr(HubFiles, name)
        self.disturb(lambda: results.append(original(self, *args, **kwargs)))
        return results[0]

    return method


for _name in (
    "write", "open_new", "datasync", "rename_new", "replace", "make_link", "make_read_only",
    "make_shared_folder", "make_folder", "unlink", "sync_folder", "create", "link",
    "remove_folder",
):  # fmt: skip
    setattr(StopsAt, _name, _disturbed(_name))

WAYS: dict[str, tuple[int | None, bool]] = {
    "killed": (None, False),
    "full": (errno.ENOSPC, False),
    "read-only": (errno.EROFS, False),
    "done but reported as failed": (errno.EIO, True),
}
"""How an operation is disturbed: the errno, or None for a kill, and whether it was done before."""


def release(hub: Path) -> None:
    """Frees the lock of a process that is gone; here it would be this very one, which lives."""
    for path in hub.glob(".locks/fleetcraft/*/lock/*"):
        path.unlink()
