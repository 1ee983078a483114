"""A trajectory queue as a state machine: producers, a trainer, and a model of every record.

Streams are opened, lost and taken over; room is reserved and given back; records are published,
again and otherwise; trainers claim, commit, put back and die; records fall behind, are refused and
requeued; ABORT comes and goes. Invariant, after each step: every record that a producer was told is
published lies in exactly one place, nothing was trained on twice, and the water mark holds.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fleetcraft.errors import TryAgainLaterError
from fleetcraft.locks import Held, Holder, LockHeldError, LockLostError
from fleetcraft.rollouts.abort import abort_stands, ask_abort, clear_abort
from fleetcraft.rollouts.admission import (
    Admission,
    Reservation,
    Throttled,
    release_dead,
    release_older,
)
from fleetcraft.rollouts.audit import audit
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.publishing import Duplicate, Published, finish_half_published, publish
from fleetcraft.rollouts.quarantine import count_refused, list_refused
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import PhysicalSlot, Record, Refusal, Settings
from fleetcraft.rollouts.recovery import recover
from fleetcraft.rollouts.requeue import requeue
from fleetcraft.rollouts.streams import StreamLease
from fleetcraft.rollouts.trainer import trainer_lock
from fleetcraft.rollouts.transaction.batch import Transaction
from fleetcraft.rollouts.transaction.refusing import CommitConflictError, TransactionError
from fleetcraft.rollouts.transaction.selection import NotEnough
from tests.fuzz import folders
from tests.quick_fs import QuickFS
from tests.rollouts.producing import OwnClock

SETTINGS = Settings(
    run="r",
    batch=2,
    group=1,
    high_water=8,
    low_water=4,
    max_lag=2,
    lock_interval_s=0.05,
    beat_s=0.05,
    fresh_s=0.5,
)
STREAMS = ("seed6", "seed7")
SLOT = PhysicalSlot(host="c1", device_uuid="GPU-1")
_streams = st.sampled_from(STREAMS)
_late = st.sampled_from([False] * 5 + [True])
"""Whether one acts that was followed, and does not know it."""


@dataclass
class Worker:
    """A producer as the model has it: its lease, its room, and whether it was followed."""

    lease: StreamLease
    admission: Admission
    next: int
    room: Reservation | None = None
    lost: bool = False


@dataclass
class Trainer:
    """The trainer's lock and what is open under it."""

    held: Held
    ledger: Ledger
    batch: Transaction | None = None
    lost: bool = False


class RolloutMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = RolloutQueue.create(f"{folders.fresh('queue')}/q", SETTINGS, fs=QuickFS())
        self.workers: dict[str, Worker] = {}
        self.late: list[Worker] = []
        self.trainer: Trainer | None = None
        self.late_trainers: list[Trainer] = []
        self.living: set[str] = set()
        self.told: dict[tuple[str, int, int], Record] = {}
        self.refused_at_once = 0
        self.trained: list[set[tuple[str, int, int]]] = []
        self.aborted = False
        self.last: tuple[str, Record] | None = None

    @initialize(
        makes=st.lists(st.tuples(_streams, st.integers(1, 2)), max_size=4), trains=st.booleans()
    )
    def some_are_there_already(self, makes: list[tuple[str, int]], trains: bool) -> None:
        for stream in STREAMS:
            self.opens_a_stream(stream)
        for stream, samples in makes:
            self.reserves(stream, False, samples)
            for _ in range(samples):
                self.publishes(stream, False, 0.5, 0)
        if trains:
            self.a_trainer_comes()

    def _judge(self, holder: Holder) -> bool | None:
        return holder.nonce in self.living

    def _ways(self) -> dict[str, Any]:
        clock = OwnClock()
        return {"judge": self._judge, "clock": clock, "sleep": clock.sleep}

    @property
    def version(self) -> int:
        return len(self.trained)

    # -- producers

    # Few rules with many ways each: hypothesis leaves out whole rules at random.
    @rule(
        stream=_streams,
        late=_late,
        samples=st.integers(1, 2),
        behind=st.integers(0, 3),
        reward=st.sampled_from([0.5, 0.5, 1.0, float("nan")]),
        act=st.sampled_from(
            ["open"] * 3 + ["make"] * 6 + ["reserve", "publish", "again", "other", "die", "leave"]
        ),
    )
    def a_producer_acts(  # noqa: PLR0917 - what hypothesis draws comes by name
        self, stream: str, late: bool, samples: int, behind: int, reward: float, act: str
    ) -> None:
        match act:
            case "open":
                self.opens_a_stream(stream)
            case "make":
                self.reserves(stream, late, samples)
                for _ in range(samples):
                    self.publishes(stream, late, reward, behind)
            case "reserve":
                self.reserves(stream, late, samples)
            case "publish":
                self.publishes(stream, late, reward, behind)
            case "again" | "other":
                self.publishes_again(stream, act == "other")
            case "die":
                self.a_producer_dies(stream)
            case "leave":
                self.a_producer_leaves(stream)

    def opens_a_stream(self, stream: str) -> None:
        known = self.workers.get(stream)
        lives = known is not None and known.lease.nonce in self.living
        try:
            lease = StreamLease.acquire(self.queue, stream, slot=SLOT, **self._ways())
        except LockHeldError:
            assert lives, f"stream {stream} was to be had"
            return
        assert not lives, f"stream {stream} was taken from a living producer"
        self.living.add(lease.nonce)
        if known is not None:
            known.lost = True
            self.late.append(known)
        admission = Admission(self.queue, lease)
        done = finish_half_published(self.queue, lease, admission)
        assert (done.refused, done.torn) == (0, 0), f"what was left in tmp: {done}"
        release_older(self.queue, lease)
        numbers = [sequence for one, sequence, _ in self.told if one == stream]
        self.workers[stream] = Worker(lease, admission, max(numbers, default=-1) + 1)

    def a_producer_dies(self, stream: str) -> None:
        """Or it is cut off, and goes on later as if nothing had happened."""
        if worker := self.workers.get(stream):
            self.living.discard(worker.lease.nonce)

    def a_producer_leaves(self, stream: str) -> None:
        worker = self.workers.pop(stream, None)
        if worker is not None:
            if worker.room is not None:
                worker.room.release()
            self.living.discard(worker.lease.nonce)
            worker.lease.release()

    def _worker(self, stream: str, late: bool) -> Worker | None:
        if late:
            return self.late[-1] if self.late else None
        return self.workers.get(stream)

    def reserves(self, stream: str, late: bool, samples: int) -> None:
        worker = self._worker(stream, late)
        if worker is None or worker.room is not None:
            return
        taken = self._waiting() + self._claimed()
        try:
            found = worker.admission.reserve(worker.next, range(samples))
        except LockLostError:
            assert worker.lost, "the stream was said to be lost"
            return
        assert not worker.lost, "room was given to a producer that was followed"
        if isinstance(found, Throttled):
            low = taken < SETTINGS.low_water and taken + samples <= SETTINGS.high_water
            assert not low, f"throttled with {taken} records"
            return
        assert taken + samples <= SETTINGS.high_water, f"room was given with {taken} records"
        worker.room = found

    def _waiting(self) -> int:
        return len(self.queue.names(self.queue.paths.pending)) + self.queue.counts().reserved

    def _claimed(self) -> int:
        return sum(len(names) for _, names in self.queue.claims())

    def publishes(self, stream: str, late: bool, reward: float, behind: int) -> None:
        worker = self._worker(stream, late)
        if worker is None or worker.room is None or not worker.room.samples:
            return
        sample = worker.room.samples[0]
        record = self._record(worker, worker.room.sequence, sample, reward, behind)
        try:
            outcome = publish(self.queue, record, worker.room)
        except LockLostError:
            assert worker.lost, "the stream was said to be lost"
            return
        assert not worker.lost, "a producer that was followed has published"
        place = (record.stream, record.sequence, record.sample)
        if isinstance(outcome, Duplicate):
            assert math.isnan(reward) or place in self.told, outcome.why
            self.told.setdefault(place, outcome.record)
            self.refused_at_once += 1
        else:
            assert isinstance(outcome, Published)
            assert not math.isnan(reward), "a number that is none was published"
            assert place not in self.told, f"{place} was published twice"
            self.told[place] = outcome.record
        if not worker.room.samples:
            worker.room, worker.next = None, worker.next + 1

    def _record(
        self, worker: Worker, sequence: int, sample: int, reward: float, behind: int
    ) -> Record:
        return Record(
            run="r",
            stream=worker.lease.stream,
            sequence=sequence,
            sample=sample,
            group=f"{worker.lease.stream}.{sequence}.{sample}",
            version=max(0, self.version - behind),
            slot=SLOT,
            lease_generation=worker.lease.generation,
            lease_nonce=worker.lease.nonce,
            scalars={"reward": reward},
        )

    def publishes_again(self, stream: str, otherwise: bool) -> None:
        """The very same record again is the same; another one of its identity is a duplicate."""
        worker = self.workers.get(stream)
        mine = [r for (s, _, _), r in self.told.items() if s == stream]
        if worker is None or worker.lost or worker.room is not None or not mine:
            return
        before = mine[-1]
        if (
            before.lease_nonce != worker.lease.nonce
            or before.scalars["reward"] != before.scalars["reward"]
        ):
            return
        room = worker.admission.reserve(before.sequence, [before.sample])
        if isinstance(room, Throttled):
            return
        scalars = {"reward": 7.25} if otherwise else before.scalars
        again = Record(**{**_fields(before), "scalars": scalars, "digest": ""})
        outcome = publish(self.queue, again, room)
        assert isinstance(outcome, Duplicate) is otherwise
        if otherwise:
            self.refused_at_once += 1

    def reservations_of_the_dead_are_released(self) -> None:
        release_dead(self.queue, judge=self._judge)
        for worker in self.workers.values():
            if worker.lease.nonce not in self.living and worker.room is not None:
                worker.room = None
                worker.lost = worker.lost or False
        for stream in [s for s, w in self.workers.items() if w.lease.nonce not in self.living]:
            # It may still publish what it holds; without room it must reserve first.
            self.workers[stream].room = None

    # -- the trainer

    @rule(
        late=_late,
        act=st.sampled_from(
            ["come"] * 2 + ["step"] * 4 + ["take", "commit", "undo", "die", "crash"]
        ),
    )
    def a_trainer_acts(self, late: bool, act: str) -> None:
        match act:
            case "come":
                self.a_trainer_comes()
            case "step":
                self.takes_a_batch(late)
                self.ends_a_batch(late, True)
            case "take":
                self.takes_a_batch(late)
            case "commit" | "undo":
                self.ends_a_batch(late, act == "commit")
            case "die":
                self.the_trainer_dies()
            case "crash":
                self.the_trainer_crashes_with_a_batch()

    def a_trainer_comes(self) -> None:
        known = self.trainer
        lives = known is not None and known.held.holder.nonce in self.living
        try:
            held = trainer_lock(self.queue, **self._ways()).acquire()
        except LockHeldError:
            assert lives, "the trainer's lock was to be had"
            return
        assert not lives, "the lock was taken from a living trainer"
        self.living.add(held.holder.nonce)
        if known is not None:
            known.lost = True
            self.late_trainers.append(known)
        ledger = Ledger.load(self.queue)
        assert ledger.version == self.version
        found = recover(self.queue, ledger, held, judge=self._judge)
        assert not found.problems, found.problems
        self._forget_rooms_of_the_dead()
        self.trainer = Trainer(held, ledger)

    def _forget_rooms_of_the_dead(self) -> None:
        for worker in self.workers.values():
            if worker.lease.nonce not in self.living:
                worker.room = None

    def the_trainer_dies(self) -> None:
        if self.trainer is not None:
            self.living.discard(self.trainer.held.holder.nonce)

    def takes_a_batch(self, late: bool) -> None:
        trainer = self._trainer(late)
        if trainer is None or trainer.batch is not None:
            return
        waiting = len(self.queue.names(self.queue.paths.pending))
        try:
            found = Transaction.open(self.queue, trainer.ledger, trainer.held, gpus=1.0)
        except LockLostError:
            assert trainer.lost
            return
        assert not trainer.lost, "a trainer that was followed took a batch"
        if isinstance(found, NotEnough):
            assert waiting < SETTINGS.batch or found.refused or found.transaction, found.why
            return
        assert len(found.records) == SETTINGS.batch
        trainer.batch = found

    def _trainer(self, late: bool) -> Trainer | None:
        if late:
            return self.late_trainers[-1] if self.late_trainers else None
        return self.trainer

    def ends_a_batch(self, late: bool, commits: bool) -> None:
        trainer = self._trainer(late)
        if trainer is None or trainer.batch is None:
            return
        batch, trainer.batch = trainer.batch, None
        try:
            if commits:
                batch.computed()
                batch.prepared("ckpt", "0" * 64)
                commit = batch.commit(scalars={"loss": 0.5})
            else:
                batch.undo("the test says so")
        except (LockLostError, CommitConflictError, TransactionError):
            assert trainer.lost, "the batch of the owner was refused"
            return
        assert not trainer.lost, "a trainer that was followed has ended a batch"
        if commits:
            assert commit.version == self.version + 1
            assert not batch.left
            self.trained.append({_place(member.identity) for member in commit.members})

    def the_trainer_crashes_with_a_batch(self) -> None:
        """What is open stays open; the next trainer puts it back."""
        if self.trainer is not None and self.trainer.batch is not None:
            self.living.discard(self.trainer.held.holder.nonce)
            self.trainer.batch = None

    # -- people

    @rule(
        reason=st.sampled_from(list(Refusal)),
        dry=st.booleans(),
        folder=st.sampled_from(["pending", "commits", "quarantine", "reserved", "tmp"]),
        name=st.sampled_from([".nfs001", "notes.txt", "v1.json", "v000001.x.json"]),
        act=st.sampled_from(["requeue", "requeue", "abort", "clear", "release", "file", "audit"]),
    )
    def a_person_acts(self, reason: Refusal, dry: bool, folder: str, name: str, act: str) -> None:
        match act:
            case "requeue":
                self.requeues(reason, dry)
            case "abort":
                self.abort_is_asked_for()
            case "clear":
                self.abort_is_cleared()
            case "release":
                self.reservations_of_the_dead_are_released()
            case "file":
                self.a_foreign_file_appears(folder, name)
            case "audit":
                self.is_audited_in_full()

    def requeues(self, reason: Refusal, dry: bool) -> None:
        before = len(list_refused(self.queue))
        found = requeue(self.queue, reasons=[reason], dry_run=dry)
        after = len(list_refused(self.queue))
        assert after == before - (0 if dry else len(found.requeued))

    def abort_is_asked_for(self) -> None:
        ask_abort(self.queue, "the test says so")
        self.aborted = True

    def abort_is_cleared(self) -> None:
        assert (clear_abort(self.queue) is not None) is self.aborted
        self.aborted = False

    def a_foreign_file_appears(self, folder: str, name: str) -> None:
        place = getattr(self.queue.paths, folder)
        if os.path.isdir(place):
            with open(f"{place}/{name}", "wb") as file:
                file.write(b"{}")

    # -- what a second reader sees

    @invariant()
    def every_record_is_in_one_place(self) -> None:
        queue = RolloutQueue.open(self.queue.paths.folder)
        pending = [name.place for name in queue.names(queue.paths.pending)]
        claimed = [name.place for _, names in queue.claims() for name in names]
        consumed = [place for batch in self.trained for place in batch]
        refused = [
            place
            for one in list_refused(queue)
            if one.refusal is not Refusal.DUPLICATE_IDENTITY
            for place in [_place_of_file(one.file)]
            if place
        ]
        found = sorted([*pending, *claimed, *consumed, *refused])
        assert found == sorted(self.told), "a record is lost, or is there twice"
        assert len(set(consumed)) == len(consumed), "a record was trained on twice"
        assert queue.version() == self.version
        assert abort_stands(queue) is self.aborted

    @invariant()
    def the_water_mark_holds(self) -> None:
        taken = self._waiting() + self._claimed()
        assert taken <= SETTINGS.high_water, f"{taken} records, at most {SETTINGS.high_water}"

    @invariant()
    def the_audit_agrees(self) -> None:
        found = audit(RolloutQueue.open(self.queue.paths.folder), records=False)
        assert found.ok is not False, f"{found.problems}"
        assert (found.duplicates, found.trained_twice) == (0, 0)
        assert found.version == self.version
        assert sum(found.quarantined.values()) == sum(count_refused(self.queue).values())

    def is_audited_in_full(self) -> None:
        found = audit(RolloutQueue.open(self.queue.paths.folder), records=True)
        assert found.ok is not False, f"{found.problems}"
        assert found.verified == self.version * SETTINGS.batch

    def teardown(self) -> None:
        for worker in self.workers.values():
            with contextlib.suppress(TryAgainLaterError):
                worker.lease.release()


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _place(identity: Any) -> tuple[str, int, int]:
    return identity.stream, identity.sequence, identity.sample


def _place_of_file(file: str) -> tuple[str, int, int] | None:
    from fleetcraft.layout.rollouts import parse_rollout

    found = parse_rollout(file)
    return None if found is None else found.place
