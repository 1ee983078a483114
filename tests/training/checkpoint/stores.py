"""Small checkpoints for tests: what every rank of a plain run says, and file systems that fail.

Not here: torch; test_trainer.py has it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleetcraft.files import FileSystem
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import Manifest, Part
from fleetcraft.training.checkpoint.saving import Saving
from fleetcraft.training.checkpoint.store import CheckpointStore

PARTS_IN_FILES = (Part.WEIGHTS, Part.OPTIMIZER, Part.SAMPLER, Part.RNG_PYTHON, Part.RNG_CPU)
DECLARED_NONE = (Part.SCHEDULER, Part.RNG_NUMPY, Part.RNG_DEVICE, Part.RNG_WORKERS)


def fill(saving: Saving, *, but: Part | None = None, text: str = "") -> None:
    """Says everything that a plain run has, in tiny files of one size; all but one part."""
    for part in PARTS_IN_FILES:
        if part is not but:
            content = f"{part.value:12}{saving.step:6}{saving.rank:4}{text:20}"
            Path(saving.path(f"{part.value}.bin")).write_text(content)
            saving.part(part, f"{part.value}.bin")
    for part in DECLARED_NONE:
        if part is not but:
            saving.none(part, "not in this test")
    if but is not Part.DATASET:
        saving.value(Part.DATASET, "sha256:0123")


def save(
    store: CheckpointStore,
    step: int,
    *,
    but: Part | None = None,
    text: str = "",
    generation: int | None = None,
) -> Manifest:
    """One whole checkpoint of one rank."""
    with store.save(step, protocol=PLAIN_RUN, generation=generation) as saving:
        fill(saving, but=but, text=text)
    assert saving.manifest is not None
    return saving.manifest


class Crash(BaseException):
    """The process ends here: nothing that handles errors sees it."""


class Interrupted(FileSystem):
    """The real file system, that ends the process at its k-th operation, or lets it fail.

    ``performed`` says whether the operation happens all the same.
    """

    OPERATIONS = (
        "create", "link", "rename_new", "unlink", "make_folder", "remove_folder", "listdir",
        "exists", "lstat", "read", "open_append", "datasync", "close", "sync_folder", "replace",
    )  # fmt: skip

    def __init__(
        self,
        at: int = -1,
        error: Callable[[], BaseException] = Crash,
        *,
        performed: bool = False,
        only: str = "",
    ) -> None:
        super().__init__()
        self.at = at
        self.count = 0
        self.error = error
        self.performed = performed
        self.only = only
        self.broken = False
        self.last = ""

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in Interrupted.OPERATIONS:
            return method
        return lambda *words, **named: self._step(name, method, words, named)

    def _step(self, name: str, method: Any, words: Any, named: Any) -> Any:
        if self.broken:
            raise Crash  # a dead process does nothing more
        if self.only and name != self.only:
            return method(*words, **named)
        mine = self.count == self.at
        self.count += 1
        if not mine:
            return method(*words, **named)
        self.last = f"{name} {words[0] if words else ''}"
        if self.performed:
            with contextlib.suppress(OSError):
                method(*words, **named)
        error = self.error()
        self.broken = isinstance(error, Crash)
        raise error


def os_error(code: int) -> Callable[[], OSError]:
    return lambda: OSError(code, os.strerror(code))


@contextmanager
def copies() -> Iterator[Callable[[Path], Path]]:
    """Copies of a prepared folder, in memory where there is such: crash tests need very many."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, prefix="fleet-checkpoint-") as made:
        count = 0

        def copy(template: Path) -> Path:
            nonlocal count
            count += 1
            return Path(shutil.copytree(template, f"{made}/{count}"))

        yield copy


class Evil:
    """A pickle that would run a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)
