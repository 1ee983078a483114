"""The command beside the workers: what its end means for those that wait for its markers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.fleet.allocation import beside
from fleetcraft.fleet.allocation.beside import Beside


class EndedStep:
    """A step that is over."""

    def poll(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_MARKER_PATIENCE_S", 0.0)
    monkeypatch.setattr(beside, "_LOOK_S", 0.01)


def is_seen(monkeypatch: pytest.MonkeyPatch, looks: Iterator[bool | int]) -> None:
    """What each look for a marker finds: whether it is there, or the error of the look."""

    def exists(self: FileSystem, path: str) -> bool:
        found = next(looks)
        if isinstance(found, bool):
            return found
        raise OSError(found, os.strerror(found))

    monkeypatch.setattr(FileSystem, "exists", exists)


def test_a_marker_that_cannot_be_seen_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([errno.EIO, errno.EACCES, errno.ESTALE, False])
    is_seen(monkeypatch, looks)
    woken = threading.Event()
    over = Beside(
        EndedStep(),  # type: ignore[arg-type]
        after_marker="",
        until_marker="/run/done",
        wake=woken.set,
    )

    assert over.poll()

    assert woken.wait(60)
    assert over.broken_promise == "the command beside them is over and /run/done is not there"
    assert list(looks) == []  # only the look that was answered has said so
