"""Deletion: only behind an EXACT checkpoint that is verified and went on, and at no moment less."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from fleetcraft.errors import UsageError
from fleetcraft.layout.checkpoints import CONTINUED
from fleetcraft.locks import GenerationLock, LockHeldError, LockLostError
from fleetcraft.training.checkpoint.kinds import PLAIN_RUN
from fleetcraft.training.checkpoint.records import Kind, Level, Part
from fleetcraft.training.checkpoint.store import CheckpointStore
from tests.training.checkpoint.stores import Crash, Interrupted, copies, fill, os_error, save


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def steps(store: CheckpointStore) -> list[int]:
    return [manifest.step for manifest in store.committed()]


def test_the_newest_that_went_on_is_the_anchor_and_older_ones_go(store: CheckpointStore) -> None:
    for step in range(1, 6):
        save(store, step)
    done = store.retire(keep=1)
    assert (done.steps, done.anchor) == ((1, 2, 3), 4)
    assert done.why == "1 more stay: they are not before step 4"
    assert steps(store) == [4, 5]
    records = [name for name in os.listdir(store.paths.retired) if name.endswith(".json")]
    assert len(records) == 3
    note = json.loads(Path(store.paths.retired, records[0]).read_text())
    assert (note["anchor"], note["why"]) == (4, "retired")
    assert len(os.listdir(store.paths.retired)) == 3  # the records alone


def test_keep_counts_the_newest(store: CheckpointStore) -> None:
    for step in range(1, 6):
        save(store, step)
    assert store.retire(keep=4).steps == (1,)
    assert store.retire(keep=4).why == "there are 4, and 4 stay"
    with pytest.raises(UsageError, match="at least one"):
        store.retire(keep=0)


def test_a_dry_run_deletes_nothing_and_says_what_would_go(store: CheckpointStore) -> None:
    for step in range(1, 5):
        save(store, step)
    assert store.retire(keep=1, dry_run=True).steps == (1, 2)
    assert steps(store) == [1, 2, 3, 4]


def test_nothing_is_deleted_before_a_later_step_went_on(store: CheckpointStore) -> None:
    for step in (1, 2):
        save(CheckpointStore(store.paths.folder), step)  # processes that never went on
    done = store.retire(keep=1)
    assert (done.steps, done.anchor) == ((), None)
    assert "no later EXACT checkpoint" in done.why
    assert steps(store) == [1, 2]


def test_weights_are_no_anchor(store: CheckpointStore) -> None:
    save(store, 1)
    for step in (2, 3, 4):
        assert save(store, step, but=Part.OPTIMIZER).kind is Kind.WEIGHTS
    assert store.retire(keep=1).steps == ()
    assert store.newest(Kind.EXACT) is not None


def test_a_save_that_is_being_written_anchors_nothing_and_is_not_touched(
    store: CheckpointStore,
) -> None:
    save(store, 1)
    writing = store.save(2, protocol=PLAIN_RUN)
    fill(writing)
    writing.done()
    assert store.retire(keep=1).steps == ()
    writing.commit()
    assert store.retire(keep=1).steps == ()
    assert steps(store) == [1, 2]


def test_an_anchor_whose_hashes_do_not_hold_is_passed_over(store: CheckpointStore) -> None:
    manifests = {step: save(store, step) for step in range(1, 6)}
    shard = Path(manifests[4].folder, manifests[4].files[0].path)
    shard.write_bytes(b"?" * shard.stat().st_size)
    assert store.retire(keep=1).anchor == 3
    assert steps(store) == [3, 4, 5]


def test_an_anchor_that_cannot_be_read_is_none(store: CheckpointStore) -> None:
    for step in range(1, 4):
        save(store, step)

    def unreadable(path: str) -> tuple[int, str]:
        raise OSError(errno.EIO, "Input/output error")

    assert CheckpointStore(store.paths.folder, digest=unreadable).retire(keep=1).steps == ()
    assert steps(store) == [1, 2, 3]


def test_one_component_retires_at_a_time(store: CheckpointStore) -> None:
    for step in range(1, 5):
        save(store, step)
    lock = GenerationLock(store.paths.owner, purpose="retention", interval_s=0.1)
    held = lock.acquire()
    with pytest.raises(LockHeldError):
        store.retire(keep=1)
    assert steps(store) == [1, 2, 3, 4]
    assert store.retire(keep=1, held=held).steps == (1, 2)


def test_an_owner_that_was_followed_deletes_nothing_more(store: CheckpointStore) -> None:
    for step in range(1, 5):
        save(store, step)
    lock = GenerationLock(store.paths.owner, purpose="retention", interval_s=0.1)
    held = lock.acquire()
    held.release()
    lock.acquire()
    with pytest.raises(LockLostError):
        store.retire(keep=1, held=held)
    assert steps(store) == [1, 2, 3, 4]


def test_two_components_with_their_own_ideas_never_leave_less_than_one(
    store: CheckpointStore,
) -> None:
    other = CheckpointStore(store.paths.folder)
    for step in range(1, 9):
        save(store, step)
        other.retire(keep=1)
        store.retire(keep=2)
        assert other.newest(Kind.EXACT, Level.HASHES) is not None
        if step > 1:
            assert other.newest(Kind.EXACT, Level.CONTINUED) is not None


def test_a_kill_at_any_file_operation_keeps_a_verified_exact_checkpoint_and_is_completed(
    tmp_path: Path,
) -> None:
    template = tmp_path / "template"
    _four(template)
    owner = tmp_path / "lock"  # of its own: a dead process would hold that of the folder
    owner.mkdir(mode=0o700)
    held = GenerationLock(str(owner), purpose="retention").acquire()
    with copies() as copy:
        counted = Interrupted()
        CheckpointStore(copy(template), fs=counted).retire(keep=1, held=held)
        assert counted.count > 50
        for at in range(counted.count):
            store = CheckpointStore(copy(template))
            fs = Interrupted(at, performed=at % 2 == 0)
            with pytest.raises(Crash):
                CheckpointStore(store.paths.folder, fs=fs).retire(keep=1, held=held)
            anchor = store.newest(Kind.EXACT, Level.CONTINUED)
            assert anchor is not None
            assert anchor.step == 3
            store.retire(keep=1, held=held)
            assert steps(store) == [3, 4]
            assert not store.look().retiring
            assert not store.look().faults


@pytest.mark.parametrize("operation", ["rename_new", "unlink", "remove_folder"])
def test_a_deletion_that_is_reported_as_failed_is_completed_by_the_next_call(
    tmp_path: Path, operation: str
) -> None:
    for at in range(3):
        folder = tmp_path / f"at-{at}"
        _four(folder)
        fs = Interrupted(at, os_error(errno.EIO), performed=True, only=operation)
        try:
            CheckpointStore(folder, fs=fs).retire(keep=1)
        except OSError:
            assert operation != "rename_new"
        store = CheckpointStore(folder)
        store.retire(keep=1)
        assert steps(store) == [3, 4]
        assert not store.look().retiring


def _four(folder: Path) -> None:
    store = CheckpointStore(folder)
    for step in range(1, 5):
        save(store, step)
    assert os.path.exists(f"{store.paths.step(3)}/{CONTINUED}")


def test_a_save_that_was_overtaken_at_its_step_goes_and_one_that_may_still_come_stays(
    store: CheckpointStore,
) -> None:
    killed = store.save(2)
    fill(killed)
    running = store.save(9)
    broken = save(store, 5)
    again = store.save(5)
    Path(broken.folder, broken.files[0].path).unlink()
    for step in (2, 3, 4):
        save(store, step)

    assert store.retire(keep=2, dry_run=True).abandoned == 1
    assert os.path.isdir(killed.folder)
    retired = store.retire(keep=2)

    assert (retired.steps, retired.abandoned) == ((2,), 1)
    assert [pending.path for pending in store.look().pending] == [again.folder, running.folder]
    assert steps(store) == [3, 4, 5]


def test_a_save_that_is_published_while_it_is_looked_at_is_no_error(
    store: CheckpointStore,
) -> None:
    killed = store.save(2, generation=1)
    fill(killed)
    assert store.clear_abandoned(2, check=lambda: shutil.rmtree(killed.folder)) == 0
