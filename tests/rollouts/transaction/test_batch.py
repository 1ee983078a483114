"""One batch through its states, and what may stand in its way at each.

Not here: the end at any file operation (`test_crash_points`), and interleavings
(`test_exploration`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetcraft.locks import LockLostError
from fleetcraft.rollouts.accounts import rolled_back
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Refusal, encode
from fleetcraft.rollouts.recovery import recover
from fleetcraft.rollouts.trainer import trainer_lock
from fleetcraft.rollouts.transaction.batch import Transaction
from fleetcraft.rollouts.transaction.records import TransactionState
from fleetcraft.rollouts.transaction.refusing import (
    CommitConflictError,
    CommitUnknownError,
    TransactionError,
)
from fleetcraft.rollouts.transaction.selection import NotEnough
from tests.rollouts.filling import (
    QuickFS,
    commits,
    counts,
    fill,
    finish,
    held_on,
    new_queue,
    put,
    record,
    reopened,
    sound,
    taken,
)


class Failing(QuickFS):
    """Fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[str, str], bool] = lambda operation, path: False
        self.code = errno.EIO
        self.performed = False

    def _fail(self, operation: str, path: str) -> None:
        if self.fails(operation, path):
            raise OSError(self.code, os.strerror(self.code), path)

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        self._fail("create", path)
        super().create(path, data, mode=mode)

    def link(self, source: str, destination: str) -> None:
        if self.performed:
            super().link(source, destination)
        self._fail("link", destination)
        if not self.performed:
            super().link(source, destination)

    def read_with_facts(self, path: str) -> tuple[bytes, os.stat_result]:
        self._fail("read", path)
        return super().read_with_facts(path)

    def rename_new(self, source: str, destination: str) -> None:
        self._fail("rename", destination)
        super().rename_new(source, destination)


def test_a_batch_goes_through_its_states_and_becomes_a_version(tmp_path: Path) -> None:
    queue, seen = new_queue(tmp_path, group=2), list[TransactionState]()
    for sequence in range(3):
        for sample in range(2):
            put(queue, record(sequence, sample=sample))
    ticks = iter(range(0, 1000, 100))

    batch = taken(queue, gpus=4.0, watch=seen.append, clock=lambda: float(next(ticks)))
    batch.computed()
    batch.prepared("step-1", "f" * 64)
    commit = batch.commit({"loss": 0.5})

    assert [state.value for state in seen] == [
        "open", "claimed", "audited", "grouped", "computed", "prepared", "committed",
    ]  # fmt: skip
    assert (commit.version, commit.parent, commit.checkpoint) == (1, 0, "step-1")
    assert commit.gpu_s == 4 * 10.0 + 4.0 * 200.0  # four records, and 200 s on four GPUs
    assert commit.scalars == {"loss": 0.5}
    assert [[r.sample for r in group] for group in batch.groups()] == [[0, 1], [0, 1]]
    assert batch.left == ()
    sound(queue, records=6)
    assert os.listdir(queue.paths.transactions) == []


def test_a_batch_that_is_undone_goes_back_and_its_cost_stays_in_the_accounts(
    tmp_path: Path,
) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 5)
    batch = taken(queue)

    settled = batch.undo("the reward model is wrong", gpu_s=9309.0)

    assert (settled.committed, settled.returned, settled.refused) == (False, 4, ())
    assert batch.state is TransactionState.ROLLED_BACK
    assert counts(queue)["pending"] == 5
    (written,) = rolled_back(queue)
    assert (written.gpu_s, written.why) == (9309.0, "the reward model is wrong")
    assert len(written.members) == 4
    sound(queue, records=5)


def test_a_bad_record_costs_the_batch_but_not_its_other_records(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    bad = record(1)
    put(queue, bad, data=encode(bad).replace(b"-2.0", b"-7.0"))
    fill(queue, 1)
    fill(queue, 3, first=2)

    found = Transaction.open(queue, Ledger.load(queue), held_on(queue), gpus=2.0)

    assert isinstance(found, NotEnough)
    assert [each.refusal for each in found.refused] == [Refusal.WRONG_DIGEST]
    assert found.valid == 3
    assert counts(queue) == {"pending": 4, "claimed": 0, "consumed": 0, "quarantine": 1}
    (written,) = rolled_back(queue)
    assert written.transaction == found.transaction
    assert written.gpu_s is not None
    assert written.refused == (found.refused[0].name,)


def test_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    batch = taken(queue)
    with pytest.raises(TransactionError, match="it is grouped; nothing was done"):
        batch.commit()
    with pytest.raises(TransactionError):
        batch.prepared("c", "s")
    finish(batch)
    with pytest.raises(TransactionError, match="cannot be undone: it is committed"):
        batch.undo("no")


def follower(queue: RolloutQueue) -> tuple[RolloutQueue, Ledger, object]:
    """Another trainer that takes the lock from a silent one, by age."""
    mine = reopened(queue)
    held = trainer_lock(mine, judge=lambda holder: None).acquire(by_age=True)
    return mine, Ledger.load(mine), held


@pytest.mark.parametrize("steps", range(3))
def test_a_trainer_that_was_followed_commits_nothing_and_moves_nothing(
    tmp_path: Path, steps: int
) -> None:
    queue = new_queue(tmp_path, lock_interval_s=0.01)
    fill(queue, 4)
    slow = taken(queue)
    for step in (slow.computed, lambda: slow.prepared("slow", "0" * 64))[:steps]:
        step()
    mine, ledger, held = follower(queue)
    before = counts(queue)

    with pytest.raises(LockLostError):
        (slow.computed, lambda: slow.prepared("slow", "0" * 64), slow.commit)[steps]()
    with pytest.raises(LockLostError):
        slow.undo("late")

    assert counts(queue) == before
    recovered = recover(mine, ledger, held)  # type: ignore[arg-type]
    assert [each.checkpoint for each in recovered.prepared] == ["slow"] * (steps == 2)
    finish(taken(mine, ledger, held))  # type: ignore[arg-type]
    sound(queue, records=4)


def test_a_commit_between_its_last_look_at_the_lock_and_its_link_is_fenced(
    tmp_path: Path,
) -> None:
    fs = Failing()
    queue = new_queue(tmp_path, lock_interval_s=0.01, fs=fs)
    fill(queue, 4)
    slow = taken(queue)
    slow.computed()
    slow.prepared("slow", "0" * 64)
    recovered = []

    def paused(operation: str, path: str) -> bool:
        if operation == "link" and path == queue.paths.commit(1) and not recovered:
            mine, ledger, held = follower(queue)
            recovered.append(recover(mine, ledger, held))  # type: ignore[arg-type]
        return False

    fs.fails = paused
    with pytest.raises(CommitConflictError, match="has undone this batch"):
        slow.commit()

    assert [each.checkpoint for each in recovered[0].prepared] == ["slow"]
    assert commits(queue) == []
    assert counts(queue)["pending"] == 4


def test_a_link_that_was_done_and_reported_as_failed_is_a_commit(tmp_path: Path) -> None:
    fs = Failing()
    queue = new_queue(tmp_path, fs=fs)
    fill(queue, 4)
    batch = taken(queue)
    batch.computed()
    batch.prepared("c", "0" * 64)
    fs.performed, fs.fails = True, lambda operation, path: path == queue.paths.commit(1)
    fs.fails = lambda operation, path: (operation, path) == ("link", queue.paths.commit(1))

    for code in (errno.EIO,):
        fs.code = code
        assert batch.commit().version == 1
    sound(queue, records=4)


def test_a_commit_of_which_nothing_is_known_may_be_made_again(tmp_path: Path) -> None:
    fs = Failing()
    queue = new_queue(tmp_path, fs=fs)
    fill(queue, 4)
    batch = taken(queue)
    batch.computed()
    batch.prepared("c", "0" * 64)
    fs.fails = lambda operation, path: (operation, path) == ("link", queue.paths.commit(1))

    with pytest.raises(CommitUnknownError):
        batch.commit({"loss": 1.0})
    assert batch.state is TransactionState.PREPARED
    fs.fails = lambda operation, path: False

    assert batch.commit({"loss": 2.0}).scalars == {"loss": 1.0}, "the very same commit"
    sound(queue, records=4)


def test_a_commit_of_which_nothing_is_known_may_turn_out_to_stand_when_it_is_undone(
    tmp_path: Path,
) -> None:
    fs = Failing()
    queue = new_queue(tmp_path, fs=fs)
    fill(queue, 4)
    batch = taken(queue)
    batch.computed()
    batch.prepared("c", "0" * 64)
    fs.performed = True
    fs.fails = lambda operation, path: path == queue.paths.commit(1)  # nor can it be read

    with pytest.raises(CommitUnknownError):
        batch.commit()
    fs.fails = lambda operation, path: False

    assert batch.undo("unknown").committed
    assert batch.state is TransactionState.COMMITTED
    sound(queue, records=4)


def test_a_full_disk_commits_nothing_until_there_is_room(tmp_path: Path) -> None:
    fs = Failing()
    fs.code = errno.ENOSPC
    queue = new_queue(tmp_path, fs=fs)
    fill(queue, 4)
    batch = taken(queue)
    batch.computed()
    fs.fails = lambda operation, path: operation == "create"
    with pytest.raises(OSError, match="No space"):
        batch.prepared("c", "0" * 64)
    fs.fails = lambda operation, path: False
    batch.prepared("c", "0" * 64)
    fs.fails = lambda operation, path: operation == "create"
    with pytest.raises(OSError, match="No space"):
        batch.commit()
    assert commits(queue) == []
    fs.fails = lambda operation, path: False

    assert batch.commit().version == 1
    sound(queue, records=4)


def test_a_torn_commit_that_was_never_linked_is_written_anew(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    batch = taken(queue)
    batch.computed()
    batch.prepared("c", "0" * 64)
    Path(queue.paths.claim_folder(str(batch.name)), "commit.json").write_bytes(b'{"sch')
    assert batch.commit().version == 1
    sound(queue, records=4)


def test_records_that_could_not_be_filed_are_filed_by_the_next_pass(tmp_path: Path) -> None:
    fs = Failing()
    fs.code = errno.EACCES
    queue = new_queue(tmp_path, fs=fs)
    fill(queue, 4)
    held = held_on(queue)
    batch = taken(queue, held=held)
    batch.computed()
    batch.prepared("c", "0" * 64)
    fs.fails = lambda operation, path: path.startswith(queue.paths.consumed)

    assert batch.commit().version == 1
    assert batch.left
    assert counts(queue)["claimed"] == 4
    fs.fails = lambda operation, path: False

    assert recover(queue, Ledger.load(queue), held).redone == (str(batch.name),)
    sound(queue, records=4)


def test_without_hard_links_a_commit_is_a_rename(tmp_path: Path) -> None:
    class NoLinks(QuickFS):
        def link(self, source: str, destination: str) -> None:
            raise OSError(errno.EPERM, "Operation not permitted", source)

    queue = new_queue(tmp_path)
    fill(queue, 8)
    mine = reopened(queue, NoLinks())
    ledger, held = Ledger.load(mine), held_on(mine)
    assert finish(taken(mine, ledger, held)).version == 1
    assert finish(taken(mine, ledger, held)).version == 2
    sound(queue, records=8)


def test_a_record_that_cannot_be_read_is_put_back_and_not_refused(tmp_path: Path) -> None:
    fs = Failing()
    queue = new_queue(tmp_path, fs=fs)
    names = fill(queue, 4)
    held, ledger = held_on(queue), Ledger.load(queue)
    fs.fails = lambda operation, path: (
        operation == "read" and ("/claimed/" in path and path.endswith(names[2]))
    )

    with pytest.raises(OSError, match="Input/output"):
        Transaction.open(queue, ledger, held)

    assert counts(queue) == {"pending": 3, "claimed": 1, "consumed": 0, "quarantine": 0}
    problems = recover(queue, ledger, held).problems
    assert len(problems) == 1
    fs.fails = lambda operation, path: False
    assert recover(queue, ledger, held).returned == 1
    finish(taken(queue, ledger, held))
    sound(queue, records=4)


def test_a_record_that_goes_away_before_it_is_claimed_costs_only_this_try(
    tmp_path: Path,
) -> None:
    queue = new_queue(tmp_path)
    names = fill(queue, 5)
    held, ledger = held_on(queue), Ledger.load(queue)

    def take_one(state: TransactionState) -> None:
        if state is TransactionState.OPEN:
            os.unlink(f"{queue.paths.pending}/{names[1]}")

    found = Transaction.open(queue, ledger, held, watch=take_one)

    assert isinstance(found, NotEnough)
    assert "1 went away before they were read" in found.why
    finish(taken(queue, ledger, held))
    assert counts(queue) == {"pending": 0, "claimed": 0, "consumed": 4, "quarantine": 0}


def test_a_record_that_cannot_be_seen_after_its_claim_leaves_no_smaller_batch(
    tmp_path: Path,
) -> None:
    class Ghost(QuickFS):
        told = False

        def read_with_facts(self, path: str) -> tuple[bytes, os.stat_result]:
            if "/claimed/" in path and not self.told:
                self.told = True
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return super().read_with_facts(path)

    queue = new_queue(tmp_path, group=2)
    for sequence in range(2):
        for sample in range(2):
            put(queue, record(sequence, sample=sample))
    mine = reopened(queue, Ghost())
    held = held_on(mine)

    found = Transaction.open(mine, Ledger.load(mine), held)

    assert isinstance(found, NotEnough)
    assert "1 went away" in found.why
    assert counts(queue)["pending"] == 4
    assert len(taken(mine, held=held).records) == 4


@pytest.mark.parametrize("where", ["look", "sync"])
def test_a_commit_that_stands_after_an_error_is_the_same_when_it_is_made_again(
    tmp_path: Path, where: str
) -> None:
    class Late(Failing):
        def sync_folder(self, path: str) -> None:
            self._fail("sync", path)

    fs = Late()
    queue = new_queue(tmp_path, fs=fs)
    fill(queue, 4)
    batch = taken(queue)
    batch.computed()
    batch.prepared("c", "0" * 64)
    fs.performed = where == "look"
    place = queue.paths.commit(1) if where == "look" else queue.paths.commits
    fs.fails = lambda operation, path: path == place

    with pytest.raises(CommitUnknownError):
        batch.commit()
    fs.fails = lambda operation, path: False

    assert batch.commit().version == 1
    sound(queue, records=4)
