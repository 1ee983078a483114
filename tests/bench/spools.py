"""Spools to measure on: filled through the public API, drained through the command line.

Invariant: every spool is fresh or has been used only by drains of the same benchmark.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from fleetcraft import Spool, TaskSpec
from tests.bench.measure import DRIVE, Bench, BenchError, cli_has, cli_prefix

OUTER_SPOOL = "taskq"
RECORD_BYTES = 170
"""About the size of a record of these benchmarks; the bare loop writes as much."""


def empty_spool(bench: Bench, name: str) -> Path:
    """A new spool's folder; its parent is the scratch root."""
    root = bench.new_folder(name)
    Spool.create(str(root / OUTER_SPOOL))
    return root / OUTER_SPOOL


def filled_spool(bench: Bench, count: int, command: str = "true") -> Path:
    """A new spool with so many pending tasks."""
    path = empty_spool(bench, f"{count}-tasks")
    fill(path, range(count), command)
    return path


def fill(path: Path, numbers: range, command: str = "true") -> None:
    """Adds tasks with these numbers to a spool."""
    root = str(path.parent)
    Spool(str(path)).enqueue_many(
        [
            TaskSpec(name=f"task-{number:06d}", command=command, project_dir=root)
            for number in numbers
        ]
    )


class FleetCommand:
    """The command that drains a spool on this machine: ``fleetcraft run`` where it is there.

    Attributes:
        name: What it is, for the table.
    """

    def __init__(self) -> None:
        self._cli = cli_has("run")
        self.name = "fleetcraft run" if self._cli else "run_local() (no `fleetcraft run` here)"

    def argv(self, spool: Path, workers: int) -> list[str]:
        """The command line."""
        if self._cli:
            return [*cli_prefix(), "--root", str(spool.parent), "run", "--workers", str(workers)]
        return [sys.executable, DRIVE, "fleet", str(spool), str(workers)]


def require_done(spool: Path, count: int) -> None:
    """Refuses a measurement that did not do its work.

    Raises:
        BenchError: Another number of tasks is done.
    """
    counts = Spool(str(spool)).counts()
    if counts["done"] != count:
        raise BenchError(f"expected {count} tasks done in {spool}, found {counts}")


def journals(spool: Path) -> list[list[dict[str, Any]]]:
    """The events of every worker, with ``at`` as seconds of the wall clock."""
    workers = []
    for path in sorted((spool / "workers").glob("*.jsonl")):
        events = [json.loads(line) for line in path.read_bytes().splitlines()]
        for event in events:
            event["at"] = datetime.fromisoformat(event["at"]).timestamp()
        workers.append(events)
    return workers
