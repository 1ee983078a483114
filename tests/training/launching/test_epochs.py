"""Epochs: each number is published once, whatever the file system reports."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from fleetcraft.errors import DataError
from fleetcraft.files import FileSystem
from fleetcraft.training.launching.adoption import find_live
from fleetcraft.training.launching.epochs import Epochs
from fleetcraft.training.launching.sights import Answer, Whole
from fleetcraft.training.launching.start import launch
from fleetcraft.training.launching.stop import stop
from fleetcraft.training.records import Epoch, StopResult
from tests.training.launching.harness import Faulty, Killed, Run


def other(epoch: Epoch) -> Epoch:
    return msgspec.structs.replace(epoch, nonce="another2", generation=2)


def test_an_epoch_is_read_back_as_it_was_published(run: Run) -> None:
    first, second = run.epoch(("a",)), run.epoch(("b", "c"))
    epochs = Epochs(run.paths)
    assert epochs.all() == (first, second)
    assert epochs.latest() == second
    assert (epochs.get(1), epochs.get(3)) == (first, None)
    assert epochs.next_number() == 3


def test_a_number_belongs_to_one_epoch(run: Run) -> None:
    first = run.epoch(("a",))
    assert Epochs(run.paths).publish(first), "the same content is its own"
    assert not Epochs(run.paths).publish(other(first))
    assert Epochs(run.paths).all() == (first,)


def test_a_run_without_epochs_begins_with_one(run: Run) -> None:
    epochs = Epochs(run.paths)
    assert (epochs.latest(), epochs.next_number(), epochs.last_healthy()) == (None, 1, None)


def test_the_last_healthy_epoch_is_the_last_that_was_marked(run: Run) -> None:
    first = run.epoch(("a",))
    run.epoch(("b",))
    epochs = Epochs(run.paths)
    assert epochs.mark_healthy(1, generation=4, facts={"tokens_per_s": 6900.0})
    assert epochs.last_healthy() == first
    noted = epochs.healthy(1)
    assert noted is not None
    assert (noted.generation, noted.facts) == (4, {"tokens_per_s": 6900.0})
    assert epochs.healthy(2) is None
    assert not epochs.mark_healthy(1, generation=5), "the first note stays"


def test_files_of_other_names_are_no_epochs(run: Run) -> None:
    run.epoch(("a",))
    for name in ("7.json", "000002.json.abc.tmp", "000003.healthy.json.abc.tmp", "notes"):
        Path(run.paths.epochs, name).write_text("{")
    assert Epochs(run.paths).numbers() == (1,)


def test_a_torn_epoch_is_an_error_and_its_number_stays_taken(run: Run) -> None:
    Path(run.paths.epoch(1)).write_text('{"schema": "fleetcraft.tr')
    epochs = Epochs(run.paths)
    with pytest.raises(DataError, match="nothing was launched or adopted"):
        epochs.latest()
    assert epochs.next_number() == 2


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_epochs_that_cannot_be_listed_are_not_absent(run: Run, code: int) -> None:
    class Failing(FileSystem):
        def listdir(self, path: str) -> list[str]:
            raise OSError(code, os.strerror(code), path)

    with pytest.raises(OSError, match=os.strerror(code)):
        Epochs(run.paths, Failing()).next_number()


def test_a_kill_at_any_operation_leaves_an_epoch_whole_or_absent(run: Run) -> None:
    first = run.epoch(("a",))
    for cut in range(1, 50):
        epoch = msgspec.structs.replace(first, number=cut + 1)
        fs = Faulty(cut, Killed)
        try:
            Epochs(run.paths, fs).publish(epoch)
        except Killed:
            assert Epochs(run.paths).get(epoch.number) in (None, epoch)
            assert Epochs(run.paths).publish(epoch), "the next supervisor can go on"
        else:
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("performed", [True, False], ids=["performed", "not performed"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_an_operation_that_fails_publishes_the_epoch_or_says_that_it_is_not_known(
    run: Run, code: int, performed: bool
) -> None:
    first = run.epoch(("a",))
    for cut in range(1, 50):
        epoch = msgspec.structs.replace(first, number=cut + 1)
        fs = Faulty(cut, lambda: OSError(code, os.strerror(code)), performed=performed)
        try:
            assert Epochs(run.paths, fs).publish(epoch)
        except OSError:
            assert Epochs(run.paths).get(epoch.number) in (None, epoch)
        else:
            assert Epochs(run.paths).get(epoch.number) == epoch
        assert not Epochs(run.paths).publish(other(epoch)) or (
            Epochs(run.paths).get(epoch.number) == other(epoch)
        )
        if fs.count < cut:
            return
    raise AssertionError("it never came to an end")


def test_a_kill_at_any_operation_of_a_launch_leaves_nothing_that_could_begin(run: Run) -> None:
    plan = run.plan("bash", "-c", "true")
    for cut in range(1, 60):
        epoch = run.epoch(plan.command)
        paths = run.paths.attempt(epoch.number)
        fs = Faulty(cut, Killed)
        try:
            run.launches.append(launch(paths, plan, epoch, environment={}, fs=fs))
        except Killed:
            found = find_live(run.paths, moved=lambda: False, patience_s=0.0)
            if found.launch is not None:  # killed right after the keeper was started
                assert (found.answer, found.alive) == (Answer.UNKNOWN, True), found.why
                assert stop(found.launch, grace_s=0.0).result is StopResult.REAPED
                found = find_live(run.paths, moved=lambda: False, patience_s=0.0)
            assert found.answer is Answer.DEAD, found.why
        else:
            fs.disarm()
            assert run.ended(run.launches[-1]).whole is Whole.ENDED
            return
    raise AssertionError("it never came to an end")
