"""A supervisor that is killed at its k-th file operation, and the next one that finishes the run.

The run takes a lock while it lives and notes when it met another launch of itself, so that two at
once are seen wherever they come from. Not here: which operations are tried.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetcraft.files import FileSystem
from fleetcraft.training.records import State
from fleetcraft.training.supervision.journal import read_events
from tests.training.supervision.scenes import Scene

ALONE = """
import fcntl
lock = open(sys.argv[0] + ".lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(sys.argv[0] + ".overlap", "w").close()
for step in range(1, 16):
    time.sleep(0.05)
    report_progress(step)
"""


class KilledAt(FileSystem):
    """The real file system; this process is killed just before its k-th operation."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self._left = k

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return found(*args, **kwargs)

        return counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of one run whose first supervisor was killed.

    Attributes:
        killed: Whether it lived long enough to be killed.
        state: In which the next one left.
        launches: How many there were.
        overlap: Whether two launches ran at once.
        left: Processes of any launch that were left.
        course: The states of both.
    """

    killed: bool
    state: State
    launches: int
    overlap: bool
    left: int
    course: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether all is as it must be."""
        return (
            self.state is State.DONE and not self.overlap and not self.left and self.launches <= 2
        )


def trial(folder: Path, k: int) -> Trial:
    """Kills a supervisor at its k-th file operation, and lets another finish the run."""
    folder.mkdir()
    scene = Scene(folder, ALONE)
    pid = os.fork()
    if pid == 0:
        try:
            scene.supervise(fs=KilledAt(k))
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    ended = scene.supervise()
    left = 0 if scene.is_gone() else len(scene.alive())
    events = read_events(scene.paths.events).events
    return Trial(
        killed=os.WIFSIGNALED(status),
        state=ended.state,
        launches=sum(event["event"] == "launched" for event in events),
        overlap=Path(f"{scene.script}.overlap").exists(),
        left=left,
        course=tuple(event["state"] for event in events if event["event"] == "state"),
    )
