"""What must hold after every step and at the end of every schedule.

The end is judged twice: as it was left, and after one clean recovery, repair, promotion and a
worker that runs what it finds. Each check returns a sentence about what is wrong, or an empty text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from fleetcraft.errors import DataError, FleetError
from fleetcraft.identity import Owner
from fleetcraft.layout import LANES, State, parse_claim
from fleetcraft.spool import control
from fleetcraft.spool.check import check
from fleetcraft.spool.record import Outcome, Record, closing_lines, parse
from fleetcraft.spool.recovery import recover
from fleetcraft.spool.tree import SpoolTree
from tests.explore.actors import JOB, attend, claim_any, judge, tree_on
from tests.explore.explorer import Budget, End
from tests.explore.model_fs import DirectFS, World

CANCELLERS = ("C", "D")
"""Launches of cancellers: what they close as cancelled is cancelled, whatever they lived to say."""
_REPEATED = ("t: attempts run", "t: lost follows completed", "check finds attempts_disordered",
             "check finds ran_after_completion")  # fmt: skip
_QUIET = 90
_MAX_CLEAN_CLAIMS = 12
_MAX_FIXES = 4


def places(world: World, name: str) -> list[tuple[State, str]]:
    """Every state in which a task lies."""
    tree = SpoolTree("/s")
    paths = [(State.PENDING, tree.paths.pending_record(name, lane)) for lane in LANES]
    paths.append((State.WAITING, tree.paths.waiting_record(name)))
    paths += [(s, tree.paths.finished_record(name, s)) for s in (State.DONE, State.FAILED)]
    found = [(state, path) for state, path in paths if path in world.names]
    for file in world.children(tree.paths.running):
        claimed = parse_claim(file)
        if claimed and claimed[0] == name:
            found.append((State.RUNNING, f"{tree.paths.running}/{file}"))
    return found


def record_of(world: World, name: str) -> Record | None:
    """The task's record, wherever it lies, through its identity link."""
    data = world.content(f"/s/names/{name}")
    if data is None:
        found = places(world, name)
        data = world.content(found[0][1]) if found else None
    return parse(data) if data else None


def task_names(world: World) -> list[str]:
    return world.children("/s/names")


# -- after every step


def running_rules(world: World, left: Budget, verdicts: int) -> str:
    """Never two attempts at once without a wrong verdict; never again after ``completed``."""
    if len(world.running) > 1 and left.verdicts == verdicts:
        names = [name for _, name, _ in world.running]
        if len(set(names)) < len(names):
            return f"two attempts run at once: {sorted(world.running)}"
    if world.trace and world.trace[-1][0] == "run" and world.running:
        _, name, attempt = world.trace[-1]
        if any(running == (name, attempt) for running in ((n, a) for _, n, a in world.running)):
            return _ran_after_completion(world, name, attempt)
    return ""


def _ran_after_completion(world: World, name: str, attempt: int) -> str:
    record = record_of(world, name)
    if record is None:
        return f"{name} runs and has no record"
    completed = [line for line in closing_lines(record) if line.outcome is Outcome.COMPLETED]
    if any(line.attempt < attempt for line in completed):
        return f"{name} was completed by attempt {completed[0].attempt}, and {attempt} runs"
    return ""


# -- at the end


def as_left(end: End) -> str:
    """What must hold before anything is repaired."""
    world = end.world
    for event in world.trace:
        if event[0] == "enqueued" and not places(world, event[1]):
            return f"{event[1]} was reported as enqueued and is not to be seen"
    for name in task_names(world):
        found = places(world, name)
        if len(found) > 1:
            return f"{name} is in two states: {found}"
        record = record_of(world, name)
        if found and record is not None:
            problem = _history_rules(name, record, found[0][0])
            if problem:
                return problem
    runs = [event[1:] for event in world.trace if event[0] == "run"]
    if len(set(runs)) < len(runs):
        return f"two attempts have one number: {runs}"
    return ""


def _history_rules(name: str, record: Record, state: State) -> str:
    # A claim that was put back has no line, so a late recoverer may still call it lost: no attempt.
    lines = [line for line in closing_lines(record) if line.attempt or line.outcome != "lost"]
    numbers = [line.attempt for line in lines if line.attempt]
    if numbers != sorted(set(numbers)):
        return f"{name}: attempts run {numbers}"
    for line, after in itertools.pairwise(lines):
        if line.outcome is Outcome.COMPLETED:
            return f"{name}: {after.outcome} follows completed"
    if record.damaged:
        return f"{name}: {record.damaged} damaged lines"
    if state in (State.DONE, State.FAILED) and (not lines or lines[-1].to != state.value):
        return f"{name} is in {state}, and its last line says {lines[-1].to if lines else None}"
    return ""


def after_cleaning(end: End) -> str:
    """What must hold after a clean recovery, repair and a worker that completes everything."""
    fs = DirectFS(end.world, _QUIET, rename_flags=end.rename_flags)
    tree = tree_on(fs)
    recover(tree, judge(fs))
    check(tree, repair=True)
    report = check(tree)
    if not report.ok:
        return f"check finds {report.faults[0].kind}: {report.faults[0].detail}"
    if left := fs.world.children(tree.paths.running):
        return f"left in running after recovery: {left}"
    before = fs.world
    problem = _drain(tree, fs)
    if problem:
        return problem
    for name in task_names(fs.world):
        problem = _final_rules(end, before, fs.world, name)
        if problem:
            return problem
    return ""


def _drain(tree: SpoolTree, fs: DirectFS) -> str:
    for number in range(1, _MAX_CLEAN_CLAIMS):
        control.promote(tree)
        held = claim_any(tree, Owner(JOB, "9", "0", f"clean-{number}"))
        if held is None:
            return ""
        attend(tree, fs, held, ("completed",))
        attempts = [event for event in fs.world.trace if event[0] == "run"]
        if attempts and attempts[-1][1] == held.name:
            problem = _ran_after_completion_line(fs.world, held.name, held.owner.token)
            if problem:
                return problem
    return "a clean worker does not come to an end"


def _ran_after_completion_line(world: World, name: str, token: str) -> str:
    record = record_of(world, name)
    assert record is not None
    for line in closing_lines(record):
        if line.outcome is Outcome.COMPLETED and line.claim != token:
            return f"{name} was completed by {line.claim} and ran again under {token}"
    return ""


def _final_rules(end: End, before: World, after: World, name: str) -> str:
    found = places(after, name)
    if len(found) != 1:
        return f"{name} is in {found}, expected one state"
    state = found[0][0]
    if state is State.WAITING:
        return ""
    if state not in (State.DONE, State.FAILED):
        return f"{name} is still {state}"
    return _cancel_rules(end, after, name, state)


def _cancel_rules(end: End, after: World, name: str, state: State) -> str:
    kinds = [event[0] for event in end.world.trace if event[1:2] == (name,)]
    # Nobody else removes a marker, whatever the retrier was told.
    retried = f"/s/cancel/{name}" not in end.world.names
    if not retried and "cancelled" in kinds:
        if state is not State.FAILED:
            return f"{name} was cancelled and is {state}"
        if "run" in kinds[kinds.index("cancelled") :] and not end.spent.verdicts:
            return f"{name} ran after it was cancelled"
    later = after.trace[len(end.world.trace) :]
    if not retried and "requested" in kinds and any(e[:2] == ("run", name) for e in later):
        return f"{name} was started by a later worker although its cancel was acknowledged"
    asked = {"cancelled", "requested", "seen"} & set(kinds)
    if retried and "retried" in kinds and not asked and _ended_cancelled(after, name):
        return f"{name} was retried, nobody cancelled it since, and it ended cancelled"
    return ""


def _ended_cancelled(world: World, name: str) -> bool:
    record = record_of(world, name)
    assert record is not None
    last = closing_lines(record)[-1]
    return last.outcome is Outcome.CANCELLED and not last.claim.startswith(CANCELLERS)


def a_request_stands(end: End) -> str:
    """Where one retrier acts: whoever was told that a worker will be asked has left a marker."""
    for event in end.world.trace:
        if event[0] == "requested" and f"/s/cancel/{event[1]}" not in end.world.names:
            return f"the cancel of {event[1]} was acknowledged, and its request is gone"
    return ""


def everything(end: End) -> str:
    """Both judgements."""
    try:
        return as_left(end) or after_cleaning(end)
    except (OSError, FleetError, DataError) as error:
        return f"cleaning up failed: {type(error).__name__}: {error}"


def numbers_may_repeat_after_a_wrong_verdict(end: End) -> str:
    """For claims that are put back, which leaves no line.

    A recoverer that wrongly took the owner for dead, and opened the record before it was put back,
    writes its line into the next claim's history. Nothing is lost or run twice by that, but
    ``check`` finds a number twice. It takes a log that cannot be made and a wrong verdict at once.
    """
    problem = everything(end)
    return "" if end.spent.verdicts and problem.startswith(_REPEATED) else problem


def both(*checks: Callable[[End], str]) -> Callable[[End], str]:
    """The first sentence of several checks."""

    def all_of(end: End) -> str:
        return next((problem for check_ in checks if (problem := check_(end))), "")

    return all_of


def decided_once(*enqueuers: int) -> Callable[[End], str]:
    """Of several enqueuers of one name with different commands at most one succeeds."""

    def once(end: End) -> str:
        told = [end.results[index] for index in enqueuers if end.results[index] is not None]
        won = [result for result in told if result[:1] == ("returned",)]
        return f"two enqueuers were told that they won: {won}" if len(won) > 1 else ""

    return once
