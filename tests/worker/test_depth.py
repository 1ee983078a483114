"""The depth of the spool in journals: whose turn it is, and what is noted."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.spool import leases
from fleetcraft.worker.depth import DepthNotes, seconds_to_turn
from fleetcraft.worker.diary import Diary
from fleetcraft.worker.settings import DEPTH_EVERY_S, WorkerSettings, depth_every_s
from tests.worker.harness import Site

EMPTY = {"waiting": 0, "pending": 0, "running": 0, "done": 0, "failed": 0}


def depths(journal: list[dict[str, Any]]) -> list[dict[str, int]]:
    return [
        {state: event[state] for state in EMPTY} for event in journal if event["event"] == "depth"
    ]


@given(wall_s=st.floats(0, 4e9), ranks=st.integers(1, 200))
def test_each_turn_is_that_of_one_rank_and_each_rank_has_one_in_each_round(
    wall_s: float, ranks: int
) -> None:
    waits_s = sorted(seconds_to_turn(wall_s, rank, ranks, DEPTH_EVERY_S) for rank in range(ranks))
    steps_s = [later - sooner for sooner, later in itertools.pairwise(waits_s)]
    assert 0 < waits_s[0] <= DEPTH_EVERY_S
    assert all(abs(step_s - DEPTH_EVERY_S) < 1e-3 for step_s in steps_s)


@given(turn=st.integers(0, 10**8), part=st.floats(0, 0.99), ranks=st.integers(1, 200))
def test_the_turn_of_the_moment_is_over_for_everybody(turn: int, part: float, ranks: int) -> None:
    wall_s = (turn + part) * DEPTH_EVERY_S
    rank = turn % ranks
    wait_s = seconds_to_turn(wall_s, rank, ranks, DEPTH_EVERY_S)
    assert wait_s > (ranks - 1) * DEPTH_EVERY_S


def test_depths_are_noted_in_step_with_samples_and_never_in_haste() -> None:
    assert [depth_every_s(interval_s) for interval_s in (0, 0.1, 2, 30, 300)] == [30, 1, 2, 30, 30]


def test_the_first_rank_notes_the_beginning_and_each_worker_the_end(site: Site) -> None:
    site.enqueue("good", "true")
    site.enqueue("bad", "false")
    site.enqueue("waits", "true", after=("bad",))

    site.work()

    assert depths(site.journals()) == [
        {**EMPTY, "waiting": 1, "pending": 2},
        {**EMPTY, "waiting": 1, "done": 1, "failed": 1},
    ]


def test_another_rank_notes_no_beginning(site: Site) -> None:
    site.work(rank=1, ranks=2)

    events = [event["event"] for event in site.journals()]
    assert events[:1] == ["arrive"]
    assert depths(site.journals()[-2:]) == [EMPTY]


def test_a_spool_that_cannot_be_counted_is_noted_once(site: Site) -> None:
    tree = site.spool.tree
    lease = leases.new_lease(rank="0", interval_s=30.0)
    diary = Diary(tree, lease.name, lambda event: None)
    settings = WorkerSettings(spool_dir=tree.paths.root, root=str(site.root))
    depth = DepthNotes(tree, diary, settings, in_pack=False)
    done = Path(tree.paths.done)
    done.rename(done.with_name("hidden"))

    depth.look()
    done.with_name("hidden").rename(done)
    while not depths(events := leases.read_journal(tree, lease.name)[0]):
        depth.look()
    diary.close()

    notes = [event["text"] for event in events if event["event"] == "note"]
    assert len(notes) == 1
    assert "cannot be counted" in notes[0]


def test_a_count_that_took_long_is_followed_by_a_long_pause(site: Site) -> None:
    tree = site.spool.tree
    lease = leases.new_lease(rank="0", interval_s=30.0)
    diary = Diary(tree, lease.name, lambda event: None)
    settings = WorkerSettings(spool_dir=tree.paths.root, root=str(site.root))
    depth = DepthNotes(tree, diary, settings, in_pack=False)

    for _ in range(1000):
        depth.look()
    diary.close()

    # 1,000 counts in a row would be all of the time; at most a fiftieth of it was counted.
    assert 1 <= len(depths(leases.read_journal(tree, lease.name)[0])) < 1000
