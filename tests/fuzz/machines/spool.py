"""The spool as a state machine: real code on a real folder, and a model of it beside.

Owners claim, finish, put back and die; recovery is right, unsure and wrong; tasks are cancelled,
retried and promoted; foreign files, torn history lines and jumps of the clock come in between.
Invariant, after each step: a second reader sees what the model says, `check` finds exactly the
faults that were put there, and nothing was raised but errors of our own tree.
"""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fleetcraft import clock
from fleetcraft.errors import NameTakenError, NoSuchTaskError, SpoolError
from fleetcraft.identity import Owner
from fleetcraft.layout import Lane, State
from fleetcraft.spool import control, leases, views
from fleetcraft.spool.check import check
from fleetcraft.spool.claims import Claim, claim, close_own, put_back, read_again
from fleetcraft.spool.control import Canceller
from fleetcraft.spool.directives import TaskSpec
from fleetcraft.spool.enqueue import Published, enqueue, enqueue_batch
from fleetcraft.spool.record import (
    LOST_LIMIT,
    SPENDING,
    HistoryLine,
    Outcome,
    closing_lines,
    destination,
)
from fleetcraft.spool.recovery import Liveness, Verdict, recover
from fleetcraft.spool.setup import set_up
from fleetcraft.spool.tree import SpoolTree
from tests.fuzz import folders
from tests.quick_fs import QuickFS

NAMES = ("a", "b", "c", "enc-1", "enc-2", "x.sh.1.2.3.4")
LAUNCHES = ("one-aaaa", "two-bbbb", "tri-cccc")
JOB = "8812"
_names = st.sampled_from(NAMES)
_lanes = st.sampled_from(list(Lane))
_after = st.sampled_from([(), (), (), ("a",), ("enc-*",), ("b", "enc-*"), ("nobody",)])
_FOLDERS = ("pending", "pending/first", "waiting", "running", "done", "failed")
_FOREIGN = ("notes.txt", ".nfs0001", "a.sh~", "a.sh.1.2", "README")
_ENDS = (
    Outcome.COMPLETED,
    Outcome.FAILED,
    Outcome.TIMEOUT,
    Outcome.OUT_OF_MEMORY,
    Outcome.INTERRUPTED,
    Outcome.INCOMPLETE,
    Outcome.LAUNCH_FAILED,
    Outcome.CANCELLED,
)


@dataclass
class Task:
    """One task as the model has it."""

    spec: TaskSpec
    state: State
    lane: Lane = Lane.PLAIN
    token: str = ""
    closed: list[tuple[str, Outcome, str, int]] = field(default_factory=list)
    torn: int = 0
    log: int = 0

    def goes_to(self, outcome: Outcome) -> str:
        """The rules of docs/spool-format.md, Finish, told once more."""
        if outcome is Outcome.COMPLETED:
            return "done"
        if outcome is Outcome.CANCELLED:
            return "failed"
        kind = SPENDING if outcome in SPENDING else {outcome}
        same = [to for _, one, to, _ in self.closed if one in kind]
        places = {Outcome.LOST: LOST_LIMIT, Outcome.INTERRUPTED: 50}.get(
            outcome, self.spec.retries + 1
        )
        return "pending" if len(same) + 1 < places + same.count("failed") else "failed"

    @property
    def next_attempt(self) -> int:
        return max((attempt for _, _, _, attempt in self.closed), default=0) + 1


@dataclass
class Hold:
    """A claim that an owner believes to hold."""

    name: str
    held: Claim
    lost: bool = False
    """Somebody closed it for this owner, who does not know."""


class SpoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = SpoolTree(folders.fresh("taskq"), QuickFS())
        set_up(self.tree)
        self.tasks: dict[str, Task] = {}
        self.holds: dict[str, list[Hold]] = {launch: [] for launch in LAUNCHES}
        self.dead: set[str] = set()
        self.cancels: set[str] = set()
        self.strays: set[str] = set()
        self.counter = 0
        self.offset_s = 0.0
        self._clock = mock.patch.object(
            clock, "time", SimpleNamespace(**{**vars(clock.time), "time": self._now})
        )
        self._clock.start()

    def _now(self) -> float:
        return 1.75e9 + self.offset_s

    def teardown(self) -> None:
        self._clock.stop()

    @initialize(first=_after, retries=st.integers(0, 2), claimed=st.integers(0, 3))
    def some_are_there_already(self, first: tuple[str, ...], retries: int, claimed: int) -> None:
        for launch in LAUNCHES:
            self._arrive(launch)
        for name in NAMES[:4]:
            after = first if name == "c" else ()
            self.enqueues(name, "true", Lane.PLAIN, after, retries, False)
        for at in range(claimed):
            self.claims(LAUNCHES[at], self._pick(at, State.PENDING))

    def _arrive(self, launch: str) -> None:
        lease = leases.new_lease(rank="0", interval_s=30.0)
        lease.job, lease.launch = JOB, launch.partition("-")[0]
        leases.publish(self.tree, lease)

    # -- publishing

    def _spec(self, name: str, command: str, **given: Any) -> TaskSpec:
        return TaskSpec(name=name, command=command, project_dir="/p", **given)

    def _home(self, spec: TaskSpec) -> Task:
        state = State.WAITING if spec.after else State.PENDING
        return Task(spec, state, spec.lane if state is State.PENDING else Lane.PLAIN)

    @rule(
        name=_names,
        command=st.sampled_from(["true", "echo 'a b'"]),
        lane=_lanes,
        after=_after,
        retries=st.integers(0, 2),
        if_absent=st.booleans(),
    )
    def enqueues(  # noqa: PLR0917 - what hypothesis draws comes by name
        self,
        name: str,
        command: str,
        lane: Lane,
        after: tuple[str, ...],
        retries: int,
        if_absent: bool,
    ) -> None:
        after = tuple(one for one in after if one != name)
        spec = self._spec(name, command, lane=lane, after=after, retries=retries)
        known = self.tasks.get(name)
        try:
            published = enqueue(self.tree, spec, if_absent=if_absent)
        except NameTakenError as error:
            self._is_refused(error, known, spec)
            assert not (if_absent and known is not None and known.spec == spec)
            return
        if known is not None:
            assert published is Published.ALREADY_THERE
            assert if_absent
            assert known.spec == spec
            return
        assert published is Published.ENQUEUED
        self.tasks[name] = self._home(spec)

    def _is_refused(self, error: NameTakenError, known: Task | None, spec: TaskSpec | None) -> None:
        assert known is not None, f"{error.name} is said to be taken"
        assert error.state == known.state.value
        assert spec is None or error.same is (known.spec == spec)

    @rule(
        names=st.lists(_names, min_size=1, max_size=3, unique=True),
        after=_after,
        if_absent=st.booleans(),
    )
    def enqueues_a_batch(self, names: list[str], after: tuple[str, ...], if_absent: bool) -> None:
        specs = [
            self._spec(name, "true", after=tuple(one for one in after if one != name))
            for name in names
        ]
        known = {spec.name: self.tasks[spec.name] for spec in specs if spec.name in self.tasks}
        all_same = all(known[s.name].spec == s for s in specs if s.name in known)
        try:
            report = enqueue_batch(self.tree, specs, if_absent=if_absent)
        except NameTakenError as error:
            self._is_refused(error, known.get(str(error.name)), None)
            return  # nothing of the batch was published
        assert not known or (if_absent and all_same), "a taken name was passed over"
        assert (report.enqueued, report.already_there) == (len(specs) - len(known), len(known))
        for spec in specs:
            self.tasks.setdefault(spec.name, self._home(spec))

    # -- owners

    # Few rules with many ways each: hypothesis leaves out whole rules at random, and a run without
    # claims, or without enqueues, shows little.
    @rule(
        launch=st.sampled_from(LAUNCHES),
        at=st.integers(0, 5),
        outcome=st.sampled_from(_ENDS),
        act=st.sampled_from(
            ["claim"] * 4 + ["run"] * 4 + ["end"] * 2 + ["back", "die", "anew", "miss"]
        ),
    )
    def a_worker_acts(self, launch: str, at: int, outcome: Outcome, act: str) -> None:
        match act:
            case "claim":
                self.claims(launch, self._pick(at, State.PENDING))
            case "miss":
                self.claims(launch, NAMES[at])
            case "run":
                self.begins_an_attempt(launch)
                self.finishes(launch, outcome)
            case "end":
                self.finishes(launch, outcome)
            case "back":
                self.puts_back(launch)
            case "die":
                self.dies(launch)
            case "anew":
                self.starts_anew(launch)

    def _pick(self, at: int, *states: State) -> str:
        """A task in one of these states, or any name where there is none."""
        found = [name for name, task in self.tasks.items() if task.state in states]
        return found[at % len(found)] if found else NAMES[at]

    def claims(self, launch: str, name: str) -> None:
        task = self.tasks.get(name)
        if launch in self.dead:
            return
        source = self.tree.paths.pending_record(name, task.lane if task else Lane.PLAIN)
        self.counter += 1
        owner = Owner(JOB, "0", "0", f"{launch.partition('-')[0]}-{self.counter}")
        held = claim(self.tree, name, source, owner)
        if task is None or task.state is not State.PENDING:
            assert held is None, f"{name} was claimed although it is {task and task.state}"
            return
        assert held is not None, "a pending task was not to be had"
        assert not held.problem, held.problem
        assert held.record.spec == task.spec
        task.state, task.lane, task.token = State.RUNNING, Lane.PLAIN, owner.token
        self.holds[launch].append(Hold(name, held))

    def _hold(self, launch: str) -> Hold | None:
        holds = self.holds[launch]
        return holds[0] if holds and launch not in self.dead else None

    def begins_an_attempt(self, launch: str) -> None:
        hold = self._hold(launch)
        if hold is None or hold.lost:
            return
        task = self.tasks[hold.name]
        path = self.tree.paths.log(hold.name, task.next_attempt)
        if task.log != task.next_attempt and not os.path.exists(path):
            self.tree.fs.create(path, b"output\n")
            task.log = task.next_attempt

    def finishes(self, launch: str, outcome: Outcome) -> None:
        hold = self._hold(launch)
        if hold is None:
            return
        self.holds[launch].pop(0)
        task = self.tasks[hold.name]
        held = read_again(self.tree, hold.held)
        assert (held is None) == hold.lost, "whether the claim is there is told wrongly"
        if held is None:
            line = self._line(hold.held, outcome, task)
            assert close_own(self.tree, hold.held, line) is None
            return
        assert destination(held.record, outcome) == task.goes_to(outcome)
        line = self._line(held, outcome, task)
        closed = close_own(self.tree, held, line)
        assert closed is not None
        assert closed.mine
        assert closed.moved
        self._close(task, held.owner.token, outcome, line.to, line.attempt)

    def _line(self, held: Claim, outcome: Outcome, task: Task) -> HistoryLine:
        return HistoryLine(
            claim=held.owner.token,
            owner=str(held.owner),
            outcome=outcome,
            to=task.goes_to(outcome),  # type: ignore[arg-type]
            attempt=task.next_attempt if task.log == task.next_attempt else 0,
            ended_at=clock.timestamp(),
        )

    def _close(self, task: Task, token: str, outcome: Outcome, to: str, attempt: int) -> None:
        task.closed.append((token, outcome, to, attempt))
        task.state = {"pending": State.PENDING, "done": State.DONE, "failed": State.FAILED}[to]
        task.lane = task.spec.lane if task.state is State.PENDING else Lane.PLAIN
        task.token = ""

    def puts_back(self, launch: str) -> None:
        hold = self._hold(launch)
        if hold is None:
            return
        task = self.tasks[hold.name]
        if not hold.lost and task.log == task.next_attempt:
            return  # what became an attempt is closed by a line
        self.holds[launch].pop(0)
        assert put_back(self.tree, hold.held) is not hold.lost
        if not hold.lost:
            task.state, task.lane, task.token = State.PENDING, task.spec.lane, ""

    def dies(self, launch: str) -> None:
        self.dead.add(launch)

    def starts_anew(self, launch: str) -> None:
        """A worker of a new launch comes; what the dead one held stays until it is recovered."""
        if launch in self.dead and not any(not hold.lost for hold in self.holds[launch]):
            self.dead.discard(launch)
            self.holds[launch].clear()

    # -- recovery

    @rule(
        wrongly=st.sampled_from([None, None, None, *LAUNCHES]),
        unsure=st.booleans(),
        dry=st.booleans(),
    )
    def recovers(self, wrongly: str | None, unsure: bool, dry: bool) -> None:
        def ask(owner: Owner, lease: leases.Lease | None) -> Verdict:
            launch = next(one for one in LAUNCHES if one.startswith(f"{owner.launch}-"))
            assert lease is not None, "a worker's lease is gone"
            gone = launch in self.dead or launch == wrongly
            live = Liveness.UNKNOWN if unsure else Liveness.GONE if gone else Liveness.ALIVE
            return Verdict(liveness=live, reason="told by the test")

        report = recover(self.tree, ask, dry_run=dry)
        claimed = [hold for holds in self.holds.values() for hold in holds if not hold.lost]
        if unsure:
            assert (report.unknown, report.recovered) == (len(claimed), 0)
            return
        over = [
            (launch, hold)
            for launch, holds in self.holds.items()
            for hold in holds
            if not hold.lost and (launch in self.dead or launch == wrongly)
        ]
        assert (report.alive, report.unknown) == (len(claimed) - len(over), 0), report.items
        if dry:
            return
        assert report.recovered == len(over), report.items
        for _, hold in over:
            task = self.tasks[hold.name]
            began = task.log == task.next_attempt
            to = task.goes_to(Outcome.LOST)
            attempt = task.next_attempt if began else 0
            self._close(task, hold.held.owner.token, Outcome.LOST, to, attempt)
            hold.lost = True

    # -- steering

    @rule(
        at=st.integers(0, 5), act=st.sampled_from(["cancel", "retry", "retry", "promote", "repair"])
    )
    def a_person_acts(self, at: int, act: str) -> None:
        match act:
            case "cancel":
                self.cancels_a_task(NAMES[at])
            case "retry":
                self.retries(self._pick(at, State.FAILED))
            case "promote":
                self.promotes()
            case "repair":
                self.is_repaired()

    def cancels_a_task(self, name: str) -> None:
        task = self.tasks.get(name)
        try:
            with Canceller(self.tree) as canceller:
                result = canceller.cancel(name)
        except NoSuchTaskError:
            assert task is None, f"{name} is there"
            return
        assert task is not None
        self.cancels.add(name)
        if task.state in (State.PENDING, State.WAITING):
            assert result.cancelled
            assert result.state is State.FAILED
            task.closed.append(("", Outcome.CANCELLED, "failed", 0))
            task.state, task.lane = State.FAILED, Lane.PLAIN
        else:
            assert not result.cancelled
            assert result.state is task.state
            assert result.requested is (task.state is State.RUNNING)

    def retries(self, name: str) -> None:
        task = self.tasks.get(name)
        try:
            state = control.retry(self.tree, name)
        except NoSuchTaskError:
            assert task is None
            return
        except SpoolError:
            assert task is not None
            assert task.state is not State.FAILED
            return
        assert task is not None
        assert task.state is State.FAILED
        self.cancels.discard(name)
        never_ran = not any(attempt for _, _, _, attempt in task.closed)
        task.state = State.WAITING if task.spec.after and never_ran else State.PENDING
        task.lane = task.spec.lane if task.state is State.PENDING else Lane.PLAIN
        assert state is task.state

    def promotes(self) -> None:
        promoted = control.promote(self.tree)
        ready = [name for name, task in self.tasks.items() if self._is_ready(name, task)]
        assert sorted(promoted) == sorted(ready)
        for name in promoted:
            task = self.tasks[name]
            task.state, task.lane = State.PENDING, task.spec.lane

    def _is_ready(self, name: str, task: Task) -> bool:
        if task.state is not State.WAITING:
            return False
        for one in task.spec.after:
            found = [o for o in self.tasks if o != name and fnmatch.fnmatchcase(o, one)]
            if not found or any(self.tasks[o].state is not State.DONE for o in found):
                return False
        return True

    # -- accidents

    @rule(
        launch=st.sampled_from(LAUNCHES),
        keep=st.integers(1, 40),
        folder=st.sampled_from(_FOLDERS),
        file=st.sampled_from(_FOREIGN),
        by_s=st.sampled_from([-1e9, -3600.0, 0.5, 3600.0, 1e8]),
        act=st.sampled_from(["file", "tear", "tear", "clock", "gone"]),
    )
    def something_happens(  # noqa: PLR0917 - what hypothesis draws comes by name
        self, launch: str, keep: int, folder: str, file: str, by_s: float, act: str
    ) -> None:
        match act:
            case "file":
                self.a_foreign_file_appears(folder, file)
            case "tear":
                self.a_history_line_is_torn(launch, keep)
            case "clock":
                self.the_clock_jumps(by_s)
            case "gone":
                self.foreign_files_go()

    def a_foreign_file_appears(self, folder: str, file: str) -> None:
        path = f"{self.tree.paths.root}/{folder}/{file}"
        with open(path, "wb") as made:
            made.write(b"#!/bin/sh\nrm -rf /\n")
        self.strays.add(path)

    def foreign_files_go(self) -> None:
        for path in self.strays:
            os.unlink(path)
        self.strays.clear()

    def a_history_line_is_torn(self, launch: str, keep: int) -> None:
        hold = self._hold(launch)
        if hold is None or hold.lost or self.tasks[hold.name].torn:
            return
        line = b'#FLEET-RUN {"claim":"t-1","outcome":"lost","to":"pending"}\n'
        with open(hold.held.path, "ab") as file:
            file.write(line[:keep])
        self.tasks[hold.name].torn = 1

    def the_clock_jumps(self, by_s: float) -> None:
        self.offset_s = max(-1.7e9, min(1e9, self.offset_s + by_s))

    def is_repaired(self) -> None:
        report = check(self.tree, repair=True)
        assert not report.repaired, f"{report.repaired} was repaired, and nothing was broken"

    # -- what a second reader sees

    @invariant()
    def the_second_reader_agrees(self) -> None:
        tree = SpoolTree(self.tree.paths.root)
        assert set(tree.fs.listdir(tree.paths.names)) == set(self.tasks), "names differ"
        expected = dict.fromkeys((state.value for state in State), 0)
        for name, task in self.tasks.items():
            expected[task.state.value] += 1
            found = tree.find(name)
            assert (found.state, found.lane) == (task.state, task.lane), f"{name}: {found}, {task}"
            assert (found.owner.token if found.owner else "") == task.token
            record = tree.read(found.path)
            assert record.spec == task.spec, f"{name}: what is to run has changed"
            lines = [(one.outcome, one.to, one.attempt) for one in closing_lines(record)]
            assert lines == [one[1:] for one in task.closed], f"{name}: its history differs"
            assert record.damaged <= task.torn
        assert views.counts(tree) == expected, "the counts differ"
        assert {name for name in tree.fs.listdir(tree.paths.cancel)} == self.cancels
        assert not tree.fs.listdir(tree.paths.tmp), "something was left in tmp"

    @invariant()
    def check_finds_what_was_put_there(self) -> None:
        report = check(SpoolTree(self.tree.paths.root))
        faults = {fault.path for fault in report.faults}
        expected = {path for path in self.strays if not os.path.basename(path).startswith(".nfs")}
        assert faults == expected, f"found {report.faults}, expected {expected}"
        assert report.tasks == len(self.tasks)
