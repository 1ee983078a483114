"""``fleetcraft train abort``: the marker that asks a run to finish its step, save and leave.

Invariant: nothing is stopped from here, and a marker is renamed, never removed.
"""

from __future__ import annotations

import os

import click

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

_EXAMPLES = """
fleetcraft train abort distill --reason 'the data of shard 7 is wrong'
fleetcraft train abort distill --clear
"""
_EXITS = """
0 the marker stands, also when it stood already; with --clear: it does not stand
1 whether it stands is not known; 2 no such run
"""


@click.command(cls=FleetCommand, name="abort", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("run")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people and records.")
@click.option("--clear", is_flag=True, help="Take the marker away: it gets a dated name.")
@pass_session
def abort_command(session: Session, *, run: str, reason: str, clear: bool) -> int:
    """Ask a run to finish its step, save and leave.

    The trainer finds the marker at the path in FLEET_ABORT_FILE and leaves with exit code 3, which
    the supervisor then takes for what it is: no failure, no restart. Until the marker is cleared,
    the run is not launched again.
    """
    from fleetcraft.training.supervision import overview

    if clear and reason:
        raise UsageError("--clear takes no --reason", hint="give one of the two")
    if not clear and not reason:
        raise UsageError(
            "--reason is missing: whoever finds the marker has to know why it is there",
            hint=f"fleetcraft train abort {run} --reason TEXT",
        )
    paths = overview.find_run(session.config.root, run)
    if clear:
        dated = overview.clear_abort(paths)
        _say(session, paths.name, stands=False, changed=dated is not None, path=dated or "")
    else:
        put = overview.put_abort(paths, reason)
        _say(session, paths.name, stands=True, changed=put, path=paths.abort_marker)
    return 0


def _say(session: Session, run: str, *, stands: bool, changed: bool, path: str) -> None:
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.train-abort-set/1",
                "run": run,
                "stands": stands,
                "changed": changed,
                "path": path,
            }
        )
        return
    if stands:
        print_text(f"{run}: ABORT stands" + ("" if changed else ", and stood already"))
    elif changed:
        print_text(f"{run}: ABORT is cleared; it is kept as {os.path.basename(path)}")
    else:
        print_text(f"{run}: no ABORT stood")
    if stands and changed:
        note("the trainer leaves after its step; fleetcraft train status shows when")
