"""Measuring: a child's wall and CPU time, medians of interleaved repetitions, and the table's rows.

Nothing here knows what is measured. Invariant: a ratio is taken within one repetition, between two
things that ran next to each other, and only then is the median taken.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
DRIVE = str(REPO / "tests" / "bench" / "drive.py")


class BenchError(Exception):
    """A measured command failed; the run goes on with the next section."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall seconds, and CPU seconds (user and system) of a child and all that it waited for.

    ``peak_mib`` is the largest resident size of any one of them, and never less than that of the
    benchmark's own process, which each of them was for a moment.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float


@dataclass(kw_only=True)
class Row:
    """One line of a table; texts ready to print, and the samples behind them."""

    what: str
    measured: str
    beside: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None
    samples: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Section:
    """One table: what was compared with what, its rows, what was skipped, how the cost grows."""

    name: str
    title: str
    how: str
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    growth: str = ""


@dataclass(kw_only=True)
class Bench:
    """What one run of the benchmarks works with."""

    folder: Path
    quick: bool
    say: Callable[[str], None]
    _made: int = 0

    def pick(self, full: int, quick: int) -> int:
        """The size or count for this run."""
        return quick if self.quick else full

    def new_folder(self, name: str) -> Path:
        """A folder nobody has used; all are removed together at the very end.

        Not earlier: after many deletions ext4 with ``discard`` is slow at making files for a while.
        """
        self._made += 1
        path = self.folder / f"{self._made:03d}-{name}"
        path.mkdir(mode=0o700)
        return path


_SETTINGS = {
    "PROJECT", "PROJECT_SCRATCH", "SPOOL_DIR", "GPU_SPOOL_DIR", "TELEMETRY_DIR", "MAX_IDLE_MIN",
    # With the first of these every start would compile the package again, as no installed one does.
    "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONDEVMODE", "PYTHONPROFILEIMPORTTIME",
}  # fmt: skip


_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def clean_environment() -> dict[str, str]:
    """This environment without what would steer fleetcraft or slow Python down."""
    return {
        key: value
        for key, value in os.environ.items()
        if key not in _SETTINGS and not key.startswith(("FLEET_", "SLURM_", "_FLEETCRAFT"))
    }


def keep_bytecode_in(folder: Path) -> None:
    """Lets every measured Python keep its bytecode here, as an installed package does in its place.

    The environment may forbid it and the repository may be read-only.
    """
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)
    timed([sys.executable, "-m", "compileall", "-q", "fleetcraft"])


def timed(
    argv: Sequence[str],
    *,
    output: Path | None = None,
    accept: Sequence[int] = (0,),
    env: Mapping[str, str] | None = None,
) -> Cost:
    """Runs a command in the repository's folder and waits for it.

    Args:
        argv: The command line.
        output: Where its stdout goes; stderr is kept for the message of a failure.
        accept: Exit codes that are no failure.
        env: Its environment; by default `clean_environment`.

    Raises:
        BenchError: It ended otherwise.
    """
    errors = os.memfd_create("stderr")
    actions: list[tuple[object, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output or os.devnull), _WRITE, 0o600),
        (os.POSIX_SPAWN_DUP2, errors, 2),
    ]
    program = shutil.which(argv[0]) or argv[0]
    given = clean_environment() if env is None else env
    os.chdir(REPO)
    try:
        started = time.perf_counter()
        pid = os.posix_spawn(program, list(argv), given, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.perf_counter() - started
        code = os.waitstatus_to_exitcode(status)
        if code not in accept:
            said = os.pread(errors, 1 << 16, 0).decode("utf-8", "replace").strip()
            raise BenchError(f"{' '.join(argv)[:200]} ended with {code}: {said[-500:]}")
    finally:
        os.close(errors)
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def process_cpu_s(pid: int) -> float:
    """CPU seconds of all threads that a process has now, in the scheduler's nanoseconds.

    Raises:
        OSError: It has ended.
    """
    return sum(
        int((thread / "schedstat").read_text().split()[0]) / 1e9
        for thread in Path(f"/proc/{pid}/task").iterdir()
    )


def interleaved(runs: int, *things: Callable[[], Any]) -> list[list[Any]]:
    """Runs things side by side, every other time in reverse order; one list of results a thing.

    The disk is made quiet before each, outside of the measurement.
    """
    results: list[list[Any]] = [[] for _ in things]
    for turn in range(runs):
        order = range(len(things)) if turn % 2 == 0 else reversed(range(len(things)))
        for index in order:
            os.sync()
            results[index].append(things[index]())
    return results


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratios within each repetition."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def spread(values: Sequence[float], unit: str = "", digits: int = 2, scale: float = 1.0) -> str:
    """``median (min-max) unit``."""
    low, mid, high = (scale * f(values) for f in (min, statistics.median, max))
    text = f"{mid:.{digits}f}"
    if len(values) > 1:
        text += f" ({low:.{digits}f}-{high:.{digits}f})"
    return f"{text} {unit}".strip()


def cost_rows(
    what: str,
    ours: Sequence[Cost],
    floor: Sequence[Cost] = (),
    *,
    goal_s: float | None = None,
    digits: int = 2,
) -> list[Row]:
    """A row of wall time and one of CPU for commands that ran side by side with their floor.

    Args:
        what: That was measured.
        ours: One cost a repetition.
        floor: As many; or nothing.
        goal_s: For both.
        digits: Of the seconds.
    """
    rows = []
    for kind, name in (("wall_s", "wall"), ("cpu_s", "CPU")):
        mine = [getattr(cost, kind) for cost in ours]
        theirs = [getattr(cost, kind) for cost in floor]
        rows.append(
            Row(
                what=f"{what}, {name}",
                measured=spread(mine, "s", digits),
                beside=spread(theirs, "s", digits) if theirs else "",
                ratio=spread(ratios(mine, theirs)) if theirs else "",
                goal="" if goal_s is None else f"< {goal_s:g} s",
                met=None if goal_s is None else median(mine) < goal_s,
                samples={"measured_s": mine, "floor_s": theirs},
            )
        )
    return rows


def cli_prefix() -> list[str]:
    """How a person would start fleetcraft from this interpreter's environment."""
    script = Path(sys.executable).with_name("fleetcraft")
    return [str(script)] if script.exists() else [sys.executable, "-m", "fleetcraft"]


def cli_has(verb: str) -> bool:
    """Whether the command line knows this verb and can load it."""
    try:
        timed([*cli_prefix(), verb, "--help"])
    except BenchError:
        return False
    return True
