"""A small run of real processes: what they report, who is killed, and what the watch says of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetcraft.identity import this_host
from fleetcraft.training.plan.records import ProgressPlan, RunPlan
from fleetcraft.training.progress.reading import ProgressReader
from fleetcraft.training.records import Standing
from fleetcraft.training.watching.census import take_census
from fleetcraft.training.watching.watch import Sight, Watch

DRAFTER = """
import sys, time
from fleetcraft import progress_phase, report_progress
with progress_phase("load"):
    pass
for step in range(1, 1_000_000):
    time.sleep(0.05)
    report_progress(step, tokens=512, loss=1 / step,
                    queues={"q_pre": (50, 50), "q_hs": (26, 50)}, name=f"drafter-{sys.argv[1]}")
"""
PLAN = RunPlan(
    run="drafters",
    command=("true",),
    warmup_s=0.2,
    look_s=0.05,
    progress=ProgressPlan(stall_least_s=3.0, queues=("q_pre", "q_hs")),
)


class Supervised:
    """Three drafters, watched from outside."""

    def __init__(self, folder: Path) -> None:
        self.drafters: list[subprocess.Popen[bytes]] = []
        for rank in range(3):
            environment = {**os.environ, "FLEET_PROGRESS": str(folder), "RANK": str(rank)}
            command = [sys.executable, "-c", DRAFTER, str(rank)]
            self.drafters.append(subprocess.Popen(command, env=environment))
        self.reader = ProgressReader(str(folder))
        self.watch = Watch(PLAN, began_s=time.monotonic())
        self.closer: tuple[int, ...] = ()

    def look(self) -> Sight:
        ranks = self.reader.look()
        now_s = time.monotonic()
        states = take_census(ranks, here=this_host(), now_s=now_s, closer=self.closer)
        sight = self.watch.observe(ranks, states, now_s, trouble=self.reader.trouble)
        self.closer = sight.look_closer
        return sight

    def until(self, condition: Callable[[Sight], bool]) -> Sight:
        deadline_s = time.monotonic() + 60
        while not condition(sight := self.look()):
            assert time.monotonic() < deadline_s, sight
            time.sleep(PLAN.look_s)
        return sight


def all_step(sight: Sight) -> bool:
    counting = [state for state in sight.ranks if state.step is not None]
    return sight.standing is Standing.PROGRESSING and len(counting) == 3


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(tmp_path)
    yield supervised
    for process in supervised.drafters:
        process.kill()
        process.wait()


def test_killed_drafters_are_named_and_the_living_one_is_not(run: Supervised) -> None:
    run.until(all_step)
    for process in run.drafters[1:]:
        process.kill()
    sight = run.until(lambda sight: len(sight.dead) == 2)
    assert sight.standing is Standing.DEAD_RANK
    assert sight.dead == (1, 2)
    assert "drafter-1 (rank 1), drafter-2 (rank 2)" in sight.why
    assert [state.alive for state in sight.ranks] == [True, False, False]


def test_a_stopped_drafter_under_live_peers_is_a_stall_and_progress_again_afterwards(
    run: Supervised,
) -> None:
    run.until(all_step)
    os.kill(run.drafters[2].pid, signal.SIGSTOP)
    sight = run.until(lambda sight: sight.standing is Standing.STALLED)
    assert sight.dead == ()
    assert sight.look_closer == (2,)
    assert [state.state == "T" for state in sight.ranks] == [False, False, True]
    os.kill(run.drafters[2].pid, signal.SIGCONT)
    run.until(lambda sight: sight.standing is Standing.PROGRESSING)
