"""A small project that really ran: tasks of a spool, their results, telemetry, a frozen window.

Tests change one thing of it and look at what a trace says then.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fleetcraft import Spool
from fleetcraft.files import FileSystem
from fleetcraft.identity import this_host
from fleetcraft.layout import Scratch
from fleetcraft.telemetry.windows.freeze import freeze
from fleetcraft.telemetry.windows.span import window_at
from fleetcraft.telemetry.windows.summary import summarize
from fleetcraft.worker.local_fleet import run_local
from fleetcraft.worker.settings import WorkerSettings
from tests.telemetry.trees import lines, write_file

ARMS = ("full", "cached")
SEEDS = (1, 2, 3)
SET = "sweep"
_SCRIPT = """
import sys
from fleetcraft.evidence import append

arm = sys.argv[1]
print(f"generating for {arm}")
for seed in (1, 2, 3):
    name = f"clip-{arm}-{seed}.bin"
    with open(name, "w") as file:
        file.write(f"{arm} {seed}\\n" * 100)
    score = seed + (0.5 if arm == "cached" else 0.0)
    append("sweep", arm=arm, seed=seed, metrics={"score": score}, outputs=[name], timed=False,
           stack={"python": "%d.%d.%d" % sys.version_info[:3], "msgspec": "VERSION"})
"""


@dataclass(frozen=True)
class Project:
    """Where everything of it lies."""

    root: Path
    folder: Path
    telemetry: Path
    window: Path

    @property
    def spool(self) -> Path:
        return Path(Scratch(str(self.root)).outer)

    @property
    def results(self) -> list[Path]:
        return sorted((self.root / "evidence/results" / SET).glob("*.jsonl"))

    def figure(self, name: str = "score.svg") -> Path:
        path = self.folder / name
        path.write_text(f"<svg xmlns='http://www.w3.org/2000/svg'><title>{name}</title></svg>\n")
        return path


def make_project(base: Path) -> Project:
    """Runs one task for each arm with a real worker, and freezes the minutes around it."""
    root, folder = base / "scratch", base / "project"
    for one in (root, folder):
        one.mkdir(mode=0o700)
    import msgspec

    script = folder / "gen.py"
    script.write_text(_SCRIPT.replace("VERSION", msgspec.__version__))
    scratch = Scratch(str(root))
    spool = Spool.create(scratch.outer, project_dir=str(folder))
    for arm in ARMS:
        spool.enqueue(f"gen-{arm}", f"{sys.executable} gen.py {arm}")
    run_local(WorkerSettings(spool_dir=spool.root, root=str(root)), 1, lambda event: None)
    assert spool.counts()["done"] == len(ARMS), Path(
        spool.tree.paths.log("gen-full", 1)
    ).read_text()
    telemetry = write_file(
        Path(scratch.telemetry), this_host().host, lines(time.time() - 290, 30, 10.0)
    )
    window = folder / "window.json"
    _freeze(scratch, window)
    return Project(root=root, folder=folder, telemetry=telemetry, window=window)


def _freeze(scratch: Scratch, window: Path) -> None:
    read = summarize(
        scratch.telemetry,
        window_at(600.0, None, time.time() + 5),
        spools={"outer": scratch.outer},
        interval_s=None,
        keep=True,
    )
    assert read.evidence is not None
    freeze(str(window), read.summary, read.evidence, read.folder)


class Flaky(FileSystem):
    """Reports one operation as failed, after doing it or instead."""

    def __init__(self, operation: str, *, done: bool, code: int) -> None:
        super().__init__()
        self._operation, self._done, self._code = operation, done, code

    def replace(self, source: str, destination: str) -> None:
        if self._operation != "replace":
            super().replace(source, destination)
            return
        if self._done:
            super().replace(source, destination)
        raise OSError(self._code, os.strerror(self._code), destination)

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        if self._operation == "create":
            raise OSError(self._code, os.strerror(self._code), path)
        super().create(path, data, mode=mode, durable=durable)
