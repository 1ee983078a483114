"""Folders of evidence for tests, and file systems that misbehave.

Not here: what must come of it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetcraft.evidence.files.manifest import Manifest, make_manifest
from fleetcraft.files import BulkFileSystem

FILES = {"a.csv": b"x,y\n1,2\n", "clips/one.mp4": b"\0" * 5000, "run.log": b"done\n"}


def plant(folder: Path, files: dict[str, bytes] | None = None) -> Path:
    """A folder with some files."""
    for name, data in (FILES if files is None else files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def frozen(folder: Path, files: dict[str, bytes] | None = None) -> Manifest:
    """The manifest of a planted folder."""
    return make_manifest(str(plant(folder, files)), name="set")


def flip_a_bit(path: Path, offset: int = 0) -> None:
    """Changes one bit, keeping size, mode and time, also of what is read-only."""
    facts = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    path.chmod(facts.st_mode)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


class Cut(BaseException):
    """The process is dead: no operation after it happens."""


class DisturbedFS(BulkFileSystem):
    """Does something at the k-th operation.

    Args:
        at: Which, from 1; 0 for none, to count them.
        how: ``cut`` to die before it, ``cut after`` to die after it, or an errno's name to fail.
    """

    def __init__(self, at: int, how: str) -> None:
        super().__init__()
        self.at = at
        self.how = how
        self.steps = 0
        self.dead = False
        self._inside = False

    def step(self, perform: Callable[[], Any]) -> Any:
        if self._inside:
            return perform()
        if self.dead:
            raise Cut
        self.steps += 1
        if self.steps != self.at:
            return self._whole(perform)
        if not self.how.startswith("cut"):
            code = getattr(errno, self.how)
            raise OSError(code, os.strerror(code))
        self.dead = True
        if self.how == "cut after":
            self._whole(perform)
        raise Cut

    def _whole(self, perform: Callable[[], Any]) -> Any:
        self._inside = True
        try:
            return perform()
        finally:
            self._inside = False


def _disturbed(name: str) -> Callable[..., Any]:
    def method(self: DisturbedFS, *words: Any, **named: Any) -> Any:
        perform = getattr(super(DisturbedFS, self), name)
        return self.step(lambda: perform(*words, **named))

    return method


for _class in BulkFileSystem.__mro__[:-1]:
    for _name in vars(_class):
        # A descriptor is closed by the system when a process dies.
        if not _name.startswith("_") and _name != "close":
            setattr(DisturbedFS, _name, _disturbed(_name))
