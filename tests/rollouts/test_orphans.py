"""Pieces of groups that nobody completes: they wait while there is room, and never for ever.

Not here: which records make a batch (`test_selection`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetcraft.locks import Judge
from fleetcraft.rollouts.audit import audit
from fleetcraft.rollouts.quarantine import list_refused, read_reason
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Refusal
from fleetcraft.rollouts.requeue import requeue
from fleetcraft.rollouts.trainer import RolloutTrainer
from tests.rollouts.filling import counts, new_queue, put, record
from tests.rollouts.producing import gone, lease_of, unknown


def queue_of_pieces(folder: Path, streams: int, *, held: Judge | None = None) -> RolloutQueue:
    """Half a group of each stream; their leases were never taken, or are held by this process."""
    queue = new_queue(folder, batch=4, group=4, low_water=4, high_water=8)
    for number in range(streams):
        if held is not None:
            lease_of(queue, f"s{number}")
        piece(queue, f"s{number}")
    return queue


def piece(queue: RolloutQueue, stream: str, sequence: int = 0, samples: int = 2) -> None:
    for sample in range(samples):
        group = f"{stream}.{sequence:08d}.000"
        put(queue, record(sequence, stream=stream, sample=sample, group=group))


def train(queue: RolloutQueue, judge: Judge = gone) -> RolloutTrainer:
    with RolloutTrainer(queue, judge=judge) as trainer:
        for batch in trainer.batches(patience_s=0):
            batch.commit("step", "0" * 64)
    return trainer


def test_pieces_of_dead_producers_that_hold_all_room_are_put_aside_until_a_batch_fits(
    tmp_path: Path,
) -> None:
    queue = queue_of_pieces(tmp_path, 4)
    assert queue.counts().pending == queue.settings.high_water

    train(queue)

    assert queue.counts().pending + queue.settings.batch <= queue.settings.high_water
    refused = list_refused(queue)
    assert [each.refusal for each in refused] == [Refusal.INCOMPLETE_GROUP] * 4
    reason = read_reason(queue, refused[0])
    assert reason is not None
    assert "has 2 of 4 records, nobody adds to it" in reason.why
    assert audit(queue).ok
    for number in range(4):
        for sample in (2, 3):
            put(
                queue,
                record(0, stream=f"s{number}", sample=sample, group=f"s{number}.00000000.000"),
            )
    os.listdir(queue.paths.pending)
    assert train(queue).ledger.version == 2, "what was left became whole and was trained on"


def test_pieces_that_leave_room_for_a_batch_wait(tmp_path: Path) -> None:
    queue = queue_of_pieces(tmp_path, 2)
    piece(queue, "s9", samples=0)
    train(queue)
    assert counts(queue)["pending"] == 4
    assert list_refused(queue) == []


@pytest.mark.parametrize("judge", [unknown, lambda holder: True])
def test_pieces_whose_holder_lives_or_is_not_known_stay(tmp_path: Path, judge: Judge) -> None:
    queue = queue_of_pieces(tmp_path, 4, held=judge)
    train(queue, judge)
    assert list_refused(queue) == []
    train(queue, gone)
    assert len(list_refused(queue)) == 4


def test_a_living_stream_that_has_gone_past_a_piece_adds_nothing_to_it(tmp_path: Path) -> None:
    queue = queue_of_pieces(tmp_path, 4, held=unknown)
    Path(queue.paths.ident_file("s0", 1, 0)).touch()
    Path(queue.paths.ident_file("s1", 1, 0)).touch()
    Path(queue.paths.reserved, "s1.00000000.002.1").touch()

    train(queue, unknown)

    assert {each.file.split(".")[1] for each in list_refused(queue)} == {"s0"}


def test_what_was_put_aside_can_be_put_back(tmp_path: Path) -> None:
    queue = queue_of_pieces(tmp_path, 4)
    train(queue)
    back = requeue(queue, reasons=[Refusal.INCOMPLETE_GROUP])
    assert len(back.requeued) == 4
    assert audit(queue).ok
