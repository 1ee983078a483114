"""Producers and two trainers as processes, killed at random: nothing is trained on twice or lost.

Few records; `tests/bench/rollouts.py` does the same with as many as one wants.
"""

from __future__ import annotations

from pathlib import Path

from fleetcraft.rollouts.audit import audit
from tests.bench.rollouts import SETTINGS, storm
from tests.rollouts.filling import sound


def test_a_fleet_that_is_killed_at_random_commits_each_record_at_most_once(
    tmp_path: Path,
) -> None:
    report = storm(f"{tmp_path}/queue", 360, 0.5, seed=3, producers=3)

    found = audit(report["queue"])
    assert found.ok, found.problems
    assert report["false_alarms"] == 0
    assert report["kills"].total() > 0
    assert report["highest"] <= SETTINGS.high_water
    accounted = found.committed + found.pending + sum(found.quarantined.values())
    assert accounted >= 3 * (360 // 4 // 3) * 4 - 3 * 3, "a unit that was begun may be cut short"
    assert found.committed > 0
    sound(report["queue"], records=accounted)
