"""The trajectory queue: published, claimed, committed, rolled back, recovered, put back, aborted.

The trainer's operations and what must hold of them are those of
`tests.rollouts.transaction.crash_points`. Invariant that is proved: no record is lost, none is
trained on twice, and one recovery pass leaves an audit without a finding.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fleetcraft.files import FileSystem
from fleetcraft.locks import GenerationLock
from fleetcraft.rollouts import abort, admission, publishing
from fleetcraft.rollouts.admission import Admission, Reservation
from fleetcraft.rollouts.audit import audit
from fleetcraft.rollouts.ledger import Ledger
from fleetcraft.rollouts.publishing import Duplicate, Published, finish_half_published, publish
from fleetcraft.rollouts.quarantine import list_refused, refuse
from fleetcraft.rollouts.queue import RolloutQueue
from fleetcraft.rollouts.records import Record, Refusal
from fleetcraft.rollouts.recovery import recover
from fleetcraft.rollouts.requeue import requeue
from fleetcraft.rollouts.streams import StreamLease
from fleetcraft.rollouts.trainer import RolloutTrainer, trainer_lock
from fleetcraft.rollouts.transaction import settling
from tests.crash.protocol import Place, Protocol
from tests.crash.protocols.locks import Ticks
from tests.rollouts.filling import SLOT, commits, counts, fill, new_queue, record, sound
from tests.rollouts.transaction.crash_points import BATCH, OPERATIONS, RECORDS


def _new(place: Place) -> RolloutQueue:
    return new_queue(place.root, batch=BATCH, fs=FileSystem())


def _queue(place: Place) -> RolloutQueue:
    return RolloutQueue.open(f"{place.root}/queue")


def _lock(queue: RolloutQueue) -> GenerationLock:
    ticks = Ticks()
    return trainer_lock(queue, clock=ticks.clock, sleep=ticks.sleep)


# ------------------------------------------------------------------------- what a trainer does


def _trainers(name: str) -> tuple[Callable[[Place], None], Callable[[Place], None]]:
    """An operation of the trainer's side, as a start and an act."""
    operation = OPERATIONS[name]

    def prepare(place: Place) -> None:
        operation.prepare(_new(place))

    def act(place: Place) -> None:
        queue = _queue(place)
        held, ledger = _lock(queue).acquire(), Ledger.load(queue)

        def say(*words: object) -> None:
            place.say(*map(str, words))

        operation.act(queue, ledger, held, say)

    return prepare, act


def _prove(place: Place) -> None:
    """The next trainer comes, repairs, and trains on what is left."""
    queue = _queue(place)
    promised = {int(words[1]) for words in place.said() if words[0] == "committed"}
    assert promised <= {commit.version for commit in commits(queue)}, "a promised commit is lost"
    _train(queue, RECORDS)


def _train(queue: RolloutQueue, records: int) -> None:
    ticks = Ticks()
    with RolloutTrainer(queue, clock=ticks.clock, sleep=ticks.sleep) as trainer:
        assert trainer.recovered.problems == ()
        sound(queue, records=records)
        _audited(queue)
        assert recover(queue, trainer.ledger, trainer.held).nothing, "a second pass found something"
        for batch in trainer.batches(patience_s=0):
            batch.commit("c", "0" * 64)
    sound(queue, records=records)
    _audited(queue)


def _audited(queue: RolloutQueue) -> None:
    found = audit(queue)
    assert found.ok is not False, found.problems
    assert not found.unknown, found.unknown
    assert (found.trained_twice, found.unfiled) == (0, 0)
    assert found.missing == 0, f"{found.missing} published records are nowhere"


# ------------------------------------------------------------------------ what a producer does

STREAM = "p"


def _empty(place: Place) -> None:
    _new(place)


def _holder(queue: RolloutQueue) -> StreamLease:
    ticks = Ticks()
    return StreamLease.acquire(queue, STREAM, slot=SLOT, clock=ticks.clock, sleep=ticks.sleep)


def _made_by(lease: StreamLease, sequence: int, **fields: object) -> Record:
    return record(
        sequence,
        stream=STREAM,
        group=f"{STREAM}.{sequence}",
        lease_generation=lease.generation,
        lease_nonce=lease.nonce,
        **fields,
    )


def _publish(place: Place) -> None:
    queue = _queue(place)
    lease = _holder(queue)
    place.say("holds", str(lease.generation))
    room = Admission(queue, lease).reserve(0, [0])
    if isinstance(room, Reservation):
        outcome = publish(queue, _made_by(lease, 0), room)
        assert isinstance(outcome, Published), outcome
        place.say("published")
    lease.release()


def _cut_short(place: Place) -> None:
    """A producer that died when its record was bound to its identity, and not yet pending."""
    queue = _new(place)
    lease = _holder(queue)
    room = Admission(queue, lease).reserve(0, [0])
    assert isinstance(room, Reservation)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    real, publishing.move = publishing.move, killed  # type: ignore[assignment]
    try:
        publish(queue, _made_by(lease, 0), room)
    except KeyboardInterrupt:
        return
    finally:
        publishing.move = real


def _take_over(place: Place) -> None:
    queue = _queue(place)
    lease = _holder(queue)
    finish_half_published(queue, lease, Admission(queue, lease))
    admission.release_older(queue, lease)
    lease.release()


def _prove_published(place: Place) -> None:
    """The next holder completes what was left, and makes the same and another record."""
    queue = _queue(place)
    promised = ["published"] in place.said()
    assert not promised or counts(queue)["pending"] == 1, "a published record is not pending"
    lease = _holder(queue)
    for words in place.said():
        assert words[0] != "holds" or int(words[1]) < lease.generation, "a stream has two holders"
    room = Admission(queue, lease)
    finish_half_published(queue, lease, room)
    admission.release_older(queue, lease)
    assert counts(queue)["pending"] <= 1
    assert not admission.reservations(queue), "room stays reserved for a dead producer"
    was_there = counts(queue)["pending"] == 1
    _once_more(queue, lease, room, was_there=was_there)
    lease.release()
    assert not os.listdir(queue.paths.tmp), f"left in tmp: {os.listdir(queue.paths.tmp)}"
    _train(queue, 3 if was_there else 2)
    assert sum(len(commit.members) for commit in commits(queue)) == BATCH


def _once_more(
    queue: RolloutQueue, lease: StreamLease, room: Admission, *, was_there: bool
) -> None:
    again, other = room.reserve(0, [0]), room.reserve(1, [0])
    assert isinstance(again, Reservation)
    assert isinstance(other, Reservation)
    outcome = publish(queue, _made_by(lease, 0, gpu_s=11.0), again)
    assert isinstance(outcome, Duplicate if was_there else Published), "an identity has two records"
    assert isinstance(publish(queue, _made_by(lease, 1), other), Published)


# ----------------------------------------------------------------- what a person does


def _refused(place: Place) -> None:
    """Records that were put to quarantine by mistake, as pieces of a group."""
    queue = _new(place)
    fill(queue, RECORDS)
    for number, name in enumerate(sorted(os.listdir(queue.paths.pending))[:2]):
        refuse(
            queue,
            f"{queue.paths.pending}/{name}",
            name,
            Refusal.INCOMPLETE_GROUP,
            "by mistake",
            token=f"t{number}",
        )


def _requeue(place: Place) -> None:
    for each in requeue(_queue(place), reasons=[Refusal.INCOMPLETE_GROUP]).requeued:
        place.say("requeued", each.file)


def _prove_requeued(place: Place) -> None:
    """The same command once more puts back what is left; nothing is there twice."""
    queue = _queue(place)
    left = {each.file for each in list_refused(queue)}
    promised = {words[1] for words in place.said()}
    assert not promised & left, f"{promised & left} was put back, and is in quarantine"
    requeue(queue, reasons=[Refusal.INCOMPLETE_GROUP])
    assert not list_refused(queue), "what may be put back stays in quarantine"
    assert counts(queue)["pending"] == RECORDS
    _train(queue, RECORDS)


def _ask_to_abort(place: Place) -> None:
    asked = abort.ask_abort(_queue(place), "the loss is not finite", requester="me")
    if asked.new:
        place.say("asked")


def _prove_abort(place: Place) -> None:
    """The trainer stops at once where it was promised; clearing it lets the next one train."""
    queue = _queue(place)
    if place.said():
        assert abort.abort_stands(queue), "a promised ABORT is not there"
    abort.ask_abort(queue, "once more")
    request = abort.read_abort(queue)
    assert request is not None
    assert request.reason, "an ABORT without its reason"
    ticks = Ticks()
    with RolloutTrainer(queue, clock=ticks.clock, sleep=ticks.sleep) as trainer:
        assert not list(trainer.batches(patience_s=0))
        assert trainer.aborted
    assert abort.clear_abort(queue) is not None
    _train(queue, RECORDS)
    assert commits(queue), "nothing is trained on after the ABORT was cleared"


# -- rules that are broken on purpose


def _nobody_looks_at_the_commits() -> None:
    settling.find_commit = lambda *_: None  # type: ignore[attr-defined,assignment]
    Ledger.contains = lambda self, identity: False  # type: ignore[method-assign]


def _pending_before_the_identity() -> None:
    real = publishing._settle

    def settle(
        queue: RolloutQueue, made: Record, data: bytes, temporary: str
    ) -> Published | Duplicate:
        ident = queue.paths.ident_file(made.stream, made.sequence, made.sample)
        if os.path.exists(ident):
            return real(queue, made, data, temporary)
        Path(temporary).rename(f"{queue.paths.pending}/{made.name}")
        os.link(f"{queue.paths.pending}/{made.name}", ident)
        return Published(record=made)

    publishing._settle = settle


_LEDGER = (("nobody looks at the commits", _nobody_looks_at_the_commits),)
_IDENT = (("it is pending before it has its identity", _pending_before_the_identity),)


def _of_trainer(
    name: str, fewest: int, mutations: tuple[tuple[str, Callable[[], None]], ...] = ()
) -> Protocol:
    prepare, act = _trainers(name)
    return Protocol(f"rollouts: {name}", prepare, act, _prove, fewest, mutations=mutations)


PROTOCOLS = (
    Protocol("rollouts: publish", _empty, _publish, _prove_published, 80, mutations=_IDENT),
    Protocol("rollouts: take over a stream", _cut_short, _take_over, _prove_published, 80),
    _of_trainer("claim", 60),
    _of_trainer("claim bad ones", 60),
    _of_trainer("roll back", 80),
    _of_trainer("commit", 100, _LEDGER),
    _of_trainer("redo", 60, _LEDGER),
    _of_trainer("undo of a dead one", 60),
    Protocol("rollouts: requeue", _refused, _requeue, _prove_requeued, 60),
    Protocol("rollouts: ask to abort", _refused, _ask_to_abort, _prove_abort, 10),
)
