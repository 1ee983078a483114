"""Records go back by hand only as training data, and only into room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.errors import UsageError
from fleetcraft.locks import LockHeldError
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.quarantine import list_refused, refuse
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Refusal, encode
from fleetcraft.rollouts.requeue import requeue, requeue_dead
from fleetcraft.rollouts.trainer import RolloutTrainer
from tests.rollouts.filling import counts, fill, finish, held_on, new_queue, put, record, taken


def set_aside(queue: RolloutQueue, sequence: int, **fields: object) -> str:
    """A record in quarantine, as a person may have put it there."""
    made = record(sequence, **fields)
    name = put(queue, made)
    path = f"{queue.paths.pending}/{name}"
    refused = refuse(
        queue, path, name, Refusal.REQUESTED, "set aside", token=f"t{sequence}", record=made
    )
    assert refused is not None
    return refused.name


def test_a_good_record_goes_back_and_its_reason_stays_to_be_read(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    name = set_aside(queue, 0)

    done = requeue(queue, [name])

    assert [each.name for each in done.requeued] == [name]
    assert counts(queue) == {"pending": 1, "claimed": 0, "consumed": 0, "quarantine": 0}
    assert list_refused(queue) == []
    (reason,) = os.listdir(queue.paths.quarantine)
    assert reason.endswith(".reason")
    assert os.listdir(queue.paths.reserved) == []
    fill(queue, 3, first=1)
    finish(taken(queue))


def test_all_of_one_reason_go_back_and_a_dry_run_moves_nothing(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    for sequence in range(3):
        set_aside(queue, sequence)
    assert len(requeue(queue, reasons=[Refusal.REQUESTED], dry_run=True).requeued) == 3
    assert counts(queue)["quarantine"] == 3
    assert requeue(queue, reasons=[Refusal.LAG]).requeued == ()
    assert len(requeue(queue, reasons=[Refusal.REQUESTED]).requeued) == 3
    assert counts(queue)["pending"] == 3


def test_what_is_no_training_data_stays_and_says_why(tmp_path: Path) -> None:
    queue = new_queue(tmp_path, max_lag=0)
    fill(queue, 4, first=10)
    finish(taken(queue))
    old = set_aside(queue, 0)
    copied = record(10, version=1)
    path = Path(queue.paths.quarantine, "v000001.s.00000010.000.requested.t.json")
    path.write_bytes(encode(copied))

    done = requeue(queue, [old, path.name])

    why = {each.name: each.why for each in done.refused}
    assert "1 versions behind" in why[old]
    assert "was trained on already" in why[path.name]
    assert counts(queue)["quarantine"] == 2


def test_the_loser_of_an_identity_never_takes_the_winners_place(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    put(queue, record(0))
    loser = Path(queue.paths.quarantine, "v000000.s.00000000.000.duplicate_identity.t.json")
    loser.write_bytes(encode(record(0, scalars={"reward": 9.0})))
    os.unlink(f"{queue.paths.pending}/{record(0).name}")

    (left,) = requeue(queue, [loser.name]).refused

    assert "bound to another record" in left.why


def test_nothing_goes_back_above_the_high_water(tmp_path: Path) -> None:
    queue = new_queue(tmp_path, high_water=8)
    names = [set_aside(queue, sequence) for sequence in range(3)]
    fill(queue, 6, first=10)

    done = requeue(queue, names)

    assert len(done.requeued) == 2
    assert "no room: at most 8" in done.refused[0].why
    assert counts(queue)["pending"] == 8
    assert os.listdir(queue.paths.reserved) == []


def test_a_name_that_is_not_in_quarantine_moves_nothing(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    name = set_aside(queue, 0)
    with pytest.raises(UsageError, match="not in quarantine: nobody.json; nothing was moved"):
        requeue(queue, [name, "nobody.json"])
    assert counts(queue)["quarantine"] == 1


def test_a_dead_trainers_batch_goes_back_and_a_living_ones_does_not(tmp_path: Path) -> None:
    queue = new_queue(tmp_path)
    fill(queue, 4)
    held = held_on(queue)
    batch = taken(queue, Ledger.load(queue), held)

    foreseen = requeue_dead(queue, dry_run=True)
    assert foreseen.recovered is not None
    assert foreseen.recovered.undone == (str(batch.name),)
    with pytest.raises(LockHeldError):
        requeue_dead(queue)
    assert counts(queue)["claimed"] == 4

    held.release()
    done = requeue_dead(queue)
    assert done.recovered is not None
    assert (done.recovered.undone, done.recovered.returned) == ((str(batch.name),), 4)
    with RolloutTrainer(queue) as trainer:
        assert trainer.recovered.nothing
