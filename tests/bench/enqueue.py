"""Enqueueing: one call beside a bare start of Python with click, and a batch beside a bare loop.

Invariant: both sides write the same number of bytes to the same mount, and both are durable.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.bench.measure import (
    DRIVE,
    Bench,
    Cost,
    Row,
    Section,
    cli_has,
    cli_prefix,
    interleaved,
    median,
    ratios,
    spread,
    timed,
)
from tests.bench.spools import RECORD_BYTES, empty_spool

SINGLE_GOAL = 1.8
BATCH_GOAL = 0.4
CLICK = [sys.executable, "-c", "import click"]


def measure(bench: Bench) -> Section:
    """Single calls, and batches through the API and the command line."""
    section = Section(
        name="enqueue",
        title="one call, and a durable batch",
        how="One call is beside `python -c 'import click'`. A batch is beside a bare Python loop "
        f"of the same file operations: create with {RECORD_BYTES} bytes, link, one syncfs, rename; "
        "its ratio is of rates, so higher is better.",
    )
    has_cli = cli_has("enqueue")
    if has_cli:
        _single(bench, section)
    else:
        section.skipped.append("one call, and --from: `fleetcraft enqueue` does not work here")
    counts = (1000, bench.pick(100_000, 10_000))
    rates = [_batches(bench, section, count, has_cli=has_cli) for count in counts]
    section.growth = (
        "one call takes the same number of file operations whatever the spool holds; a batch is "
        f"linear in its tasks, with one syncfs and one listing of `names/` a batch: measured "
        f"{1e6 / rates[0]:.0f} us a task at {counts[0]:,} and {1e6 / rates[1]:.0f} us at "
        f"{counts[1]:,}, the syncfs (the disk's own cost) included."
    )
    return section


def single_call(bench: Bench) -> list[str]:
    """A command line that enqueues one task in a fresh spool; the name must be appended."""
    root = empty_spool(bench, "single").parent
    return [
        *cli_prefix(), "--root", str(root), "--project-dir", str(root), "enqueue", "true", "--name",
    ]  # fmt: skip


def _single(bench: Bench, section: Section) -> None:
    argv = single_call(bench)
    number = 0

    def call() -> Cost:
        nonlocal number
        number += 1
        return timed([*argv, f"single-{number}"])

    runs = bench.pick(40, 15)
    timed(CLICK)
    call()  # both have their bytecode in the cache now
    theirs, ours = interleaved(runs, lambda: timed(CLICK), call)
    for kind in ("wall", "cpu"):
        mine = [getattr(cost, f"{kind}_s") for cost in ours]
        other = [getattr(cost, f"{kind}_s") for cost in theirs]
        times = ratios(mine, other)
        section.rows.append(
            Row(
                what=f"one `fleetcraft enqueue`, {'CPU' if kind == 'cpu' else kind}",
                measured=spread(mine, "ms", 1, 1000),
                beside=spread(other, "ms", 1, 1000),
                ratio=spread(times),
                goal=f"<= {SINGLE_GOAL}" if kind == "wall" else "",
                met=median(times) <= SINGLE_GOAL if kind == "wall" else None,
                samples={"measured_s": mine, "click_s": other},
            )
        )


def _batches(bench: Bench, section: Section, count: int, *, has_cli: bool) -> float:
    bench.say(f"  batch of {count}")
    runs = bench.pick(3, 2)
    table = _write_table(bench, count)

    def bare() -> float:
        return _drive(bench, "bare", str(bench.new_folder("bare")), str(count), str(RECORD_BYTES))

    def through_api() -> float:
        return _drive(bench, "batch", str(empty_spool(bench, "batch")), str(count))

    def through_cli() -> float:
        root = str(empty_spool(bench, "batch-cli").parent)
        where = ["--root", root, "--project-dir", root]
        return timed([*cli_prefix(), *where, "enqueue", "--from", str(table)]).wall_s

    things = [bare, through_api, *([through_cli] if has_cli else [])]
    floor, *ours = interleaved(runs, *things)
    names = ("Spool.enqueue_many", "`enqueue --from tasks.jsonl`, the whole command")
    for name, walls in zip(names, ours, strict=False):
        times = ratios(floor, walls)
        goal = count >= 10_000
        section.rows.append(
            Row(
                what=f"{count:,} tasks, {name}",
                measured=spread([count / wall for wall in walls], "/s", 0),
                beside=spread([count / wall for wall in floor], "/s", 0),
                ratio=spread(times),
                goal=f">= {BATCH_GOAL}" if goal else "",
                met=median(times) >= BATCH_GOAL if goal else None,
                samples={"measured_s": walls, "bare_s": floor},
            )
        )
    return count / median(ours[0])


def _drive(bench: Bench, *words: str) -> float:
    answer = bench.new_folder("answer") / "json"
    timed([sys.executable, DRIVE, *words], output=answer)
    return float(json.loads(answer.read_text())["wall_s"])


def _write_table(bench: Bench, count: int) -> Path:
    path = bench.new_folder("table") / "tasks.jsonl"
    with path.open("w") as file:
        for number in range(count):
            file.write(f'{{"name": "task-{number:06d}", "command": "true"}}\n')
    return path
