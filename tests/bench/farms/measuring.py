"""Measuring one farm: speed, start, how late a late task starts, and what a kill costs.

Invariant: each command runs in a cage that counts the CPU time of everything it started and ends
what it left; whoever is killed here is a descendant of that cage, found by its id.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.farms.ours import from_nothing
from tests.bench.farms.peer import Peer, Work, own_environment

_CAGE = str(Path(__file__).with_name("cage.py"))
LIMIT_S = 120.0
STAMP = 'echo "$EPOCHREALTIME" >> stamps'


class FarmError(Exception):
    """A peer did not do the work; the rest of the page goes on."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One caged command: when it began (wall clock), wall and CPU seconds, exit code."""

    began_at: float
    wall_s: float
    cpu_s: float
    code: int | None
    times: dict[str, float]


class Cage:
    """A command that runs in its cage.

    Args:
        argv: The command line.
        work: What it does; its folder takes the cage's report.
        limit_s: It is ended after so long.
    """

    def __init__(self, argv: Sequence[str], work: Work, limit_s: float = LIMIT_S) -> None:
        self._work = work
        self._result = work.folder / "caged.json"
        self._result.unlink(missing_ok=True)
        self._said = work.folder / "said"
        with open(self._said, "ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, _CAGE, str(self._result), str(limit_s), *argv],
                cwd=work.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                env=own_environment(),
            )  # fmt: skip
        self._limit_s = limit_s + 30

    def inside(self) -> list[psutil.Process]:
        """Everything that runs in it."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def end(self) -> Run:
        """Waits for its end.

        Raises:
            FarmError: The cage itself failed.
        """
        try:
            self.process.wait(self._limit_s)
            found = json.loads(self._result.read_text())
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            self.process.kill()
            self.process.wait()
            raise FarmError(f"it could not be measured: {error}") from error
        try:
            times = json.loads(self._work.times.read_text())
        except (OSError, ValueError):
            times = {}
        found.pop("left_behind")
        return Run(times=times, **found)

    def said(self) -> str:
        """The end of what it printed."""
        return self._said.read_text(errors="replace")[-400:].strip()


def once(peer: Peer, work: Work) -> Run:
    """The whole work, once.

    Raises:
        FarmError: It ended with a failure, or ran too long.
    """
    work.write()
    peer.before(work)
    return caged(peer.run(work), work)


def caged(argv: Sequence[str], work: Work, limit_s: float = LIMIT_S) -> Run:
    """One command that must succeed.

    Raises:
        FarmError: It did not.
    """
    cage = Cage(argv, work, limit_s)
    run = cage.end()
    if run.code is None:
        raise FarmError(f"it was ended after {limit_s:.0f} s")
    if run.code != 0:
        raise FarmError(f"it ended with {run.code}: {cage.said()[-200:]!r}")
    return run


def enqueue_s(peer: Peer, work: Work) -> float | None:
    """Seconds of a separate command that fills the queue; None where there is none."""
    if peer.enqueue is None:
        return None
    work.write()
    return caged(peer.enqueue(work), work).wall_s


def start(peer: Peer, folder: Path) -> tuple[float, float]:
    """Seconds from nothing to the first task's start, and to the end of all.

    Raises:
        FarmError: No task ran.
    """
    work = Work(commands=(STAMP,), slots=1, folder=folder)
    work.write()
    argv = from_nothing(work) if peer.name == "fleetcraft" else peer.run(work)
    run = caged(argv, work)
    return _stamps(folder)[0] - run.began_at, run.wall_s


def lateness(peer: Peer, folder: Path, *, tasks: int, pause_s: float) -> list[float]:
    """Seconds from asking a farm that waits with an empty queue to the start of the task.

    Raises:
        FarmError: A task did not run.
    """
    assert peer.waits is not None
    work = Work(commands=(STAMP,) * tasks, slots=1, folder=folder)
    work.write()
    order = json.loads(work.order.read_text()) | {"pause_s": pause_s}
    work.order.write_text(json.dumps(order))
    peer.before(Work(commands=(), slots=1, folder=folder))
    caged(peer.waits(work), work)
    asked = [float(line) for line in (folder / "asked").read_text().split()]
    return [stamp - moment for moment, stamp in zip(asked, _stamps(folder), strict=True)]


def _stamps(folder: Path) -> list[float]:
    try:
        return [float(line) for line in (folder / "stamps").read_text().split()]
    except OSError as error:
        raise FarmError("no task has run") from error


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What became of the tasks after a kill.

    Attributes:
        undone: Tasks that the run itself left undone; a person had to act for these.
        lost: Tasks that were never done, not even after that.
        twice: Tasks that were started more than once.
        done_s: From the kill to the end of the last task, a person's command at once included.
        resumed: Whether a person had to.
    """

    undone: int
    lost: int
    twice: int
    done_s: float
    resumed: bool


def recovery(
    peer: Peer, folder: Path, *, who: str, tasks: int, slots: int, sleep_s: float
) -> Recovery:
    """Kills a worker or the head when a third of the tasks are done, and sees what happens.

    Raises:
        FarmError: There was nobody to kill, or it did not end.
    """
    work = Work(commands=noting(tasks, sleep_s), slots=slots, folder=folder)
    work.write()
    peer.before(work)
    cage = Cage(peer.run(work), work)
    _await(lambda: len(ended(folder)) >= tasks // 3, cage)
    pick = peer.worker if who == "worker" else peer.head
    inside = cage.inside()
    victim = pick(inside) if pick else (inside[0] if inside else None)
    if victim is None:
        cage.process.kill()
        raise FarmError(f"no {who} was found among its processes")
    killed_at = time.time()
    victim.kill()
    run = cage.end()
    undone = tasks - len(ended(folder))
    # The cage goes on for a moment after a death; a run that was all done ended when it did.
    done_at = max((at for _, at in ended(folder).values()), default=killed_at)
    if undone and peer.resume is not None:
        again = caged(peer.resume(work), work)
        # As if it had been started again at once: the cage's own moments are left out.
        gone_at = max(killed_at, run.began_at + run.wall_s)
        done_at = gone_at + again.wall_s
    starts = Counter(number for number, _ in notes(folder, "start"))
    return Recovery(
        undone=undone,
        lost=tasks - len(ended(folder)),
        twice=sum(count > 1 for count in starts.values()),
        done_s=done_at - killed_at,
        resumed=bool(undone),
    )


def noting(tasks: int, sleep_s: float) -> tuple[str, ...]:
    """Tasks that note their start and end in files of their own, with the time."""
    return tuple(
        f'echo "{n} $EPOCHREALTIME" >> start; sleep {sleep_s}; echo "{n} $EPOCHREALTIME" >> end'
        for n in range(tasks)
    )


def notes(folder: Path, kind: str) -> list[tuple[int, float]]:
    """What tasks have noted."""
    try:
        lines = (folder / kind).read_text().splitlines()
    except OSError:
        return []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines if " " in line]


def ended(folder: Path) -> dict[int, tuple[int, float]]:
    """Tasks that have ended, with the first time of each."""
    found: dict[int, tuple[int, float]] = {}
    for number, at in notes(folder, "end"):
        found.setdefault(number, (number, at))
    return found


def _await(look: Callable[[], bool], cage: Cage) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not look():
        if cage.process.poll() is not None:
            raise FarmError(f"it ended before the kill: {cage.said()[-200:]!r}")
        if time.monotonic() > deadline:
            cage.process.kill()
            raise FarmError("too few tasks ended in time")
        time.sleep(0.02)


def cores() -> int:
    """Cores that may be used."""
    return len(os.sched_getaffinity(0))
