"""Draining: tasks of ``true`` with two local workers, beside the bare start of as many shells.

The spool is filled before the clock starts. Invariant: the workers' start and the fleet's own CPU
are inside the measurement.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench.floor import Floor
from tests.bench.measure import (
    Bench,
    Cost,
    Row,
    Section,
    interleaved,
    median,
    ratios,
    spread,
    timed,
)
from tests.bench.spools import FleetCommand, filled_spool, require_done

WORKERS = 2
COUNTS = (2000, 8000)
GOAL = 1.3


def measure(bench: Bench) -> Section:
    """2,000 and 8,000 tasks."""
    floor = Floor(bench.new_folder("floor"))
    fleet = FleetCommand()
    section = Section(
        name="drain",
        title=f"tasks of `true`, {WORKERS} at a time",
        how=f"Measured: {fleet.name} with {WORKERS} workers on a filled spool, from its start to "
        f"its end. Beside: {floor.name} of `bash -c true`, {WORKERS} at a time.",
    )
    timed(fleet.argv(filled_spool(bench, 10), WORKERS))  # its bytecode is in the cache now
    per_task_ms = {}
    for count in COUNTS:
        bench.say(f"  {count} tasks")
        per_task_ms[count] = _measure(bench, section, floor, fleet, count)
    few, many = COUNTS
    section.growth = (
        f"linear in the number of tasks: {per_task_ms[few]:.2f} ms of CPU a task at {few:,}, "
        f"{per_task_ms[many]:.2f} ms at {many:,}; the start of the workers is in it, "
        f"once a run."
    )
    return section


def _measure(
    bench: Bench, section: Section, floor: Floor, fleet: FleetCommand, count: int
) -> float:
    spools: list[Path] = []
    runs = bench.pick(5, 2)

    def spawn() -> Cost:
        return timed(floor.argv(count, WORKERS, "true"))

    def drain() -> Cost:
        spools.append(filled_spool(bench, count))
        cost = timed(fleet.argv(spools[-1], WORKERS))
        require_done(spools[-1], count)
        return cost

    bare, ours = interleaved(runs, spawn, drain)
    for kind in ("wall", "cpu"):
        mine = [getattr(cost, f"{kind}_s") for cost in ours]
        theirs = [getattr(cost, f"{kind}_s") for cost in bare]
        times = ratios(mine, theirs)
        goal = f"<= {GOAL}" if count == max(COUNTS) else ""
        section.rows.append(
            Row(
                what=f"{count:,} tasks, {'CPU' if kind == 'cpu' else kind}",
                measured=spread(mine, "s"),
                beside=spread(theirs, "s"),
                ratio=spread(times),
                goal=goal,
                met=median(times) <= GOAL if goal else None,
                samples={"measured_s": mine, "floor_s": theirs},
            )
        )
    return median([cost.cpu_s for cost in ours]) / count * 1000
