"""A small soak: a real Slurm of three nodes, two fleets, and one of each cheap disturbance.

The whole one is `python -m tests.soak`. Not here: what the judge can tell; see test_judge.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import missing
from tests.soak.__main__ import soak
from tests.soak.ground import Ground
from tests.soak.plan import DISTURBANCES, draw
from tests.soak.running import Pace, Soak

TASKS = 150
CHEAP = (
    "kill a worker",
    "restart slurmctld",
    "kill a keeper",
    "cancel",
    "kill an enqueue",
    "kill a logger",
    "recover",
    "check --repair",
    "promote",
    "retry",
)


@pytest.fixture
def base() -> Iterator[Path]:
    # Under /tmp and not pytest's own folder: it is part of every claim's and socket's path.
    folder = Path(tempfile.mkdtemp(prefix="fc-soak-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(300)
def test_a_small_soak_loses_nothing_runs_nothing_twice_and_leaves_nothing_behind(
    base: Path,
) -> None:
    if lacking := missing():
        pytest.skip(lacking)
    pace = Pace(minutes=3.0, gap_s=1.0, fleet_nodes=(2, 1), idle_s=4, slots=(2,))

    told = soak(base, nodes=3, tasks=TASKS, pace=pace, seed=11, disturbances=CHEAP, telemetry_s=1.0)

    assert told["judgement"]["holds"], told["said"]
    assert told["judgement"]["tallies"]["tasks enqueued"] == TASKS + told["facts"]["packs"]
    begun = set(told["facts"]["done"])
    assert {"kill a worker", "restart slurmctld", "recover", "check --repair"} <= begun


def test_every_disturbance_of_a_plan_is_one_that_a_soak_can_make(tmp_path: Path) -> None:
    class NoGround(Ground):
        def __init__(self) -> None:
            self.base = tmp_path

    plan = draw(1, tasks=10, prelude="/p")
    running = Soak(NoGround(), plan, Pace(minutes=1, gap_s=1, fleet_nodes=(1,)))
    running.close()

    assert set(running.disturbances()) == set(DISTURBANCES)


def test_the_same_seed_draws_the_same_plan_and_another_seed_another() -> None:
    first, same, other = (draw(seed, tasks=300, prelude="/p") for seed in (5, 5, 6))

    assert first == same
    assert first != other
    assert len({task.name for task in first.tasks}) == 300
    assert sorted(first.disturbances) == sorted(
        kind for kind, count in DISTURBANCES.items() for _ in range(count)
    )
