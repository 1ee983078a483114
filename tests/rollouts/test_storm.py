"""Producers and two trainers as processes, killed at random: nothing is trained on twice or lost.

Few records; `tests/bench/rollouts.py` does the same with as many as one wants.
"""

from __future__ import annotations

import threading
from pathlib import Path

from fleetcraft.rollouts.audit import audit
from tests.bench.rollouts import SETTINGS, Filled, fill_of, storm, watch_room
from tests.rollouts.filling import fill, new_queue, sound, taken


def test_a_fleet_that_is_killed_at_random_commits_each_record_at_most_once(
    tmp_path: Path,
) -> None:
    report = storm(f"{tmp_path}/queue", 360, 20, seed=3, producers=3)

    found = audit(report["queue"])
    assert found.ok, found.problems
    assert report["false_alarms"] == 0
    assert report["kills"].total() > 0
    assert report["room"].looks > 0
    assert 0 < report["room"].both <= report["room"].with_claimed <= SETTINGS.high_water
    accounted = found.committed + found.pending + sum(found.quarantined.values())
    assert accounted >= 3 * (360 // 4 // 3) * 4 - 3 * 3, "a unit that was begun may be cut short"
    assert found.committed > 0
    sound(report["queue"], records=accounted)


def test_the_watcher_counts_what_is_granted_and_not_what_is_only_asked_for(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 3)
    for name in ("s.00000002.000.1", "s.00000003.000.1", "s.00000004.000.1.asked"):
        Path(queue.paths.reserved, name).touch()

    class Once(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return True

    seen = watch_room(queue, Once())
    assert seen == Filled(looks=1, pending=3, granted=2, both=4, with_claimed=4)


def test_the_watcher_counts_what_a_transaction_may_give_back_until_its_commit_stands(
    tmp_path: Path,
) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 5)
    batch = taken(queue)
    granted, pending, coming_back = fill_of(queue)
    assert (len(granted), len(pending), len(coming_back)) == (0, 1, 4)

    Path(queue.paths.commit(batch.version)).touch()
    assert fill_of(queue)[2] == set()
