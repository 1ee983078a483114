"""Whether a later launch saves into the same folder, so that this one's saves no longer count.

A launch has the generation of the lock that decided it. What lay in the folder when this process
first looked proves nothing: folders are copied, and a run's lock may begin anew. Invariant: without
a generation (0, launched by hand) a process is never fenced off.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleetcraft.errors import UsageError
from fleetcraft.files import FileSystem
from fleetcraft.layout.checkpoints import StorePaths, parse_step, parse_unfinished
from fleetcraft.training.checkpoint.listing import read_step
from fleetcraft.training.checkpoint.records import SaveFencedError

GENERATION = "FLEET_GENERATION"
_DIGITS = 18


def generation_of(environ: Mapping[str, str]) -> int:
    """The generation under which this process was launched; 0 without one.

    Raises:
        UsageError: The variable holds something else.
    """
    text = environ.get(GENERATION, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        raise UsageError(
            f"{GENERATION} is {text!r}, expected a whole number; nothing was written",
            hint="the supervisor sets it; without one, leave it out",
        )
    return int(text)


class Fence:
    """What this process has seen in a folder of checkpoints, and what came since."""

    def __init__(self, fs: FileSystem, paths: StorePaths) -> None:
        self._fs = fs
        self._paths = paths
        self._seen: set[str] | None = None

    def begin(self) -> None:
        """Notes what lies there now; only the first call does.

        Raises:
            OSError: It cannot be listed.
        """
        if self._seen is None:
            self._seen = set(self._names())

    def check(self, step: int, generation: int) -> None:
        """Refuses a commit if a later launch has saved here since.

        Raises:
            SaveFencedError: It has.
            OSError: That cannot be told.
        """
        self.begin()
        assert self._seen is not None
        for name in self._names():
            if not generation or name in self._seen:
                continue
            later = self._generation(name)
            if later > generation:
                raise SaveFencedError(
                    f"step {step} was not committed: a later launch saves here ({name}, of "
                    f"generation {later}), and this one is of generation {generation}",
                    hint="end this process: its run has been launched again",
                    step=step,
                    folder=self._paths.folder,
                    generation=generation,
                    later=later,
                )
            self._seen.add(name)

    def _names(self) -> list[str]:
        try:
            return self._fs.listdir(self._paths.folder)
        except FileNotFoundError:
            return []

    def _generation(self, name: str) -> int:
        unfinished = parse_unfinished(name)
        if unfinished is not None:
            return unfinished.generation
        step = parse_step(name)
        if step is None:
            return 0
        try:
            return read_step(self._fs, f"{self._paths.folder}/{name}", step).generation
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return 0  # no checkpoint, so nobody's
