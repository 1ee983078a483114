"""``fleetcraft guard``: whether this login node has room for a launch.

Invariant: it starts no process and no thread, and ends none.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import columns, note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import ConfigError
from fleetcraft.fleet.guard.procfs import why
from fleetcraft.fleet.guard.verdict import Verdict, check_login, limits_from
from fleetcraft.view.guard import guard_shape, render_guard
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft guard
fleetcraft guard && fleetcraft launch -N 4 --time 00:30:00
FLEET_GUARD_PROCESSES_STOP=60 fleetcraft guard --json
"""
_EXITS = """
0 go: there is room
1 caution: a limit is near
2 no-go: start nothing more here; also for a wrong option
3 unknown: something could not be read, so there may be no room; also for wrong settings
"""
_HINTS = {
    Verdict.NO_GO: "end what is not needed, or wait, then ask again; nothing was ended here",
    Verdict.UNKNOWN: "unknown is not room: launch where the processes can be read",
}


@click.command(cls=FleetCommand, name="guard", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--limit", type=click.IntRange(0), default=10, help="Causes that are shown (10).")
@pass_session
def guard_command(session: Session, limit: int) -> int:
    """Say whether this login node has room for a launch.

    Counts the processes, threads and ssh connections of this user, itself included, against the
    limits of the site profile, ulimit -u and the cgroup, and names what takes the most.
    It ends nothing, and starts nothing, so it also answers when no process can be started.
    """
    try:
        limits = limits_from(session.config)
    except OSError as error:
        raise ConfigError(f"cannot read the settings: {why(error)}; nothing was counted") from error
    report = check_login(limits)
    if session.json:
        print_json(guard_shape(report, limit=limit))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_guard(report, limit=limit, paint=paint, width=columns()))
        if report.verdict in _HINTS:
            note(f"hint: {_HINTS[report.verdict]}")
    return report.verdict.exit_code
