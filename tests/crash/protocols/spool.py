"""Every protocol of the spool: from the folders that are made for it to the check that repairs it.

Not here: what must hold afterwards (`spool_proof`). Invariant: an act calls what the command or the
worker calls, and notes a promise only after that call has returned.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from fleetcraft.errors import NameTakenError
from fleetcraft.layout import State
from fleetcraft.spool import claims, control, leases, recovery, setup
from fleetcraft.spool import enqueue as publishing
from fleetcraft.spool.check import check
from fleetcraft.spool.control import Canceller
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.record import HistoryLine, Outcome
from fleetcraft.spool.recovery import ask_this_machine
from fleetcraft.spool.tree import SpoolTree
from tests.crash.protocol import Place, Protocol
from tests.crash.protocols.spool_proof import OUTPUT, Process, places_of, proof, tree_of
from tests.crash.protocols.spool_rules import (
    BY_COPY,
    EARLY,
    LINE_LATER,
    MOVED_FIRST,
    NO_LEASE,
    NO_LOOK,
    ONE_BY_ONE,
)

_ANY_END = (State.DONE, State.FAILED)
_CANCELLED = (State.FAILED,)
Steps = Callable[[Process], None]


def _spec(name: str, command: str = "true", **directives: Any) -> TaskSpec:
    return TaskSpec(name=name, command=command, project_dir="/", **directives)


def _on_a_spool(*steps: Steps) -> Callable[[Place], None]:
    """A start: a spool, and then these steps of one process."""

    def prepare(place: Place) -> None:
        setup.set_up(tree_of(place))
        process = Process(place)
        for step in steps:
            step(process)

    return prepare


def _act(step: Steps) -> Callable[[Place], None]:
    return lambda place: step(Process(place))


def _held(process: Process, name: str) -> claims.Claim:
    held = process.claim(name)
    assert held is not None, f"{name} cannot be claimed"
    return held


# -- starts


def _one_task(**directives: Any) -> Steps:
    return lambda process: _enqueued(process, _spec("t", **directives))


def _enqueued(process: Process, spec: TaskSpec) -> None:
    publishing.enqueue(process.tree, spec)
    process.place.say("enqueued", spec.name)


def _claimed(process: Process) -> None:
    _held(process, "t")


def _claimed_and_logged(process: Process) -> None:
    held = _held(process, "t")
    process.tree.fs.close(process.tree.fs.create_log(process.tree.paths.log("t", 1)))
    process.place.say("ran", held.name, "1")


def _closed_and_not_moved(process: Process) -> None:
    held = _held(process, "t")
    process.place.say("ran", "t", "1")
    line = HistoryLine(claim=held.owner.token, outcome=Outcome.COMPLETED, to="done", attempt=1)
    fd = process.tree.fs.open_append(held.path)
    process.tree.fs.append(fd, claims.write_history(line))
    process.tree.fs.close(fd)
    process.place.say("completed", "t")


def _torn_line(process: Process) -> None:
    held = _held(process, "t")
    process.tree.fs.close(process.tree.fs.create_log(process.tree.paths.log("t", 1)))
    process.place.say("ran", "t", "1")
    fd = process.tree.fs.open_append(held.path)
    process.tree.fs.append(fd, b'#FLEET-RUN {"claim":"')
    process.tree.fs.close(fd)


def _done_before(process: Process) -> None:
    _enqueued(process, _spec("b-1"))
    process.run(_held(process, "b-1"), Outcome.COMPLETED)


def _waiting_for_a_finished_one(process: Process) -> None:
    _done_before(process)
    _enqueue_waiting(process)


def _failed_and_cancelled(process: Process) -> None:
    _enqueued(process, _spec("t"))
    process.run(_held(process, "t"), Outcome.FAILED)
    process.tree.fs.create(process.tree.paths.cancel_marker("t"), b"")


def _begun(process: Process) -> None:
    """An enqueue that was killed between taking the name and the publishing rename."""
    tree = process.tree
    draft = publishing._draft(tree, _spec("t"))
    tree.fs.create(draft.temporary, draft.data, mode=0o700)
    tree.fs.link(draft.temporary, tree.paths.name("t"))


def _in_disorder(process: Process) -> None:
    """What a check repairs: a task begun, a name that is gone, a draft that lost its name."""
    _begun(process)
    tree = process.tree
    _enqueued(process, _spec("u"))
    os.unlink(tree.paths.name("u"))
    loser = publishing._draft(tree, _spec("t", "false"))
    tree.fs.create(loser.temporary, loser.data, mode=0o700)


def _with_a_project(process: Process) -> None:
    project = f"{process.place.root}/project"
    os.mkdir(project)
    spec = TaskSpec(name="t", command="true", project_dir=project, outputs=(OUTPUT,), retries=1)
    _enqueued(process, spec)


# -- acts, and what a person does afterwards


def _set_up(place: Place) -> None:
    setup.set_up(tree_of(place))
    place.say("made")


def _set_up_again(place: Place) -> None:
    tree = tree_of(place)
    setup.set_up(tree)
    for folder in tree.paths.folders():
        mode = os.stat(folder).st_mode & 0o777
        assert mode == 0o700, f"{folder} has mode {mode:o}"
    proof(again=lambda process: _enqueued(process, _spec("t")))(place)


def _enqueue(process: Process) -> None:
    _enqueued(process, _spec("t"))


def _enqueue_again(process: Process) -> None:
    publishing.enqueue(process.tree, _spec("t"), if_absent=True)
    won = False
    with contextlib.suppress(NameTakenError):
        publishing.enqueue(process.tree, _spec("t", "false"))
        won = True
    assert not won, "another task got the name as well"


def _enqueue_waiting(process: Process) -> None:
    _enqueued(process, _spec("t", after=("b-*",)))


def _enqueue_waiting_again(process: Process) -> None:
    publishing.enqueue(process.tree, _spec("t", after=("b-*",)), if_absent=True)


def _complete(process: Process) -> None:
    publishing.enqueue(process.tree, _spec("t"), if_absent=True)
    process.place.say("enqueued", "t")


def _enqueue_another(process: Process) -> None:
    try:
        publishing.enqueue(process.tree, _spec("t", "false"))
    except NameTakenError:
        return
    raise AssertionError("two tasks have one name")


_BATCH = [_spec("t"), _spec("u", after=("b-*",)), _spec("b-1"), _spec("b-2")]
_BATCH_NAMES = tuple(spec.name for spec in _BATCH)


def _batch(process: Process) -> None:
    publishing.enqueue_batch(process.tree, _BATCH)
    for spec in _BATCH:
        process.place.say("enqueued", spec.name)


def _batch_again(process: Process) -> None:
    report = publishing.enqueue_batch(process.tree, _BATCH, if_absent=True)
    assert report.enqueued + report.completed + report.already_there == len(_BATCH)


def _all_named_or_none_visible(tree: SpoolTree) -> None:
    visible = [name for name in _BATCH_NAMES if places_of(tree, name)]
    named = set(os.listdir(tree.paths.names))
    assert not visible or named == set(_BATCH_NAMES), f"{visible} are visible, named are {named}"


def _claim(process: Process) -> None:
    if process.claim("t") is not None:
        process.place.say("claimed", "t")


def _finish(outcome: Outcome, output: bytes | None = None) -> Steps:
    def act(process: Process) -> None:
        held = process.claim("t")
        if held is not None:
            process.run(held, outcome, output)

    return act


def _put_back(process: Process) -> None:
    held = process.claim("t")
    if held is not None and claims.put_back(process.tree, held):
        process.place.say("put", "t", "back")


def _recover(process: Process) -> None:
    recovery.recover(process.tree, ask_this_machine())


def _promote(process: Process) -> None:
    control.promote(process.tree)


def _cancel(process: Process) -> None:
    with Canceller(process.tree) as canceller:
        if canceller.cancel("t").cancelled:
            process.place.say("cancelled", "t")


def _retry(process: Process) -> None:
    control.retry(process.tree, "t")
    process.place.say("retried", "t")


def _retry_again(process: Process) -> None:
    if process.tree.find("t").state is State.FAILED:
        control.retry(process.tree, "t")


def _repair(process: Process) -> None:
    check(process.tree, repair=True)


def _beat(process: Process) -> None:
    held = process.claim("t")
    assert held is not None
    assert process.lease is not None
    for _ in range(2):
        process.lease.counter += 1
        leases.publish(process.tree, process.lease)


def _mark(process: Process) -> None:
    for marker in (process.tree.paths.drain_marker, process.tree.paths.stop_marker):
        control.write_marker(process.tree, marker, "for a test")
        process.place.say("marked", os.path.basename(marker))
    control.resume(process.tree)
    process.place.say("resumed")


def _prove_marks(place: Place) -> None:
    process = Process(place)
    said = [words[0] for words in place.said()]
    standing = control.read_markers(process.tree)
    if "resumed" in said:
        assert not standing, f"removed, and they stand: {standing}"
    control.resume(process.tree)
    assert not control.read_markers(process.tree)
    proof()(place)


_RETRIED = _on_a_spool(_one_task(retries=1))
_PLAIN = _on_a_spool(_one_task())
_PAIR = ("t", "b-1")
_FOR_ALL = _act(_finish(Outcome.FAILED))

PROTOCOLS: tuple[Protocol, ...] = (
    Protocol("spool: init", lambda place: None, _set_up, _set_up_again, 40),
    Protocol(
        "spool: enqueue", _on_a_spool(), _act(_enqueue), proof(again=_enqueue_again), 8,
        mutations=(BY_COPY,),
    ),
    Protocol(
        "spool: enqueue what was begun", _on_a_spool(_begun), _act(_complete),
        proof(again=_enqueue_again), 10,
    ),
    Protocol(
        "spool: enqueue a taken name", _PLAIN, _act(_enqueue_another),
        proof(again=_enqueue_again), 10,
    ),
    Protocol(
        "spool: batch enqueue", _on_a_spool(), _act(_batch),
        proof(tasks=_BATCH_NAMES, again=_batch_again, first=_all_named_or_none_visible), 20,
        mutations=(ONE_BY_ONE,),
    ),
    Protocol(
        "spool: enqueue one that waits", _on_a_spool(_done_before), _act(_enqueue_waiting),
        proof(tasks=_PAIR, again=_enqueue_waiting_again), 8,
    ),
    Protocol("spool: claim", _RETRIED, _act(_claim), proof(), 8, mutations=(BY_COPY,)),
    Protocol("spool: heartbeat", _PLAIN, _act(_beat), proof(), 14),
    Protocol(
        "spool: finish, completed", _RETRIED, _act(_finish(Outcome.COMPLETED)), proof(), 20,
        mutations=(LINE_LATER,),
    ),
    Protocol(
        "spool: finish, with outputs", _on_a_spool(_with_a_project),
        _act(_finish(Outcome.COMPLETED, b"0123456789" * 100)), proof(), 26,
    ),
    Protocol(
        "spool: finish, without an output", _on_a_spool(_with_a_project),
        _act(_finish(Outcome.COMPLETED)), proof(), 20,
    ),
    Protocol(
        "spool: finish, failed to pending", _RETRIED, _FOR_ALL, proof(), 20,
        mutations=(LINE_LATER, BY_COPY),
    ),
    Protocol("spool: finish, failed for good", _PLAIN, _FOR_ALL, proof(ends_in=_ANY_END), 20),
    Protocol(
        "spool: finish, interrupted", _PLAIN, _act(_finish(Outcome.INTERRUPTED)), proof(), 20
    ),
    Protocol(
        "spool: requeue without an attempt", _PLAIN, _act(_put_back), proof(), 10,
        mutations=(BY_COPY,),
    ),
    Protocol(
        "spool: recover", _on_a_spool(_one_task(retries=1), _claimed_and_logged), _act(_recover),
        proof(again=_recover), 10, mutations=(MOVED_FIRST,),
    ),
    Protocol(
        "spool: recover before an attempt", _on_a_spool(_one_task(), _claimed), _act(_recover),
        proof(again=_recover), 10,
    ),
    Protocol(
        "spool: recover after a torn line", _on_a_spool(_one_task(retries=1), _torn_line),
        _act(_recover), proof(again=_recover), 10,
    ),
    Protocol(
        "spool: roll forward", _on_a_spool(_one_task(retries=1), _closed_and_not_moved),
        _act(_recover), proof(again=_recover), 8, mutations=(NO_LOOK, BY_COPY),
    ),
    Protocol(
        "spool: promote", _on_a_spool(_waiting_for_a_finished_one), _act(_promote),
        proof(tasks=_PAIR, again=_promote), 8, mutations=(BY_COPY,),
    ),
    Protocol(
        "spool: cancel a pending one", _PLAIN, _act(_cancel),
        proof(ends_in=_CANCELLED, again=_cancel), 20, mutations=(NO_LEASE,),
    ),
    Protocol(
        "spool: cancel a waiting one", _on_a_spool(_one_task(after=("missing",))), _act(_cancel),
        proof(ends_in=_CANCELLED, again=_cancel), 20,
    ),
    Protocol(
        "spool: retry", _on_a_spool(_failed_and_cancelled), _act(_retry),
        proof(again=_retry_again), 8, mutations=(EARLY,),
    ),
    Protocol(
        "spool: check --repair", _on_a_spool(_in_disorder), _act(_repair),
        proof(tasks=("t", "u")), 60,
    ),
    Protocol("spool: drain, stop, resume", _PLAIN, _act(_mark), _prove_marks, 8),
)  # fmt: skip
