"""The operations that the crash tests cut short, and how a second process proves what is left.

Each operation is a preparation (never disturbed), the act (disturbed at its k-th file operation)
and the command that a person would give again. Everything here runs in processes that
`tests/crash/server.py` forks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetcraft.errors import FleetError, NameTakenError
from fleetcraft.files import FileSystem
from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, State, task_of
from fleetcraft.spool import claims, control, leases, setup
from fleetcraft.spool.check import check
from fleetcraft.spool.control import Canceller
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import enqueue, enqueue_batch
from fleetcraft.spool.record import HistoryLine, Outcome, closing_lines, destination
from fleetcraft.spool.recovery import ask_this_machine, recover
from fleetcraft.spool.tree import SpoolTree

EXPECTED_ATTEMPTS_AT_MOST = 3


class QuickFS(FileSystem):
    """The real file system without forced writes: nothing here cuts the power."""

    def create(self, path: str, data: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
        super().create(path, data, mode=mode)

    def datasync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass

    def sync_mount(self, path: str) -> None:
        pass


class Process:
    """One process of a fleet: a lease, a counter of claims, and what it was promised.

    ``said`` is written outside the spool at once, so that it survives the process.
    """

    def __init__(self, root: str, fs: FileSystem, said: str) -> None:
        self.tree = SpoolTree(root, fs)
        self._said = said
        self._lease: leases.Lease | None = None
        self._count = 0

    def say(self, *words: str) -> None:
        with open(self._said, "a", encoding="utf-8") as file:
            file.write(" ".join(words) + "\n")

    def publish_lease(self) -> None:
        self._lease = leases.new_lease(rank="0", interval_s=30.0)
        leases.publish(self.tree, self._lease)

    def owner(self) -> Owner:
        if self._lease is None:
            self.publish_lease()
        assert self._lease is not None
        self._count += 1
        lease = self._lease
        return Owner(lease.job, lease.rank, "0", f"{lease.launch}-{self._count}")

    def claim(self, name: str) -> claims.Claim | None:
        location = self.tree.locate(name)
        if location is None or location.state is not State.PENDING:
            return None
        return claims.claim(self.tree, name, location.path, self.owner())

    def run(self, held: claims.Claim, outcome: str) -> claims.Closed | None:
        """An attempt: the log, the work (a word that is said), and the end."""
        record = held.record
        if record.closing_line(held.owner.token) is not None:
            return None
        outcome_now = Outcome(outcome)
        attempt = 0
        if self.tree.fs.exists(self.tree.paths.cancel_marker(held.name)):
            outcome_now = Outcome.CANCELLED
        else:
            attempt = record.next_attempt
            while True:
                try:
                    fd = self.tree.fs.create_log(self.tree.paths.log(held.name, attempt))
                    break
                except FileExistsError:
                    attempt += 1
            self.tree.fs.close(fd)
            self.say("ran", held.name, str(attempt))
        line = HistoryLine(
            claim=held.owner.token,
            outcome=outcome_now,
            to=destination(record, outcome_now),
            attempt=attempt,
        )
        closed = claims.close_own(self.tree, held, line)
        if closed is not None and closed.mine:
            self.say(outcome_now.value, held.name)
        return closed


@dataclass(frozen=True)
class Operation:
    """What is cut short.

    Attributes:
        prepare: Makes the start, undisturbed.
        act: Is disturbed.
        again: What a person does about it, undisturbed, after the first process is gone.
        tasks: Names that must exist in the end, whatever happened.
        ends_in: States in which they may be at the very end.
        owner_is_gone: Whether the process that prepares must have ended before the act.
    """

    prepare: Callable[[Process], None]
    act: Callable[[Process], None]
    again: Callable[[Process], None]
    tasks: tuple[str, ...] = ("t",)
    ends_in: tuple[State, ...] = (State.DONE,)
    owner_is_gone: bool = False


def _spec(name: str, command: str = "true", **directives: Any) -> TaskSpec:
    return TaskSpec(name=name, command=command, project_dir="/", **directives)


def _nothing(process: Process) -> None:
    pass


def _enqueue(process: Process) -> None:
    enqueue(process.tree, _spec("t"))
    process.say("enqueued", "t")


def _enqueue_again(process: Process) -> None:
    enqueue(process.tree, _spec("t"), if_absent=True)
    won = False
    with contextlib.suppress(NameTakenError):
        enqueue(process.tree, _spec("t", "false"))
        won = True
    assert not won, "another task got the name as well"


_BATCH = [_spec("t"), _spec("u", after=("b-*",)), _spec("b-1"), _spec("b-2")]


def _batch(process: Process) -> None:
    enqueue_batch(process.tree, _BATCH)
    for spec in _BATCH:
        process.say("enqueued", spec.name)


def _batch_again(process: Process) -> None:
    report = enqueue_batch(process.tree, _BATCH, if_absent=True)
    assert report.enqueued + report.completed + report.already_there == len(_BATCH)


def _one_task(process: Process) -> None:
    enqueue(process.tree, _spec("t", retries=1))


def _claim(process: Process) -> None:
    held = process.claim("t")
    if held is not None:
        process.say("claimed", "t")


def _finish(outcome: str) -> Callable[[Process], None]:
    def act(process: Process) -> None:
        held = process.claim("t")
        if held is not None:
            process.run(held, outcome)

    return act


def _one_task_without_retries(process: Process) -> None:
    enqueue(process.tree, _spec("t"))


def _put_back(process: Process) -> None:
    held = process.claim("t")
    if held is not None and claims.put_back(process.tree, held):
        process.say("put back", "t")


def _dead_claim(process: Process) -> None:
    _one_task(process)
    assert process.claim("t") is not None


def _closed_dead_claim(process: Process) -> None:
    _one_task(process)
    held = process.claim("t")
    assert held is not None
    process.say("ran", "t", "1")
    line = HistoryLine(claim=held.owner.token, outcome=Outcome.COMPLETED, to="done", attempt=1)
    fd = process.tree.fs.open_append(held.path)
    process.tree.fs.append(fd, claims.write_history(line))
    process.tree.fs.close(fd)
    process.say("completed", "t")


def _recover(process: Process) -> None:
    recover(process.tree, ask_this_machine())


def _waiting(process: Process) -> None:
    enqueue(process.tree, _spec("b-1"))
    held = process.claim("b-1")
    assert held is not None
    process.run(held, "completed")
    enqueue(process.tree, _spec("t", after=("b-*",)))


def _promote(process: Process) -> None:
    control.promote(process.tree)


def _cancel(process: Process) -> None:
    with Canceller(process.tree) as canceller:
        if canceller.cancel("t").cancelled:
            process.say("cancelled", "t")


def _failed(process: Process) -> None:
    _one_task_without_retries(process)
    held = process.claim("t")
    assert held is not None
    process.run(held, "failed")
    process.tree.fs.create(process.tree.paths.cancel_marker("t"), b"")


def _retry(process: Process) -> None:
    control.retry(process.tree, "t")
    process.say("retried", "t")


def _retry_again(process: Process) -> None:
    location = process.tree.find("t")
    if location.state is State.FAILED:
        control.retry(process.tree, "t")


_ANY_END = (State.DONE, State.FAILED)
OPERATIONS: dict[str, Operation] = {
    "enqueue": Operation(_nothing, _enqueue, _enqueue_again),
    "enqueue_batch": Operation(_nothing, _batch, _batch_again, ("t", "u", "b-1", "b-2")),
    "claim": Operation(_one_task, _claim, _nothing),
    "finish_completed": Operation(_one_task, _finish("completed"), _nothing),
    "finish_failed_to_pending": Operation(_one_task, _finish("failed"), _nothing),
    "finish_failed_for_good": Operation(
        _one_task_without_retries, _finish("failed"), _nothing, ends_in=_ANY_END
    ),
    "finish_interrupted": Operation(_one_task, _finish("interrupted"), _nothing),
    "put_back": Operation(_one_task, _put_back, _nothing),
    "recover": Operation(_dead_claim, _recover, _recover, owner_is_gone=True),
    "roll_forward": Operation(_closed_dead_claim, _recover, _recover, owner_is_gone=True),
    "promote": Operation(_waiting, _promote, _promote, ("t", "b-1")),
    "cancel_pending": Operation(_one_task, _cancel, _cancel, ends_in=(State.FAILED,)),
    "cancel_waiting": Operation(
        lambda process: enqueue(process.tree, _spec("t", after=("missing",))) and None,
        _cancel, _cancel, ends_in=(State.FAILED,),
    ),
    "retry": Operation(_failed, _retry, _retry_again),
}  # fmt: skip


# -- the second process


def prove(operation: Operation, process: Process, said: list[list[str]]) -> dict[str, Any]:
    """Recovers, repairs, gives the command again, runs the rest; raises when something is wrong.

    Args:
        operation: What was cut short.
        process: A fresh one, undisturbed.
        said: What earlier processes had been promised or had done.
    """
    tree = process.tree
    _nothing_reported_is_missing(tree, said)
    recover(tree, ask_this_machine())
    check(tree, repair=True)
    _sound(tree)
    assert not tree.claims(), f"left in running: {tree.claims()}"
    operation.again(process)
    recover(tree, ask_this_machine())
    _sound(tree)
    _run_the_rest(process, said)
    for name in operation.tasks:
        _ended_well(operation, tree, name, said)
    assert set(tree.fs.listdir(tree.paths.names)) == set(operation.tasks)
    temporary = tree.fs.listdir(tree.paths.tmp)
    return {"tasks": len(operation.tasks), "temporary": len(temporary)}


def _sound(tree: SpoolTree) -> None:
    report = check(tree)
    assert report.ok, f"{report.faults}"
    for name in tree.fs.listdir(tree.paths.names):
        places = places_of(tree, name)
        assert len(places) <= 1, f"{name} is in {places}"


def places_of(tree: SpoolTree, name: str) -> list[str]:
    """Every path at which a task lies, found without the code under test."""
    found = []
    for folder in (*(tree.paths.lane(lane) for lane in LANES), tree.paths.waiting,
                   tree.paths.running, tree.paths.done, tree.paths.failed):  # fmt: skip
        found += [
            f"{folder}/{file}"
            for file in os.listdir(folder)
            if file == f"{name}.sh" or file.startswith(f"{name}.sh.")
        ]
    return found


def _nothing_reported_is_missing(tree: SpoolTree, said: list[list[str]]) -> None:
    for words in said:
        if words[0] == "enqueued":
            assert places_of(tree, words[1]), f"{words[1]} was enqueued and is nowhere"


def _run_the_rest(process: Process, said: list[list[str]]) -> None:
    tree = process.tree
    completed = {words[1] for words in said if words[0] == "completed"}
    for _ in range(20):
        control.promote(tree)
        names = [
            name
            for lane in LANES
            for file in os.listdir(tree.paths.lane(lane))
            if (name := task_of(file)) is not None
        ]
        if not names:
            return
        held = process.claim(names[0])
        assert held is not None
        assert held.name not in completed, f"{held.name} is run again after it was completed"
        process.run(held, "completed")
    raise AssertionError("the rest does not come to an end")


def _ended_well(operation: Operation, tree: SpoolTree, name: str, said: list[list[str]]) -> None:
    places = places_of(tree, name)
    assert len(places) == 1, f"{name} is in {places}, expected one"
    assert os.path.basename(os.path.dirname(places[0])) in operation.ends_in, places
    record = tree.read(places[0])
    attempts = [line.attempt for line in closing_lines(record) if line.attempt]
    assert attempts == sorted(set(attempts)), f"{name}: attempts {attempts}"
    assert len(attempts) <= EXPECTED_ATTEMPTS_AT_MOST
    runs = [words[2] for words in said if words[:2] == ["ran", name]]
    assert len(runs) == len(set(runs)), f"{name}: two attempts have one number: {runs}"
    if ["cancelled", name] in said:
        assert places[0] == f"{tree.paths.failed}/{name}.sh"


def set_up(root: str) -> None:
    setup.set_up(SpoolTree(root, QuickFS()))


EXPECTED_REFUSALS = (OSError, FleetError)
"""What a disturbed operation may raise: an error that names the trouble, and no other."""
