"""Drawing: `telemetry plot` of many hosts over days, as a whole command.

Beside: the start of what it draws with, and a plain count of the lines of the same bytes.
Invariant: every measured run draws the same figures anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench import traces
from tests.bench.logger_costs import DRIVE_TELEMETRY
from tests.bench.measure import (
    Bench,
    BenchError,
    Cost,
    Section,
    cost_rows,
    interleaved,
    median,
    timed,
)
from tests.bench.reading_costs import fleet, folder_size

GOAL_S = 10.0
_HOSTS = 75
_DAYS = 3
_SAMPLES_A_DAY = 2880


def measure(bench: Bench) -> Section:
    """75 hosts over one and three days, and fewer."""
    section = Section(
        name="plot",
        title="figures of a fleet",
        how="`fleetcraft telemetry plot DIR --out OUT --json`, from its start to its end: one PNG "
        "and one SVG. Hosts of one GPU, a sample every 30 s. Beside: `python` that imports "
        "matplotlib's figure and Agg, and numpy, and counts the lines of the same bytes.",
    )
    cpu_s = {}
    for hosts, days in ((25, _DAYS), (_HOSTS, 1), (_HOSTS, _DAYS)):
        bench.say(f"  {hosts} hosts, {days} days")
        folder = bench.new_folder(f"days-{days}")
        traces.write_loggers(folder, hosts=hosts, gpus=1, samples=days * _SAMPLES_A_DAY)
        rows = hosts * days * _SAMPLES_A_DAY
        name = f"{hosts} hosts, {days} day{'s' if days > 1 else ''}: {rows:,} rows of "
        goal_s = GOAL_S if (hosts, days) == (_HOSTS, _DAYS) else None
        cost = _draw(bench, section, folder, name + folder_size(folder), goal_s)
        cpu_s[hosts, days] = cost
    if traces.SHARED_HOSTS.is_dir():
        bench.say("  archived hosts")
        hosts = len(list(traces.SHARED_HOSTS.glob("*.csv")))
        _draw(bench, section, traces.SHARED_HOSTS, f"{hosts} archived hosts", GOAL_S)
    else:
        section.skipped.append("archived traces: they are not beside this checkout")
    more = (cpu_s[_HOSTS, _DAYS] - cpu_s[_HOSTS, 1]) / (_DAYS - 1)
    section.growth = (
        f"of {_HOSTS} hosts each further day takes {more:.2f} s of CPU, which is "
        f"{more / (_HOSTS * _SAMPLES_A_DAY) * 1e6:.1f} us a row; {_DAYS} days of 25 hosts take "
        f"{cpu_s[25, _DAYS]:.2f} s, of {_HOSTS} {cpu_s[_HOSTS, _DAYS]:.2f} s."
    )
    return section


def _draw(bench: Bench, section: Section, place: Path, name: str, goal_s: float | None) -> float:
    out = bench.new_folder("figures")
    answer = out / "answer.json"
    words = ["telemetry", "plot", str(place), "--out", str(out), "--json"]

    def plot() -> Cost:
        for path in out.glob("fleet.*"):
            path.unlink()
        cost = timed(fleet(*words), output=answer)
        if (
            len(json.loads(answer.read_bytes())["files"]) != 2
            or len(list(out.glob("fleet.*"))) != 2
        ):
            raise BenchError(f"{' '.join(words)} wrote no two figures")
        return cost

    runs: list[Callable[[], Cost]] = [
        lambda: timed([sys.executable, DRIVE_TELEMETRY, "canvas", str(place)]),
        plot,
    ]
    for run in runs:
        run()
    bare, ours = interleaved(bench.pick(5, 2), *runs)
    section.rows += cost_rows(name, ours, bare, goal_s=goal_s)
    return median([cost.cpu_s for cost in ours])
