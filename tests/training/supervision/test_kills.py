"""Whenever a supervisor is killed, the next one finishes the run, and never are two launched.

The full count is `tests/bench/train_kills.py`'s.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.supervision.kills import trial


@pytest.mark.parametrize("k", [3, 12, 25, 38, 52, 60, 66, 75, 90, 140, 260])
def test_a_supervisor_killed_at_a_file_operation_leaves_a_run_that_the_next_one_finishes(
    tmp_path: Path, k: int
) -> None:
    found = trial(tmp_path / str(k), k)

    assert found.killed
    assert found.holds, found
