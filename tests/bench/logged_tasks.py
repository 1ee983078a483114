"""Tasks with and without telemetry: the same drain with the logger on and off.

On the driver rig with eight GPUs, so that the logger has something to log. Invariant: the CPU of
the logger counts, though it is nobody's child.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.logger_costs import DRIVE_TELEMETRY, GPUS, busy_gpus, rig_environment
from tests.bench.measure import (
    Bench,
    BenchError,
    Cost,
    Section,
    cost_rows,
    interleaved,
    timed,
)
from tests.bench.spools import FleetCommand, filled_spool, require_done
from tests.rig import NoCompiler, Rig

WORKERS = 2
_INTERVALS_S = {"every 30 s": 30, "every second": 1}


def measure(bench: Bench) -> Section:
    """One drain, three ways."""
    count = bench.pick(3000, 1500)
    section = Section(
        name="tasks",
        title="what telemetry costs the work",
        how=f"`fleetcraft run` of {count:,} tasks of `true` with {WORKERS} workers on a filled "
        f"spool, with its logger on the rig's {GPUS} GPUs, from its start to its end. Beside: the "
        "same with `telemetry.interval_s` 0, which starts no logger. The CPU is that of all "
        "processes, the logger and its keeper too.",
    )
    try:
        with Rig(bench.new_folder("rig"), settings=busy_gpus(GPUS)) as rig:
            _measure(bench, section, rig, count)
    except NoCompiler as error:
        section.skipped.append(str(error))
    section.growth = (
        "none with the tasks: a logger starts once a node, and then costs what stands under "
        "logger; the start is what shows here."
    )
    return section


def _measure(bench: Bench, section: Section, rig: Rig, count: int) -> None:
    fleet = FleetCommand()

    def drain(interval_s: int) -> Cost:
        spool = filled_spool(bench, count)
        env = rig_environment(rig) | {"FLEET_TELEMETRY_INTERVAL_S": str(interval_s)}
        words = [sys.executable, DRIVE_TELEMETRY, "adopt", *fleet.argv(spool, WORKERS)]
        cost = timed(words, env=env)
        require_done(spool, count)
        _require_log(spool.parent / "telemetry", wanted=interval_s > 0)
        return cost

    drain(1)
    without, *others = interleaved(
        bench.pick(5, 3),
        lambda: drain(0),
        *(lambda s=interval_s: drain(s) for interval_s in _INTERVALS_S.values()),
    )
    for name, ours in zip(_INTERVALS_S, others, strict=True):
        section.rows += cost_rows(f"a sample {name}", ours, without)


def _require_log(folder: Path, *, wanted: bool) -> None:
    files = len(list(folder.glob("*.csv"))) if folder.is_dir() else 0
    if files != int(wanted):
        raise BenchError(f"expected {int(wanted)} telemetry files in {folder}, found {files}")
