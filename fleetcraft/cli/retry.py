"""``fleetcraft retry``: failed tasks go back to their lanes, each with one more attempt.

Several names are all tried; what could not be put back is told at the end.
"""

from __future__ import annotations

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import FleetError, SpoolError, UsageError
from fleetcraft.layout import State
from fleetcraft.spool.control import retry
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.text import left_out, plural

_SHOWN = 100
_EXAMPLES = """
fleetcraft retry gen-00017
fleetcraft retry --failed --dry-run
fleetcraft retry --failed
"""
_EXITS = """
5 a task is not there or has not failed; the others were put back
"""


@click.command(cls=FleetCommand, name="retry", examples=_EXAMPLES, exits=_EXITS)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--failed", is_flag=True, help="Every failed task.")
@click.option("--dry-run", is_flag=True, help="Only say what would be put back.")
@pass_session
def retry_command(session: Session, names: tuple[str, ...], failed: bool, dry_run: bool) -> None:
    """Put failed tasks back.

    Each gets one more attempt, whatever its retries were. One that was cancelled while it
    waited for others waits for them again.
    """
    if failed == bool(names):
        hint = "fleetcraft retry NAME..., or fleetcraft retry --failed"
        raise UsageError("give either names or --failed", hint=hint)
    tree = session.tree()
    if failed:
        names = tuple(sorted(tree.records(tree.paths.failed)))
    done, problems = _put_back(tree, names, dry_run=dry_run)
    if len(names) == 1 and problems:
        raise problems[0]
    _say(session, done, problems, dry_run=dry_run)
    if problems:
        raise SpoolError(
            f"{len(problems)} of {len(names)} tasks could not be put back: {problems[0].message}",
            hint=problems[0].hint,
            problems=[problem.message for problem in problems[:_SHOWN]],
        )


def _put_back(
    tree: SpoolTree, names: tuple[str, ...], *, dry_run: bool
) -> tuple[dict[str, str], list[FleetError]]:
    done: dict[str, str] = {}
    problems: list[FleetError] = []
    for name in dict.fromkeys(names):
        try:
            done[name] = _look(tree, name) if dry_run else retry(tree, name).value
        except FleetError as error:
            problems.append(error)
    return done, problems


def _look(tree: SpoolTree, name: str) -> str:
    state = tree.find(name).state
    if state is not State.FAILED:
        raise SpoolError(
            f"task {name!r} has not failed: it is {state.value}",
            hint=f"fleetcraft show {name}",
            name=name,
            state=state.value,
        )
    return "would be put back"


def _say(
    session: Session, done: dict[str, str], problems: list[FleetError], *, dry_run: bool
) -> None:
    shown = list(done.items())[:_SHOWN]
    more = max(0, len(done) - _SHOWN)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.retry/1",
                "dry_run": dry_run,
                "count": len(done),
                "retried": [
                    {"name": name, "state": "failed" if dry_run else state} for name, state in shown
                ],
                "left_out": more,
                "problems": [problem.message for problem in problems[:_SHOWN]],
            }
        )
        return
    if not done and not problems:
        print_text("nothing has failed; nothing was changed")
        return
    if dry_run:
        print_text(f"would put back {plural(len(done), 'task')}; nothing was changed")
    else:
        print_text(f"put back {plural(len(done), 'task')}")
    for name, state in shown:
        print_text(f"  {name}" if dry_run else f"  {name} ({state})")
    for line in left_out(more):
        print_text(line)
