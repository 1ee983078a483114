"""Reading telemetry: `inspect` over many rows, and `summary` of a window, as whole commands.

Beside: the start of numpy and a plain count of the lines of the same bytes. Invariant: what is
compared reads the same files, once they have been read before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fleetcraft.telemetry.columns import COLUMNS
from tests.bench import traces
from tests.bench.logger_costs import DRIVE_TELEMETRY
from tests.bench.measure import (
    Bench,
    BenchError,
    Cost,
    Row,
    Section,
    cli_prefix,
    cost_rows,
    interleaved,
    median,
    spread,
    timed,
)

INSPECT_GOAL_S = 3.0
GPUS = 8
GOAL_ROWS = 180_000
_SAMPLES = 900  # of a file: seven and a half hours
_HOSTS = (6, 25, 100)  # times 8 GPUs and 900 samples: 43,200, 180,000 and 720,000 rows
_MANY_ROWS = 10_000_000
_WINDOW_HOSTS = 100
_SAMPLES_AN_HOUR = 120


def fleet(*words: str) -> list[str]:
    """A command line of fleetcraft."""
    return [*cli_prefix(), *words]


def floor(place: Path) -> Cost:
    """Numpy, and the lines counted."""
    return timed([sys.executable, DRIVE_TELEMETRY, "lines", str(place)])


def _inspect(place: Path, rows: int, output: Path) -> Cost:
    cost = timed(fleet("telemetry", "inspect", str(place), "--json"), output=output)
    found = json.loads(output.read_bytes())["rows"]
    if found != rows:
        raise BenchError(f"expected {rows} rows in {place}, inspect found {found}")
    return cost


# -------------------------------------------------------------------------------------- inspect


def measure_inspect(bench: Bench) -> Section:
    """Many rows, and very many."""
    section = Section(
        name="inspect",
        title="what is in the files",
        how="`fleetcraft telemetry inspect DIR --json`, from its start to its end, on files of "
        f"{GPUS} GPUs with {_SAMPLES} samples each. Beside: `python` with numpy that counts the "
        "lines of the same bytes.",
    )
    output = bench.new_folder("out") / "inspect.json"
    cpu_s: dict[int, float] = {}
    for hosts in _HOSTS[: bench.pick(3, 2)]:
        rows = hosts * GPUS * _SAMPLES
        bench.say(f"  {rows:,} rows")
        folder = bench.new_folder(f"rows-{rows}")
        traces.write_loggers(folder, hosts=hosts, gpus=GPUS, samples=_SAMPLES)
        cpu_s[rows] = _compare(bench, section, folder, rows, output)
    _archive(bench, section, output)
    if not bench.quick:
        section.rows += _many(bench, output)
    few, many = min(cpu_s), max(cpu_s)
    each_us = (cpu_s[many] - cpu_s[few]) / (many - few) * 1e6
    section.growth = (
        f"linear in the rows: {each_us:.2f} us of CPU a row of {len(COLUMNS)} columns, "
        f"beyond a start of {cpu_s[few] - few * each_us / 1e6:.2f} s. Memory is bounded: files in "
        "the order of time are summed up as they are read, others are read again in pieces."
    )
    return section


def _compare(bench: Bench, section: Section, folder: Path, rows: int, output: Path) -> float:
    """Rows of the table; the CPU seconds of inspect."""
    is_goal = rows == GOAL_ROWS

    def inspect() -> Cost:
        return _inspect(folder, rows, output)

    def frames() -> Cost:
        return timed([sys.executable, DRIVE_TELEMETRY, "frames", str(folder)])

    runs: list[Callable[[], Cost]] = [lambda: floor(folder), inspect]
    runs += [frames] if is_goal else []
    for run in runs:
        run()
    bare, ours, *others = interleaved(bench.pick(7, 3), *runs)
    name = f"{rows:,} rows of {folder_size(folder)}"
    goal_s = INSPECT_GOAL_S if is_goal else None
    section.rows += cost_rows(name, ours, bare, goal_s=goal_s)
    section.rows.append(_peak(name, ours, bare))
    for other in others:
        section.rows += cost_rows(
            "the same through `pandas.read_csv`, five columns, nothing checked", other, bare
        )
    return median([cost.cpu_s for cost in ours])


def folder_size(folder: Path) -> str:
    """For the table."""
    return f"{traces.size_mib(folder):.0f} MiB"


def _peak(name: str, ours: list[Cost], bare: list[Cost]) -> Row:
    return Row(
        what=f"{name}, peak resident size",
        measured=spread([cost.peak_mib for cost in ours], "MiB", 0),
        beside=spread([cost.peak_mib for cost in bare], "MiB", 0),
    )


def _archive(bench: Bench, section: Section, output: Path) -> None:
    place = traces.SHARED_HOSTS
    if not place.is_dir():
        section.skipped.append("archived traces: they are not beside this checkout")
        return
    rows = json.loads((place.parent / "expected.json").read_bytes())["rows"]
    bench.say(f"  {rows:,} archived rows")
    runs: list[Callable[[], Cost]] = [
        lambda: floor(place), lambda: _inspect(place, rows, output)
    ]  # fmt: skip
    bare, ours = interleaved(bench.pick(7, 3), *runs)
    hosts = len(list(place.glob("*.csv")))
    name = f"{hosts} archived hosts, {rows:,} rows of {folder_size(place)}"
    section.rows += cost_rows(name, ours, bare, goal_s=INSPECT_GOAL_S)


def _many(bench: Bench, output: Path) -> list[Row]:
    """Ten million rows in one file, in order and not."""
    rows = []
    for name, back_at in (("in order", None), ("with one step back", _MANY_ROWS // 2)):
        bench.say(f"  {_MANY_ROWS:,} rows {name}")
        folder = bench.new_folder("many")
        traces.write_archive(folder / "host.csv", _MANY_ROWS, back_at=back_at)
        bare, ours = interleaved(
            2, partial(floor, folder), partial(_inspect, folder, _MANY_ROWS, output)
        )
        what = f"{_MANY_ROWS:,} rows of one archived GPU, {folder_size(folder)}, {name}"
        rows += [*cost_rows(what, ours, bare, digits=1), _peak(what, ours, bare)]
        (folder / "host.csv").unlink()
    return rows


# -------------------------------------------------------------------------------------- summary


def measure_summary(bench: Bench) -> Section:
    """Five minutes at the end of six hours."""
    section = Section(
        name="summary",
        title="a window in figures",
        how="`fleetcraft telemetry summary DIR --window 300 --end TIME --json`, from its start to "
        f"its end, over files of {GPUS} GPUs each; TIME is the last sample. Beside: `python` "
        "with numpy that counts the lines of the same bytes.",
    )
    cpu_s = {}
    sizes = [(25, 6), (_WINDOW_HOSTS, 6)] + ([] if bench.quick else [(_WINDOW_HOSTS, 24)])
    for hosts, hours in sizes:
        bench.say(f"  {hosts} hosts, {hours} hours")
        cpu_s[hosts, hours] = _window(bench, section, hosts, hours)
    hours = sizes[-1][1]
    section.growth = (
        f"{cpu_s[25, 6]:.2f} s of CPU for 25 hosts and 6 hours, {cpu_s[100, 6]:.2f} s for 100"
        + (f", {cpu_s[100, hours]:.2f} s for 100 and {hours} hours" if hours != 6 else "")
        + ": "
        + _words(cpu_s)
    )
    return section


def _words(cpu_s: Mapping[tuple[int, int], float]) -> str:
    longer = cpu_s.get((100, 24))
    if longer is None:
        return "it grows with the hosts."
    if longer > 2 * cpu_s[100, 6]:
        return "linear in hosts and hours, since every row of a file is read."
    return "linear in the hosts; of longer files little more is read."


def _window(bench: Bench, section: Section, hosts: int, hours: int) -> float:
    folder = bench.new_folder(f"hours-{hours}")
    samples = hours * _SAMPLES_AN_HOUR
    end = traces.write_loggers(folder, hosts=hosts, gpus=GPUS, samples=samples)
    output = bench.new_folder("out") / "summary.json"
    words = ["--window", "300", "--end", traces.our_time(end), "--json"]

    def summary() -> Cost:
        cost = timed(fleet("telemetry", "summary", str(folder), *words), output=output)
        _require_all(json.loads(output.read_bytes()), hosts * GPUS)
        return cost

    summary()
    bare, ours = interleaved(bench.pick(5, 2), lambda: floor(folder), summary)
    name = f"{hosts} hosts of {GPUS} GPUs, {hours} hours, {folder_size(folder)}"
    section.rows += [*cost_rows(name, ours, bare), _peak(name, ours, bare)]
    return median([cost.cpu_s for cost in ours])


def _require_all(found: Any, gpus: int) -> None:
    reporting = found["fleet"]["gpus_reporting"]
    if reporting != gpus:
        raise BenchError(f"expected {gpus} GPUs in the summary, found {reporting}")
