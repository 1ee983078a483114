"""Claim, rollback, commit, redo and recovery, ended by SIGKILL or failing at each file operation.

Real processes on a real file system; `crash_points` runs them and proves what is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rollouts.transaction.crash_points import OPERATIONS

REPO = Path(__file__).resolve().parents[3]
# Fewest file operations that each consists of, counted when this was written: a guard against a
# harness that no longer reaches the code.
FEWEST_STEPS = {
    "claim": 15, "claim bad ones": 40, "roll back": 36, "commit": 36, "redo": 15,
    "undo of a dead one": 25,
}  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is one: these tests make thousands of small files."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base, prefix="fleet-crash-") as made:
        yield Path(made)


def disturbed(
    folder: Path, operation: str, how: list[list[str]], *, broken: bool = False
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.rollouts.transaction.crash_points", str(folder),
         json.dumps({"operation": operation, "how": how, "broken": broken})],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def explained(report: dict[str, Any]) -> str:
    return "\n".join(
        f"{point['how']} at {point['at']}: {point.get('acted')}\n{point['trouble']}"
        + "\n".join(point.get("listing", []))
        for point in report["troubles"]
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_recovery_pass_repairs_whatever_a_kill_at_any_file_operation_leaves(
    operation: str, folder: Path
) -> None:
    report = disturbed(folder, operation, [["kill before"]])
    assert report["count"] == 0, explained(report)
    assert report["points"] >= FEWEST_STEPS[operation]


@pytest.mark.parametrize("operation", ["claim bad ones", "commit"])
def test_nothing_is_lost_when_file_operations_fail_or_are_reported_as_failed(
    operation: str, folder: Path
) -> None:
    how = [["raise", "EIO"], ["from", "ESTALE"], ["lie", "ENOENT"], ["lie", "EEXIST"]]
    report = disturbed(folder, operation, how)
    assert report["count"] == 0, explained(report)
    assert report["points"] >= 2 * FEWEST_STEPS[operation]


def test_the_crash_points_show_a_broken_rule(folder: Path) -> None:
    report = disturbed(folder, "redo", [["kill before"]], broken=True)
    assert report["count"] > 0
