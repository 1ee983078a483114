"""``fleetcraft status``: the spool at a glance, once or again and again.

Invariant: its cost is bounded by listings; only the entries that are shown are read.
"""

from __future__ import annotations

import sys
import time

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import Amount, FleetCommand, Session, pass_session
from fleetcraft.errors import FleetError
from fleetcraft.identity import Owner
from fleetcraft.spool import views
from fleetcraft.spool.record import closing_lines
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.units import LONGEST_WAIT_S
from fleetcraft.view.status import Failure, Running, render_status, status_shape
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft status
fleetcraft status --watch 5
fleetcraft status --json --limit 100
"""
_CLEAR = "\x1b[H\x1b[2J"


@click.command(cls=FleetCommand, name="status", examples=_EXAMPLES)
@click.option("--limit", type=click.IntRange(0), default=20, help="Entries a list (20).")
@click.option(
    "--watch",
    type=Amount(0.5, LONGEST_WAIT_S),
    metavar="S",
    help="Look again every so many seconds, until interrupted.",
)
@pass_session
def status_command(session: Session, limit: int, watch: float | None) -> None:
    """Show what waits, runs and failed, and who works.

    A worker is alive or gone only where this machine can tell; elsewhere it is unknown.
    """
    tree = session.tree()
    _print(session, tree, limit, clear=False)
    while watch is not None:
        time.sleep(watch)
        _print(session, tree, limit, clear=sys.stdout.isatty() and not session.json)


def _print(session: Session, tree: SpoolTree, limit: int, *, clear: bool) -> None:
    view = views.status(tree, limit=limit)
    running = [_running(tree, view, name, owner) for name, owner in view.running]
    failures = [_failure(tree, name) for name in view.failed]
    if session.json:
        print_json(status_shape(view, running, failures, limit=limit))
    else:
        text = render_status(
            view,
            running,
            failures,
            limit=limit,
            paint=Paint.for_stream(sys.stdout),
            width=columns(),
        )
        print_text(_CLEAR + text if clear else text)
    sys.stdout.flush()


def _running(tree: SpoolTree, view: views.StatusView, name: str, owner: Owner) -> Running:
    host = next((w.host for w, _ in view.workers if w.name == owner.lease_name), "")
    return Running(
        name=name,
        owner=str(owner),
        host=host,
        slot=owner.slot,
        claimed_at=_changed_at(tree, tree.paths.claim(name, owner)),
    )


def _changed_at(tree: SpoolTree, path: str) -> str | None:
    """When a claim was made: its rename was the last change of the file's status (ctime)."""
    try:
        changed_s = tree.fs.lstat(path).st_ctime
    except OSError:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(changed_s))


def _failure(tree: SpoolTree, name: str) -> Failure:
    try:
        shown = views.show(tree, name)
    except (OSError, FleetError) as error:
        return Failure(name=name, last=None, reason=getattr(error, "message", str(error)))
    lines = closing_lines(shown.record)
    if not lines:
        return Failure(name=name, last=None, reason="its record has no history")
    last = lines[-1]
    for attempt in reversed(shown.attempts):
        if attempt.attempt == last.attempt:
            return Failure(name=name, last=attempt, reason=last.reason)
    never = views.AttemptView(attempt=0, outcome=last.outcome.value, ended_at=last.ended_at)
    return Failure(name=name, last=never, reason=last.reason)
