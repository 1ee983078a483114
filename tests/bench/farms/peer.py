"""What a task farm is to the benchmark: how it is run, whom to kill, and how a person resumes it.

Nothing here starts a process. Invariant: commands are the same text for every peer, run by
``bash -c`` or, for fleetcraft, by the bash that reads its record.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


class Missing(Exception):
    """A peer cannot be had here; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Some command lines, how many at a time, and a folder for what is needed on the way."""

    commands: tuple[str, ...]
    slots: int
    folder: Path

    @property
    def lines(self) -> Path:
        """The commands, one a line."""
        return self.folder / "commands"

    @property
    def order(self) -> Path:
        """The same as JSON, for drivers."""
        return self.folder / "order.json"

    @property
    def times(self) -> Path:
        """What a driver measured of its own phases, as JSON."""
        return self.folder / "times.json"

    def write(self) -> None:
        """Writes the commands down, before the clock starts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lines.write_text("".join(f"{command}\n" for command in self.commands))
        order = {
            "commands": self.commands,
            "slots": self.slots,
            "folder": str(self.folder),
            "times": str(self.times),
        }
        self.order.write_text(json.dumps(order))


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Where peers were installed; ``python`` has the packages of those that are libraries."""

    folder: Path
    python: Path | None = None


Pick = Callable[[Sequence[psutil.Process]], psutil.Process | None]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One way to run the work.

    Attributes:
        name: In the tables.
        version: Of the program.
        keeps: What is left of a task that has ended.
        run: The command line that does the work; what it needs has been written before.
        before: Fills its queue before the clock starts; nothing for those without a queue.
        enqueue: The command line that fills the queue, where that is a step of its own.
        resume: The command line after the head of a run was killed; None: there is no way.
        by_hand: What a person does then.
        head: Who is killed as server, driver or coordinator; None: the process that was started.
        worker: Who is killed as worker; None: it has no worker apart from its head.
        no_worker: Why not.
        most: Tasks of ``true`` that it is given at most, so that the page is done in time.
        note: What to know of its numbers.
        waits: A command line that waits with an empty queue, gets one task now and then, and
            writes how late each started; None: it cannot wait for work.
    """

    name: str
    version: str
    keeps: str
    run: Callable[[Work], list[str]]
    before: Callable[[Work], None] = lambda work: None
    enqueue: Callable[[Work], list[str]] | None = None
    resume: Callable[[Work], list[str]] | None = None
    by_hand: str = "start all of it again"
    head: Pick | None = None
    worker: Pick | None = None
    no_worker: str = "no worker apart from it"
    most: int = 1_000_000
    note: str = ""
    waits: Callable[[Work], list[str]] | None = None
    own_times: bool = False


def named(*words: str) -> Pick:
    """Picks the process whose command line has all these words; the first of several."""

    def pick(processes: Sequence[psutil.Process]) -> psutil.Process | None:
        for process in processes:
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if all(word in line for word in words):
                return process
        return None

    return pick


def called(name: str) -> Pick:
    """Picks the first process that goes by this name, whatever its command line."""

    def pick(processes: Sequence[psutil.Process]) -> psutil.Process | None:
        for process in processes:
            try:
                if process.name() == name:
                    return process
            except psutil.Error:
                continue
        return None

    return pick


def driver(tools: Tools, name: str) -> list[str]:
    """The command line of a driver of this folder, in the Python that has the peers.

    Raises:
        Missing: There is no such Python.
    """
    if tools.python is None:
        raise Missing("no Python with it")
    # As in an activated environment: some start programs of their own by name.
    path = f"PATH={tools.python.parent}:{os.environ.get('PATH', '')}"
    return ["env", path, str(tools.python), str(Path(__file__).with_name(name))]


def shell(*steps: Sequence[str]) -> list[str]:
    """Several command lines as one, each after the one before has succeeded."""
    return ["bash", "-c", " && ".join(shlex.join(step) for step in steps)]


def own_environment() -> dict[str, str]:
    """The environment of every peer: this one, without what would steer fleetcraft or Slurm."""
    from tests.bench.measure import clean_environment

    return clean_environment() | {"OMP_NUM_THREADS": "1"}
