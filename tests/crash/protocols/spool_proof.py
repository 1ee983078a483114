"""A process of a fleet as the crash matrix needs it, and what must hold of a spool afterwards.

Here: claims and attempts with what was promised of them, and the proof that a second process makes.
Not here: the acts that are cut (`spool`). Invariant: what is proved is read from the folders
without the code under test where that is possible, and from promises noted outside the spool.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, State, task_of
from fleetcraft.process import Ended
from fleetcraft.spool import claims, control, leases
from fleetcraft.spool.check import check
from fleetcraft.spool.record import HistoryLine, Outcome, Record, closing_lines, destination
from fleetcraft.spool.recovery import ask_this_machine, recover
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.worker.outcome import judge
from tests.crash.protocol import Place

MOST_ATTEMPTS = 3
OUTPUT = "result.bin"
_OUTCOMES = frozenset(outcome.value for outcome in Outcome)
claims._APPEND_PAUSE_S = 0  # a disk that is full for one write is not waited for


def tree_of(place: Place) -> SpoolTree:
    """The spool of a trial."""
    return SpoolTree(f"{place.root}/spool")


class Process:
    """One process of a fleet: a lease, a counter of claims, and what it was promised."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.tree = tree_of(place)
        self.lease: leases.Lease | None = None
        self._count = 0

    def owner(self) -> Owner:
        """Of the next claim; the lease is published before the first."""
        if self.lease is None:
            lease = leases.new_lease(rank="0", interval_s=30.0)
            leases.publish(self.tree, lease)
            self.lease = lease
        self._count += 1
        lease = self.lease
        return Owner(lease.job, lease.rank, "0", f"{lease.launch}-{self._count}")

    def claim(self, name: str) -> claims.Claim | None:
        """Claims a pending task."""
        location = self.tree.locate(name)
        if location is None or location.state is not State.PENDING:
            return None
        return claims.claim(self.tree, name, location.path, self.owner())

    def run(
        self, held: claims.Claim, outcome: Outcome, output: bytes | None = None
    ) -> claims.Closed | None:
        """An attempt: its log, its work (which is noted), and its end.

        Args:
            held: The claim.
            outcome: How the work ends, unless a person has cancelled it.
            output: What the work writes into the file that the task has declared, if it has.
        """
        if held.record.closing_line(held.owner.token) is not None:
            return None
        attempt, log = 0, None
        if self.tree.fs.exists(self.tree.paths.cancel_marker(held.name)):
            outcome = Outcome.CANCELLED
        else:
            attempt, log = self._begin(held)
            outcome = self._judged(held, outcome, output, log)
        line = HistoryLine(
            claim=held.owner.token,
            outcome=outcome,
            to=destination(held.record, outcome),
            attempt=attempt,
        )
        try:
            closed = claims.close_own(self.tree, held, line)
        except claims.SpoolWriteError as error:
            if error.committed:
                self.place.say("committed", held.name, str(attempt))
            raise
        if closed is not None and closed.mine:
            self.place.say(outcome.value, held.name)
        return closed

    def _begin(self, held: claims.Claim) -> tuple[int, os.stat_result]:
        fs = self.tree.fs
        attempt = held.record.next_attempt
        while True:
            try:
                fd = fs.create_log(self.tree.paths.log(held.name, attempt))
                break
            except FileExistsError:
                attempt += 1
        try:
            facts = os.fstat(fd)
        finally:
            fs.close(fd)
        self.place.say("ran", held.name, str(attempt))
        return attempt, facts

    def _judged(
        self, held: claims.Claim, outcome: Outcome, output: bytes | None, log: os.stat_result
    ) -> Outcome:
        spec = held.record.spec
        if not spec.outputs:
            return outcome
        if output is not None:
            with open(os.path.join(spec.project_dir, OUTPUT), "wb") as file:
                file.write(output)
        ended = Ended(exit_code=0, signal=None, cpu_s=0.0, max_rss_bytes=0, leftovers=0, clean=True)
        verdict = judge(
            ended,
            stopped=None,
            stop_detail="",
            outputs=spec.outputs,
            project_dir=spec.project_dir,
            log="",
            log_facts=log,
            oom_kills=None,
        )
        return verdict.outcome


def nothing(process: Process) -> None:
    """What a person does about an act that needs nothing."""


def proof(
    *,
    tasks: Sequence[str] = ("t",),
    ends_in: Sequence[State] = (State.DONE,),
    again: Callable[[Process], None] = nothing,
    first: Callable[[SpoolTree], None] = lambda tree: None,
) -> Callable[[Place], None]:
    """What a second process does and demands after an act was cut.

    Args:
        tasks: Names that must exist in the end, and no others.
        ends_in: States in which they may be then.
        again: What a person does about it once it was recovered and repaired.
        first: What must hold of the spool as it was left.
    """

    def prove(place: Place) -> None:
        process = Process(place)
        tree = process.tree
        first(tree)
        _nothing_promised_is_missing(place, tree)
        recover(tree, ask_this_machine())
        check(tree, repair=True)
        _sound(tree)
        assert not tree.claims(), f"left in running: {tree.claims()}"
        again(process)
        recover(tree, ask_this_machine())
        _sound(tree)
        _run_the_rest(process)
        for name in tasks:
            _ended_well(place, tree, name, ends_in)
        # No task's name begins with a dot; the probe of an init that was killed does.
        names = {name for name in os.listdir(tree.paths.names) if not name.startswith(".")}
        assert names == set(tasks), f"there are {sorted(names)}, expected {sorted(tasks)}"

    return prove


def _sound(tree: SpoolTree) -> None:
    report = check(tree)
    assert report.ok, f"{report.faults}"
    for name in os.listdir(tree.paths.names):
        places = places_of(tree, name)
        assert len(places) <= 1, f"{name} is in {places}"


def places_of(tree: SpoolTree, name: str) -> list[str]:
    """Every path at which a task lies, found without the code under test."""
    paths = tree.paths
    lanes = [paths.lane(lane) for lane in LANES]
    return [
        f"{folder}/{file}"
        for folder in (*lanes, paths.waiting, paths.running, paths.done, paths.failed)
        for file in os.listdir(folder)
        if file == f"{name}.sh" or file.startswith(f"{name}.sh.")
    ]


def _nothing_promised_is_missing(place: Place, tree: SpoolTree) -> None:
    for words in place.said():
        if words[0] in ("enqueued", "retried", "put"):
            assert places_of(tree, words[1]), f"{words} was promised, and it is nowhere"
        if words[0] == "claimed":
            where = places_of(tree, words[1])
            assert len(where) == 1, f"{words[1]} was claimed, and is in {where}"


def _run_the_rest(process: Process) -> None:
    tree = process.tree
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
        assert held is not None, f"{names[0]} is pending and cannot be claimed"
        finished = [
            words for words in process.place.said() if words[0] in ("completed", "committed")
        ]
        assert held.name not in {words[1] for words in finished}, f"{held.name} is run again"
        process.run(held, Outcome.COMPLETED, b"as it should be")
    raise AssertionError("the rest does not come to an end")


def _ended_well(place: Place, tree: SpoolTree, name: str, ends_in: Sequence[State]) -> None:
    said = place.said()
    places = places_of(tree, name)
    assert len(places) == 1, f"{name} is in {places}, expected one"
    state = os.path.basename(os.path.dirname(places[0]))
    assert state in ends_in, f"{name} is in {places}, expected {ends_in}"
    record = tree.read(places[0])
    lines = closing_lines(record)
    attempts = [line.attempt for line in lines if line.attempt]
    assert attempts == sorted(set(attempts)), f"{name}: attempts {attempts}"
    assert len(attempts) <= MOST_ATTEMPTS, f"{name}: attempts {attempts}"
    runs = [int(words[2]) for words in said if words[:2] == ["ran", name]]
    assert len(runs) == len(set(runs)), f"{name}: two attempts have one number: {runs}"
    unwritten = {int(words[2]) for words in said if words[:2] == ["committed", name]}
    missing = set(runs) - set(attempts) - unwritten
    assert not missing, f"{name}: attempts {sorted(missing)} ran and are not in its history"
    _history_says(name, [words[0] for words in said if words[1:2] == [name]], record)
    if state == State.DONE:
        completed = any(line.outcome is Outcome.COMPLETED for line in lines) or unwritten
        assert completed, f"{name} is in done, and nothing says that it completed"
        _outputs_are_there(record)
    if ["cancelled", name] in said:
        assert places[0] == f"{tree.paths.failed}/{name}.sh", f"cancelled, and in {places[0]}"


def _history_says(name: str, promised: list[str], record: Record) -> None:
    written = [line.outcome.value for line in closing_lines(record)]
    for outcome in (word for word in promised if word in _OUTCOMES):
        assert outcome in written, f"{name} was said to be {outcome}; its history has {written}"


def _outputs_are_there(record: Record) -> None:
    for output in record.spec.outputs:
        size_bytes = os.path.getsize(os.path.join(record.spec.project_dir, output))
        assert size_bytes > 0, f"{record.spec.name} is in done, and {output} is empty"
