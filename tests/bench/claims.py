"""Claiming: what a task costs with 1,000 to 100,000 pending, and eight workers on a deep queue.

Invariant: every depth drains the same number of tasks, in repetitions that alternate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetcraft import Spool
from tests.bench.floor import Floor
from tests.bench.measure import (
    DRIVE,
    REPO,
    Bench,
    BenchError,
    Row,
    Section,
    clean_environment,
    interleaved,
    median,
    ratios,
    spread,
    timed,
)
from tests.bench.spools import FleetCommand, fill, filled_spool, journals

TASKS = 500
DEPTHS = (1_000, 10_000, 100_000)
DEPTH_GOAL = 1.2
WORKERS = 8
DEEP = 20_000
TASK_S = 0.2
EFFICIENCY_GOAL = 0.95
Marks = list[dict[str, float]]


def measure(bench: Bench) -> Section:
    """Depth, then width."""
    section = Section(
        name="claims",
        title="the depth of the queue, and many workers",
        how=f"One worker drains the first {TASKS} tasks of `true` of a spool with so many pending; "
        f"beside: the same with {DEPTHS[0]:,}. The first listing comes once a stride, so it is "
        f"shown apart. {WORKERS} workers: period between starts of one worker against the "
        f"{TASK_S} s that a task sleeps.",
    )
    names_us = _depth(bench, section)
    _width(bench, section)
    section.growth = (
        "a claim by itself does nothing that depends on the depth (ratios above); a listing grows "
        "with the number pending (about "
        f"{names_us:.2f} us a name), is made once a stride by each worker and otherwise takes at "
        "most a fiftieth of its time. The names listed are kept: see the peak sizes."
    )
    return section


def _depth(bench: Bench, section: Section) -> float:
    depths = DEPTHS if not bench.quick else (*DEPTHS[:2], 50_000)
    spools = {depth: filled_spool(bench, depth) for depth in depths}
    made = dict.fromkeys(depths, 0)

    def drainer(depth: int) -> Callable[[], Marks]:
        def drain() -> Marks:
            # Every depth keeps its one spool and is filled up again before the clock starts: a
            # fresh one would lie elsewhere on the disk, which alone changes what files cost.
            first = depth + made[depth]
            made[depth] += TASKS + 1
            fill(spools[depth], range(first, first + TASKS + 1))
            os.sync()
            return worker_marks(bench, spools[depth], [1, TASKS + 1])

        return drain

    results = dict(zip(depths, interleaved(bench.pick(5, 3), *map(drainer, depths)), strict=True))
    small = results[depths[0]]
    for depth in depths:
        marks = results[depth]
        for what, first, key in (
            ("wall", 1, "wall_s"),
            ("the worker's own CPU", 1, "own_cpu_s"),
            ("wall with start and first listing", 0, "wall_s"),
        ):
            mine = [_per_task(run, first, key) for run in marks]
            other = [_per_task(run, first, key) for run in small]
            times = ratios(mine, other)
            goal = first == 1 and depth != depths[0]
            section.rows.append(
                Row(
                    what=f"{depth:,} pending, {what}, a task",
                    measured=spread(mine, "ms", 3, 1000),
                    beside=spread(other, "ms", 3, 1000) if depth != depths[0] else "",
                    ratio=spread(times) if depth != depths[0] else "",
                    goal=f"<= {DEPTH_GOAL}" if goal else "",
                    met=median(times) <= DEPTH_GOAL if goal else None,
                    samples={"seconds_a_task": mine},
                )
            )
        peaks = [run[-1]["peak_kib"] / 1024 for run in marks]
        section.rows.append(
            Row(what=f"{depth:,} pending, peak resident size", measured=spread(peaks, "MiB", 1))
        )
    big = depths[-1]
    first = [
        median([run[1]["wall_s"] - run[0]["wall_s"] for run in results[depth]])
        for depth in (depths[0], big)
    ]
    return (first[1] - first[0]) / (big - depths[0]) * 1e6


def worker_marks(bench: Bench, spool: Path, marks: list[int]) -> Marks:
    """One worker's time, CPU and memory at its start and at the ends with these numbers."""
    answer = bench.new_folder("answer") / "json"
    text = ",".join(map(str, marks))
    timed([sys.executable, DRIVE, "worker", str(spool), text], output=answer)
    found: Marks = json.loads(answer.read_text())
    if len(found) != len(marks) + 1:
        raise BenchError(f"the worker on {spool} left after {found[-1]['ends']:.0f} tasks")
    return found


def _per_task(marks: Marks, first: int, key: str) -> float:
    return (marks[-1][key] - marks[first][key]) / (marks[-1]["ends"] - marks[first]["ends"])


def _width(bench: Bench, section: Section) -> None:
    bench.say(f"  {WORKERS} workers")
    seconds = bench.pick(20, 10)
    floor = Floor(bench.new_folder("floor"))
    count = int(seconds / TASK_S) * WORKERS // 2
    bare_s = timed(floor.argv(count, WORKERS, f"sleep {TASK_S}")).wall_s * WORKERS / count
    spool = filled_spool(bench, DEEP, f"sleep {TASK_S}")
    os.sync()
    process = subprocess.Popen(
        FleetCommand().argv(spool, WORKERS),
        cwd=REPO,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(seconds)
        Spool(str(spool)).drain("the benchmark has seen enough")
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
    periods = [period for events in journals(spool) if (period := _period_s(events))]
    if len(periods) != WORKERS:
        raise BenchError(f"{len(periods)} of {WORKERS} workers left a journal with tasks")
    efficiency = TASK_S / (sum(periods) / len(periods))
    section.rows.append(
        Row(
            what=f"{WORKERS} workers, {DEEP:,} pending tasks of {TASK_S} s, efficiency",
            measured=f"{efficiency:.3f} (workers {TASK_S / max(periods):.3f}-"
            f"{TASK_S / min(periods):.3f})",
            beside=f"{floor.name} {TASK_S / bare_s:.3f}",
            ratio=f"{efficiency / (TASK_S / bare_s):.3f}",
            goal=f">= {EFFICIENCY_GOAL}",
            met=efficiency >= EFFICIENCY_GOAL,
            samples={"periods_s": periods, "floor_period_s": bare_s},
        )
    )


def _period_s(events: list[dict[str, Any]]) -> float | None:
    """Mean seconds from one start of a worker to its next, the first listing left out."""
    starts = [event["at"] for event in events if event["event"] == "start"]
    return (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else None
