"""Claim, rollback, commit, redo and recovery, ended by SIGKILL or failing at each file operation.

Real processes on a real file system; `crash_points` runs them and proves what is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.crash import disturbing
from tests.crash.disturbing import explained, folder_in_memory
from tests.rollouts.transaction.crash_points import OPERATIONS

# Fewest file operations that each consists of, counted when this was written: a guard against a
# harness that no longer reaches the code.
FEWEST_STEPS = {
    "claim": 15, "claim bad ones": 40, "roll back": 36, "commit": 36, "redo": 15,
    "undo of a dead one": 25,
}  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as made:
        yield made


disturbed = partial(disturbing.disturbed, "tests.rollouts.transaction.crash_points")


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
