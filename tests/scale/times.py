"""Times and memory of commands on spools of growing size: a process of its own for each.

Invariant: ratios are of one run on one machine.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from tests.scale.counts import Say, _room, sizes_up_to
from tests.scale.makers import empty_spool, fill, half_done, task_name
from tests.scale.one_act import ACTS
from tests.scale.tables import Table

REPO = Path(__file__).resolve().parents[2]
PER_TASK = ("status", "counts", "listing", "check", "promote")
"""Acts on all of a spool; the others are on one task, whatever the size."""
_REPEATS = 3
_LONG = 300_000


def measure(folder: Path, most: int, say: Say) -> Table:
    """Times every act at every size.

    Args:
        folder: Where the spools are made, each removed before the next.
        most: Tasks of the largest spool.
        say: Told what is done.
    """
    table = Table(
        title="times: how they grow",
        how="Wall seconds within a process of its own that has loaded what it needs and does this "
        f"one act, the median of {_REPEATS} (of one for `check` above {_LONG:,} tasks), on the "
        "spools of the first table; then the ratio to the smallest size, of the time a task where "
        "the act is on all of them; then the process's peak memory. `listing` is a worker's first "
        "look for a candidate, `enqueue` a batch of 1,000.",
    )
    sizes = sizes_up_to(most)
    table.columns = ["act", *(f"{size:,}" for size in sizes)]
    found: dict[str, dict[int, list[dict[str, float]]]] = {act: {} for act in ACTS}
    for size in sizes:
        say(f"  times on {size:,} tasks")
        with _room(folder) as room:
            tree = empty_spool(room)
            fill(tree, half_done(size), say)
            for act in ACTS:
                repeats = 1 if act == "check" and size > _LONG else _REPEATS
                found[act][size] = [_run(tree.paths.root, act, turn) for turn in range(repeats)]
    for act in ACTS:
        table.rows.append([f"`{act}`", *(_cell(found[act], size, act, sizes) for size in sizes)])
    table.data = {act: {str(s): runs for s, runs in by.items()} for act, by in found.items()}
    table.after.append(
        "Peak memory of `check` is that of a quarter of a million tasks at a time, of the others "
        "that of what they print; a worker keeps the first 50,000 names of a listing."
    )
    return table


def _cell(runs: dict[int, list[dict[str, float]]], size: int, act: str, sizes: list[int]) -> str:
    wall_s = statistics.median(run["wall_s"] for run in runs[size])
    first_s = statistics.median(run["wall_s"] for run in runs[sizes[0]])
    ratio = wall_s / first_s
    if act in PER_TASK:
        ratio *= sizes[0] / size
    peak = max(run["peak_mib"] for run in runs[size])
    times = "" if size == sizes[0] else f", x{ratio:.2f}"
    return f"{wall_s:.4g} s{times}, {peak:.0f} MiB"


def _run(root: str, act: str, turn: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.scale.one_act", root, act, str(turn), task_name(0)],
        cwd=REPO, capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout)
    return found
