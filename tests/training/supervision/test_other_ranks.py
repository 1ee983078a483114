"""Ranks of a step beside the one that supervises: whom they wait for, and when they leave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetcraft.files import FileSystem
from fleetcraft.identity import this_job_run
from fleetcraft.locks import GenerationLock, Held, LockHeldError
from fleetcraft.training.records import State
from fleetcraft.training.supervision.other_ranks import supervising_rank, wait_until_left
from tests.training.supervision.scenes import Scene, entered

Make = Callable[..., Scene]
UNTIL_TOLD = """
step = 0
while not os.path.exists(sys.argv[0] + ".end"):
    time.sleep(0.02)
    step += 1
    report_progress(step)
"""
RANK = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_CLUSTER_NAME": "c",
}


def lock_of(folder: Path, environ: dict[str, str], **more: Any) -> GenerationLock:
    run = this_job_run(environ)
    return GenerationLock(str(folder), purpose="run r1", interval_s=1.0, run=run, **more)


def refusal(lock: GenerationLock) -> LockHeldError:
    with pytest.raises(LockHeldError) as refused:
        lock.acquire()
    return refused.value


class Hours:
    """A clock that passes only in sleep; something may happen then."""

    def __init__(self, *then: Any) -> None:
        self.now_s = 0.0
        self._then = list(then)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self._then:
            self._then.pop(0)()

    def clock(self) -> float:
        return self.now_s


def wait(held: Held, lock: GenerationLock, hours: Hours) -> str:
    return wait_until_left(lock, held.holder, clock=hours.clock, sleep=hours.sleep)


def test_a_rank_waits_for_the_one_of_its_own_step_and_for_nobody_else(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, RANK)
    held = lock.acquire()
    refused = refusal(lock)

    assert supervising_rank(lock, refused, RANK) == held.holder
    assert supervising_rank(lock, refused, {**RANK, "SLURM_STEP_ID": "4"}) is None
    assert supervising_rank(lock, refused, {**RANK, "SLURM_RESTART_COUNT": "1"}) is None
    assert supervising_rank(lock, refused, {**RANK, "FLEET_OWNER": "12.0.0.abc-1"}) is None
    assert supervising_rank(lock, refused, {**RANK, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert supervising_rank(lock, refused, {}) is None


def test_it_waits_while_the_supervisor_beats_and_leaves_after_it(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, RANK)
    held = lock.acquire()
    hours = Hours(*[held.beat] * 1000, held.release)

    assert wait(held, lock, hours) == "it has left"
    assert hours.now_s == 1001.0


def test_it_leaves_when_another_has_followed(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, RANK)
    held = lock.acquire()

    def follow() -> None:
        lock.fs.create(lock.path("gen", 2), b"{}")

    assert wait(held, lock, Hours(follow)) == "another has followed it"


def test_it_does_not_outlive_a_killed_supervisor_for_ever(tmp_path: Path) -> None:
    lock = lock_of(tmp_path, RANK)
    hours = Hours()

    assert wait(lock.acquire(), lock, hours) == "it was silent for 300 s"
    assert 300 <= hours.now_s <= 302


def test_a_folder_that_cannot_be_read_says_nothing_of_the_supervisor(tmp_path: Path) -> None:
    class Sick(FileSystem):
        sick = 1000

        def listdir(self, path: str) -> list[str]:
            self.sick -= 1
            if self.sick > 0:
                raise OSError(5, "Input/output error")
            return super().listdir(path)

    held = lock_of(tmp_path, RANK).acquire()
    held.release()
    hours = Hours()

    assert wait(held, lock_of(tmp_path, RANK, fs=Sick()), hours) == "it has left"
    assert hours.now_s == 1000.0


def test_two_ranks_of_one_step_are_one_supervisor_and_both_end_well(
    scene: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    one = scene(UNTIL_TOLD)
    with one.process() as first:
        one.wait_for(entered(State.HEALTHY))
        with one.process() as second:
            log = one.root / "supervisor.log"
            while "this one waits" not in log.read_text():
                assert second.poll() is None, log.read_text()
                time.sleep(0.02)
            Path(f"{one.script}.end").touch()
            codes = first.wait(timeout=40), second.wait(timeout=40)

    assert codes == (0, 0)
    assert {event["generation"] for event in one.journal()} == {1}
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["event"] for event in told].count("elsewhere") == 2
