"""The incident of the duplicate stream: two workers replayed the prompts of one seed.

Each of the three nets is shown by itself: the lease, the identity at publish, and the audit of the
batch. Source of the numbers: the first seed document, "The duplicate-stream incident".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetcraft.locks import LockHeldError
from fleetcraft.rollouts.accounts import rolled_back
from fleetcraft.rollouts.admission import Admission, Reservation
from fleetcraft.rollouts.audit import audit
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.publishing import Duplicate, Published, publish
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import PhysicalSlot, Record, Refusal, Settings, seal
from fleetcraft.rollouts.streams import StreamLease
from fleetcraft.rollouts.trainer import RolloutTrainer
from fleetcraft.rollouts.transaction.batch import Transaction
from fleetcraft.rollouts.transaction.selection import NotEnough
from tests.rollouts.filling import QuickFS, commits, counts, held_on, put, record, sound

SETTINGS = Settings(run="r", lock_interval_s=0.05)
FIRST = PhysicalSlot(host="c1", device_uuid="GPU-aaaa")
SECOND = PhysicalSlot(host="c1", device_uuid="GPU-bbbb")
FAILED_ALLOCATION_GPU_S = 9309.0


def lease(queue: RolloutQueue, slot: PhysicalSlot) -> StreamLease:
    return StreamLease.acquire(queue, "seed6", slot=slot)


def made_by(holder: StreamLease, sequence: int, reward: float) -> Record:
    return seal(
        record(
            sequence, stream="seed6", slot=holder.slot, logical_device="cuda:0",
            lease_generation=holder.generation, lease_nonce=holder.nonce,
            scalars={"reward": reward},
        )
    )  # fmt: skip


def room(queue: RolloutQueue, holder: StreamLease, sequence: int) -> Reservation:
    reserved = Admission(queue, holder).reserve(sequence, [0])
    assert isinstance(reserved, Reservation), reserved
    return reserved


def test_a_second_worker_on_another_device_stops_before_its_first_prompt(tmp_path: Path) -> None:
    queue = RolloutQueue.create(f"{tmp_path}/q", SETTINGS, fs=QuickFS())
    lease(queue, FIRST)
    with pytest.raises(LockHeldError) as caught:
        lease(queue, SECOND)
    assert caught.value.exit_code == 75


def test_a_second_worker_that_was_forced_is_refused_at_publish(tmp_path: Path) -> None:
    queue = RolloutQueue.create(f"{tmp_path}/q", SETTINGS, fs=QuickFS())
    first = lease(queue, FIRST)
    published = publish(queue, made_by(first, 0, reward=0.1), room(queue, first, 0))
    assert isinstance(published, Published)
    first.release()
    forced = lease(queue, SECOND)

    again = publish(queue, made_by(forced, 0, reward=0.2), room(queue, forced, 0))

    assert isinstance(again, Duplicate)
    assert again.refusal is Refusal.DUPLICATE_IDENTITY
    assert counts(queue) == {"pending": 1, "claimed": 0, "consumed": 0, "quarantine": 1}


def force(queue: RolloutQueue, sequence: int) -> None:
    """A second record of one identity, past lease and identity: under a name that lies."""
    twin = record(sequence, stream="seed6", slot=SECOND, scalars={"reward": 0.9})
    put(queue, twin, name=f"v000000.seed6-b.{sequence:08d}.000.json")


def test_six_duplicates_are_quarantined_and_version_one_is_made_of_64_audited_records(
    tmp_path: Path,
) -> None:
    queue = RolloutQueue.create(f"{tmp_path}/q", SETTINGS, fs=QuickFS())
    for stream in ("seed5", "seed6", "seed7"):
        for sequence in range(30):
            put(queue, record(sequence, stream=stream))
    for sequence in (2, 3, 5):
        force(queue, sequence)
    assert counts(queue)["pending"] == 93
    held, ledger = held_on(queue), Ledger.load(queue)

    failed = Transaction.open(queue, ledger, held, gpus=1.0, clock=Clock())

    assert isinstance(failed, NotEnough)
    assert [each.refusal for each in failed.refused] == [Refusal.DUPLICATE_IN_BATCH] * 3
    assert (commits(queue), counts(queue)["pending"]) == ([], 90)
    (cost,) = rolled_back(queue)
    assert cost.gpu_s == FAILED_ALLOCATION_GPU_S
    held.release()

    with RolloutTrainer(queue) as trainer:
        batch = next(trainer.batches(patience_s=0))
        assert len({each.identity for each in batch.records}) == 64
        assert {each.version for each in batch.records} == {0}
        batch.commit("step-1", "1" * 64)
        for sequence in (0, 7, 9):  # three more, of what is consumed by now
            force(queue, sequence)
        for sequence in range(30, 65):
            put(queue, record(sequence, stream="seed5", version=1))
        for second in trainer.batches(patience_s=0, limit=1):
            second.commit("step-2", "2" * 64)

    found = audit(queue)
    assert found.ok, found.problems
    assert found.quarantined == {
        Refusal.DUPLICATE_IN_BATCH: 3,
        Refusal.DUPLICATE_OF_CONSUMED: 3,
    }
    assert (found.duplicates, found.trained_twice) == (0, 0)
    assert found.rolled_back_gpu_s >= FAILED_ALLOCATION_GPU_S
    version_zero = {
        member.identity
        for commit in commits(queue)
        for member in commit.members
        if member.name.startswith("v000000.")
    }
    assert len(version_zero) <= 90
    sound(queue, records=93 + 3 + 35)


class Clock:
    """A clock by which the audit found the duplicates after the allocation had cost so much."""

    def __init__(self) -> None:
        self._reads = 0

    def __call__(self) -> float:
        self._reads += 1
        return 0.0 if self._reads == 1 else FAILED_ALLOCATION_GPU_S
