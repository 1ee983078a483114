"""``fleetcraft cancel``: tasks that wait or are pending end here; running ones by their worker.

Invariant: what is reported as cancelled was seen in ``failed``.
"""

from __future__ import annotations

import time

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import Amount, FleetCommand, Session, pass_session
from fleetcraft.errors import FleetError, SpoolError, TryAgainLaterError
from fleetcraft.layout import State
from fleetcraft.spool.control import Canceller, CancelResult
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.units import LONGEST_WAIT_S
from fleetcraft.view.text import left_out

_POLL_S = 0.2
_SHOWN = 100
_EXAMPLES = """
fleetcraft cancel gen-00017
fleetcraft cancel gen-00017 gen-00018 --wait 60
fleetcraft cancel gen-00017 --dry-run
"""
_EXITS = """
0 ended, or asked to end; 5 no such task; 75 still running after --wait
"""


@click.command(cls=FleetCommand, name="cancel", examples=_EXAMPLES, exits=_EXITS)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--wait",
    type=Amount(0, LONGEST_WAIT_S),
    default=0.0,
    metavar="S",
    help="Wait so many seconds for running ones to end (0).",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be ended.")
@pass_session
def cancel_command(session: Session, names: tuple[str, ...], wait: float, dry_run: bool) -> None:
    """End tasks before or while they run.

    A task that waits or is pending is moved to failed at once. The worker of a running one is
    asked to stop it, which it does at its next heartbeat. A cancelled task can be retried.
    """
    tree = session.tree()
    results, problems = _cancel(tree, names, dry_run=dry_run)
    if len(names) == 1 and problems:
        raise problems[0]
    deadline = time.monotonic() + wait
    results = [_await_end(tree, result, deadline) for result in results]
    _say(session, results, problems, dry_run=dry_run)
    _raise_for(results, problems, waited=wait > 0, of=len(names))


def _cancel(
    tree: SpoolTree, names: tuple[str, ...], *, dry_run: bool
) -> tuple[list[CancelResult], list[FleetError]]:
    results: list[CancelResult] = []
    problems: list[FleetError] = []
    with Canceller(tree) as canceller:
        for name in dict.fromkeys(names):
            try:
                if dry_run:
                    results.append(CancelResult(name=name, state=tree.find(name).state))
                else:
                    results.append(canceller.cancel(name))
            except FleetError as error:
                problems.append(error)
    return results, problems


def _await_end(tree: SpoolTree, result: CancelResult, deadline: float) -> CancelResult:
    """The result as it is when the task has ended or the time is over."""
    if not result.requested:
        return result
    while time.monotonic() < deadline:
        state = tree.find(result.name).state
        if state in (State.DONE, State.FAILED):
            return CancelResult(
                name=result.name, state=state, cancelled=state is State.FAILED, requested=True
            )
        time.sleep(_POLL_S)
    return result


def _say(
    session: Session, results: list[CancelResult], problems: list[FleetError], *, dry_run: bool
) -> None:
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.cancel/1",
                "dry_run": dry_run,
                "tasks": [
                    {
                        "name": result.name,
                        "state": result.state.value,
                        "cancelled": result.cancelled,
                        "requested": result.requested,
                    }
                    for result in results[:_SHOWN]
                ],
                "left_out": max(0, len(results) - _SHOWN),
                "problems": [problem.message for problem in problems[:_SHOWN]],
            }
        )
        return
    for result in results[:_SHOWN]:
        print_text(f"{result.name}: {_sentence(result, dry_run=dry_run)}")
    for line in left_out(len(results[_SHOWN:])):
        print_text(line)
    if any(result.requested and result.state is State.RUNNING for result in results):
        print_text(f"if a worker is gone, {session.reach()} recover ends its tasks")


def _sentence(result: CancelResult, *, dry_run: bool) -> str:
    ended = result.state in (State.DONE, State.FAILED)
    if result.cancelled:
        return "cancelled"
    if ended:
        return f"has ended already ({result.state.value}); nothing was changed"
    if dry_run:
        how = "its worker would be asked" if result.state is State.RUNNING else "would be ended"
        return f"{result.state.value}; {how}"
    return "running; its worker was asked to stop it, at its next heartbeat"


def _raise_for(
    results: list[CancelResult], problems: list[FleetError], *, waited: bool, of: int
) -> None:
    if problems:
        raise SpoolError(
            f"{len(problems)} of {of} tasks could not be cancelled: {problems[0].message}",
            hint=problems[0].hint,
            problems=[problem.message for problem in problems[:_SHOWN]],
        )
    running = [r.name for r in results if r.requested and r.state is State.RUNNING]
    if waited and running:
        raise TryAgainLaterError(
            f"{running[0]!r} still runs; the request to end it stands",
            hint=f"fleetcraft show {running[0]}",
            running=running[:_SHOWN],
        )
