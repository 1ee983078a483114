"""The trainer's loop: one trainer, every batch committed or put back, ABORT between batches.

With real processes where a process matters: a second trainer, a killed one, and one that is paused
past its follower's takeover.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.errors import FleetError, SpoolError
from fleetcraft.locks import LockHeldError
from fleetcraft.rollouts.abort import ask_abort
from fleetcraft.rollouts.accounts import rolled_back
from fleetcraft.rollouts.audit import audit
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Refusal
from fleetcraft.rollouts.trainer import RolloutTrainer
from fleetcraft.rollouts.transaction.records import TransactionState
from fleetcraft.rollouts.transaction.refusing import TransactionError
from tests.rollouts.filling import (
    QuickFS,
    commits,
    counts,
    fill,
    new_queue,
    put,
    record,
    reopened,
    sound,
)

REPO = Path(__file__).resolve().parents[2]


def train(queue: RolloutQueue, **options: int | float | None) -> RolloutTrainer:
    """Trains on all that waits."""
    with RolloutTrainer(queue) as trainer:
        for batch in trainer.batches(**{"patience_s": 0, **options}):
            batch.commit(f"step-{batch.version}", f"{batch.version:064x}")
    return trainer


def test_every_whole_batch_is_trained_on_and_the_rest_waits(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 10)
    trainer = train(queue)
    assert trainer.ledger.version == 2
    assert trainer.exit_code == 0
    assert trainer.waiting is not None
    assert trainer.waiting.valid == 2
    sound(queue, records=10)
    assert audit(queue).ok


def test_the_loop_ends_after_so_many_versions(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 12)
    assert train(queue, limit=2).ledger.version == 2
    assert train(queue, limit=1).ledger.version == 3


def test_there_is_no_standby_trainer(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    with RolloutTrainer(queue), pytest.raises(LockHeldError) as caught, RolloutTrainer(queue):
        pass
    assert caught.value.exit_code == 75


def test_a_trainer_that_fails_puts_its_batch_back(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)

    def fail() -> None:
        with RolloutTrainer(queue, gpus=2) as trainer:
            next(trainer.batches()).computed()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert counts(queue)["pending"] == 4
    (written,) = rolled_back(queue)
    assert written.why == "the trainer left: ZeroDivisionError"
    assert written.gpu_s is not None
    assert train(queue).ledger.version == 1


def test_a_batch_is_never_left_behind_unfinished(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    with pytest.raises(TransactionError, match="left behind"), RolloutTrainer(queue) as trainer:
        for _ in trainer.batches(patience_s=0):
            pass
    assert counts(queue)["pending"] == 4


def test_a_batch_may_be_put_back_by_the_trainer_itself(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    with RolloutTrainer(queue) as trainer:
        batches = trainer.batches(patience_s=0)
        next(batches).undo("not now")
        again = next(batches)
        again.commit("c", "0" * 64)
    assert commits(queue)[0].transaction == str(again.transaction.name)


@pytest.mark.parametrize("state", [s for s in TransactionState if s.value != "rolled_back"])
def test_an_abort_inside_a_batch_lets_it_commit_and_ends_the_loop(
    tmp_path: Path, state: TransactionState
) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 8)

    def abort(reached: TransactionState) -> None:
        if reached is state:
            ask_abort(queue, "the reward model is wrong")

    with RolloutTrainer(queue, watch=abort) as trainer:
        for batch in trainer.batches(patience_s=0):
            batch.commit("c", "0" * 64)

    assert (trainer.aborted, trainer.exit_code) == (True, 3)
    assert len(commits(queue)) == 1
    sound(queue, records=8)


def test_a_trainer_that_waits_sees_an_abort_and_new_records(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 3)
    looks = []

    def something_happens(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            put(queue, record(3))
        if len(looks) == 4:
            ask_abort(queue, "enough")

    with RolloutTrainer(queue, sleep=something_happens) as trainer:
        for batch in trainer.batches():
            batch.commit("c", "0" * 64)
    assert trainer.aborted
    assert len(commits(queue)) == 1


def test_a_restart_with_more_waiting_than_the_high_water_admits_no_lag_above_the_cap(
    tmp_path: Path,
) -> None:
    queue = new_queue(tmp_path, batch=20, low_water=20, high_water=160, max_lag=2)
    fill(queue, 200)
    for _ in range(10):  # each a new process's memory: nothing is counted anywhere
        train(queue, limit=1)

    made = commits(queue)
    assert len(made) == 3
    assert all(commit.parent <= 2 for commit in made)
    found = audit(queue)
    assert found.ok
    assert found.quarantined == {Refusal.LAG: 140}
    assert found.committed + sum(found.quarantined.values()) == 200
    (bucket,) = found.buckets
    assert (bucket.committed, bucket.discarded) == (60, 140)


def test_a_queue_that_cannot_be_listed_is_an_error_with_a_hint(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    with RolloutTrainer(queue) as trainer:
        os.rename(queue.paths.pending, f"{queue.paths.pending}.away")
        os.symlink("/dev/null", queue.paths.pending)
        with pytest.raises(SpoolError) as caught:
            next(trainer.batches())
    assert caught.value.hint


class LyingSometimes(QuickFS):
    """Does what it is asked and says that it failed, so often."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._random = random.Random(1)
        self._share = share
        self.lies = 0

    def _lie(self, path: str, codes: tuple[int, ...]) -> None:
        if self._random.random() < self._share:
            self.lies += 1
            code = self._random.choice(codes)
            raise OSError(code, os.strerror(code), path)

    def rename_new(self, source: str, destination: str) -> None:
        super().rename_new(source, destination)
        self._lie(source, (errno.ENOENT, errno.EEXIST, errno.EIO))

    def link(self, source: str, destination: str) -> None:
        super().link(source, destination)
        self._lie(destination, (errno.EEXIST, errno.ENOENT, errno.EIO))

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._lie(path, (errno.ENOENT, errno.EIO))


@pytest.mark.parametrize("share", [0.01, 0.1])
def test_operations_that_are_done_and_reported_as_failed_strand_nothing(
    tmp_path: Path, share: float
) -> None:
    fs = LyingSometimes(share)
    queue = new_queue(tmp_path, high_water=400, low_water=8, max_lag=100)
    fill(queue, 240)
    mine = reopened(queue, fs)
    for _ in range(500):
        if len(commits(queue)) == 60:
            break
        with contextlib.suppress(FleetError, OSError):
            train(mine)
    assert fs.lies > 5
    train(queue)
    sound(queue, records=240)
    found = audit(queue)
    assert found.ok, found.problems
    assert (found.committed, found.verified) == (240, 240)


# ------------------------------------------------------------------------ several processes

_PROGRAM = """
import os, signal, sys
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.trainer import RolloutTrainer

def stop(state):
    if state.value == sys.argv[2]:
        print("there", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)

with RolloutTrainer(RolloutQueue.open(sys.argv[1]), watch=stop) as trainer:
    for batch in trainer.batches(patience_s=0):
        batch.commit("slow", "0" * 64)
"""


def trainer_stopped_at(queue: RolloutQueue, state: str) -> subprocess.Popen[str]:
    """A trainer of another process that stands still at a state of its first batch."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), queue.paths.folder, state],
        env={**os.environ, "PYTHONPATH": str(REPO)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    wait_for(lambda: _state(process.pid) == "T")
    return process


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_a_killed_trainer_left_is_ended_by_the_next(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 5)
    process = trainer_stopped_at(queue, "prepared")
    process.kill()
    process.communicate()

    with RolloutTrainer(queue) as trainer:
        assert [each.checkpoint for each in trainer.recovered.prepared] == ["slow"]
        assert trainer.recovered.returned == 4
        for batch in trainer.batches(patience_s=0):
            batch.commit("quick", "1" * 64)
    assert [commit.checkpoint for commit in commits(queue)] == ["quick"]
    sound(queue, records=5)


@pytest.mark.parametrize("state", ["claimed", "prepared"])
def test_a_trainer_that_is_paused_past_a_takeover_commits_nothing_when_it_goes_on(
    tmp_path: Path, state: str
) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 5)
    slow = trainer_stopped_at(queue, state)
    try:
        with RolloutTrainer(queue, judge=lambda holder: None, by_age=True) as trainer:
            for batch in trainer.batches(patience_s=0):
                batch.commit("quick", "1" * 64)
            os.kill(slow.pid, signal.SIGCONT)
            _, said = slow.communicate(timeout=20)
    finally:
        slow.kill()
        slow.communicate()

    assert slow.returncode == 1
    assert "LockLostError" in said
    assert [commit.checkpoint for commit in commits(queue)] == ["quick"]
    sound(queue, records=5)
