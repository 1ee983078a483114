"""Gathers a whole report, one part after another.

What a part holds is its own module's to say. Invariant: a part that fails costs that part alone,
and the report says which one it was and why.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fleetcraft import __version__
from fleetcraft.clock import LAST_S, now_at
from fleetcraft.errors import FleetError
from fleetcraft.layout import Scratch
from fleetcraft.report.machine_records import Machines
from fleetcraft.report.machines import Look, gather_machines
from fleetcraft.report.records import SPOOLS, Notice, Report, RunRow, Unread
from fleetcraft.report.rooms import Rooms, gather_calibration, gather_queues, gather_runs
from fleetcraft.report.scope import Scope, seconds_of
from fleetcraft.report.task_records import SpoolPart
from fleetcraft.report.tasks import Limits, gather_spool
from fleetcraft.units import counted

_UNREAD = 40

Progress = Callable[[str, int, int], None]
"""Is told what is read, how many are done, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where everything is.

    Attributes:
        root: The scratch tree.
        outer: The outer spool.
        inner: The inner spool.
        telemetry: The folder of telemetry files.
        table: The frozen batch table.
    """

    root: str
    outer: str
    inner: str
    telemetry: str
    table: str


def gather(
    places: Places,
    scope: Scope | None = None,
    *,
    title: str = "",
    limits: Limits | None = None,
    notices: Sequence[Notice] = (),
    progress: Progress | None = None,
) -> Report:
    """Gathers a report.

    Args:
        places: Where everything is; what is not there is left out.
        scope: What it is about; everything if None.
        title: Of the page; made from the root's name if empty.
        limits: How many entries lists have at most.
        notices: What other commands found.
        progress: Is told how far it is.
    """
    gathering = _Gathering(places, scope or Scope(), limits or Limits(), progress)
    gathering.attempt("outer spool", lambda: gathering.spool("outer", places.outer))
    gathering.attempt("inner spool", lambda: gathering.spool("gpu", places.inner))
    gathering.attempt("telemetry", gathering.telemetry)
    gathering.attempt("batch table", gathering.calibration)
    gathering.attempt("training runs", gathering.runs)
    gathering.attempt("trajectory queues", gathering.queues)
    return gathering.report(title, notices)


class _Gathering:
    """One report while it is gathered."""

    def __init__(
        self, places: Places, scope: Scope, limits: Limits, progress: Progress | None
    ) -> None:
        self._places = places
        self._scope = scope
        self._limits = limits
        self._progress = progress
        self._now = now_at()
        self._scratch = Scratch(places.root)
        self._spools: list[SpoolPart] = []
        self._look = Look(why="telemetry could not be read")
        self._rooms = Rooms()
        self._lost: list[str] = []
        self._unread: list[Unread] = []

    def attempt(self, what: str, part: Callable[[], None]) -> None:
        """Gathers one part; what is wrong with it is told and stops no other."""
        try:
            part()
        except FleetError as error:
            self._lose(what, error.message)
        except OSError as error:
            why = error.strerror or type(error).__name__
            self._lose(what, f"{why}: {error.filename or what}")

    def _lose(self, what: str, why: str) -> None:
        self._lost.append(what)
        self._unread.append(Unread(what=what, why=why))

    # -- parts

    def spool(self, spool: str, folder: str) -> None:
        if not os.path.lexists(folder):
            return
        now_s: float | None = self._now.timestamp()
        if self._scope.until_s is not None and self._scope.until_s < self._now.timestamp():
            now_s = None
        found = gather_spool(
            spool,
            folder,
            self._scope,
            now_s=now_s,
            limits=self._limits,
            progress=self._progress,
        )
        if found is not None:
            self._spools.append(found)

    def telemetry(self) -> None:
        places = self._places
        spools = {"outer": places.outer, "inner": places.inner}
        there = {name: folder for name, folder in spools.items() if os.path.isdir(folder)}
        self._look = gather_machines(places.telemetry, there, self._scope, progress=self._progress)

    def calibration(self) -> None:
        self._rooms.calibration = gather_calibration(self._places.table, self._scratch)

    def runs(self) -> None:
        gather_runs(self._scratch, self._rooms)

    def queues(self) -> None:
        gather_queues(self._scratch, self._rooms)

    # -- all of it

    def report(self, title: str, notices: Sequence[Notice]) -> Report:
        places, scope, rooms = self._places, self._scope, self._rooms
        machines = self._look.machines
        unread = list(self._all_unread())
        times = list(_times(self._spools, machines))
        zoned = machines is None or machines.zone == "UTC"
        return Report(
            title=title or f"Fleet report: {os.path.basename(places.root) or places.root}",
            root=places.root,
            made_at=_iso(self._now.timestamp()),
            version=__version__,
            since="" if scope.since_s is None else _iso(scope.since_s),
            until="" if scope.until_s is None else _iso(scope.until_s),
            jobs=tuple(sorted(scope.jobs)),
            sentence=sentence(
                self._spools, machines, lost=self._lost, runs=rooms.runs, of_jobs=bool(scope.jobs)
            ),
            first_at=_iso(min(times), zoned=zoned) if times else "",
            last_at=_iso(max(times), zoned=zoned) if times else "",
            spools=tuple(self._spools),
            machines=machines,
            no_machines="" if machines else self._look.why,
            calibration=rooms.calibration,
            runs=rooms.runs,
            runs_left_out=rooms.runs_left_out,
            queues=rooms.queues,
            queues_left_out=rooms.queues_left_out,
            notices=tuple(notices),
            lost=tuple(self._lost),
            unread=tuple(unread[:_UNREAD]),
            unread_left_out=max(0, len(unread) - _UNREAD),
        )

    def _all_unread(self) -> Iterator[Unread]:
        yield from self._unread
        for part in self._spools:
            what = SPOOLS[part.spool == "gpu"]
            for why, count in part.unread.items():
                yield Unread(what=what, why=f"{counted(count, 'record')}: {why}")
            if part.damaged_lines:
                why = f"{counted(part.damaged_lines, 'damaged line')} in histories"
                yield Unread(what=what, why=why)
        yield from self._look.unread
        yield from self._rooms.unread


def _iso(at_s: float, *, zoned: bool = True) -> str:
    at_s = min(at_s, LAST_S)  # the last microsecond of the calendar becomes a second beyond it
    return datetime.fromtimestamp(at_s, UTC).strftime(f"%Y-%m-%dT%H:%M:%S{'Z' if zoned else ''}")


def _times(spools: Sequence[SpoolPart], machines: Machines | None) -> list[float]:
    ends = [at for part in spools for at in (part.first_s, part.last_s)]
    found = [at for at in ends if at is not None]
    if machines is not None:
        found += [at for at in map(seconds_of, (machines.start, machines.end)) if at is not None]
    return found


def sentence(
    spools: Sequence[SpoolPart],
    machines: Machines | None,
    *,
    lost: Sequence[str] = (),
    runs: Sequence[RunRow] = (),
    of_jobs: bool = False,
) -> str:
    """How things stand, in a few sentences, with no number that was not found."""
    unread = [f"the {what} could not be read" for what in lost if what in SPOOLS]
    said = [_spool_words(part, named=len(spools) + len(unread) > 1) for part in spools]
    none = "No task of these jobs is there" if of_jobs else "No task was ever enqueued"
    words = "; ".join(said + unread) or none
    words = words[:1].upper() + words[1:]
    if runs:
        states = Counter(run.state or "of unknown state" for run in runs)
        told = ", ".join(f"{count} {state}" for state, count in states.most_common())
        words += f". {counted(len(runs), 'training run')}: {told}"
    if machines is None:
        return f"{words}. What GPUs did is not known."
    return f"{words}. When last seen: {machines.sentence.partition(';')[0]}."


def _spool_words(part: SpoolPart, *, named: bool) -> str:
    counts = part.counts
    tasks = counted(part.tasks, "task")
    are = "is" if part.tasks == 1 else "are"
    where = f" of the {'inner' if part.spool == 'gpu' else 'outer'} spool" if named else ""
    left = part.pace.left
    words = f"{counts['done']:,} of {tasks}{where} {are} done"
    if counts["failed"]:
        words += f", {counts['failed']:,} failed"
    return words + (f", {left:,} {'is' if left == 1 else 'are'} left" if left else ", none is left")
