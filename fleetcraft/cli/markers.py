"""``fleetcraft drain``, ``stop`` and ``resume``: the markers that workers obey.

Invariant: a marker that stands is never overwritten, so it keeps saying who wrote it first.
"""

from __future__ import annotations

import os

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.spool import control

_REASON = click.option("--reason", default="", metavar="TEXT", help="Why; status shows it.")


@click.command(
    cls=FleetCommand,
    name="drain",
    examples="fleetcraft drain --reason 'maintenance at noon'",
)
@_REASON
@pass_session
def drain_command(session: Session, reason: str) -> None:
    """Ask every worker to finish what it runs and leave.

    The marker stands until `fleetcraft resume`; while it does, no worker starts.
    """
    _write(session, "drain", reason)


@click.command(
    cls=FleetCommand, name="stop", examples="fleetcraft stop --reason 'the nodes are needed'"
)
@_REASON
@pass_session
def stop_command(session: Session, reason: str) -> None:
    """Ask every worker to interrupt what it runs and leave.

    Interrupted tasks go back to pending and spend no retry. The marker stands until
    `fleetcraft resume`; while it does, no worker starts.
    """
    _write(session, "stop", reason)


@click.command(cls=FleetCommand, name="resume", examples="fleetcraft resume")
@pass_session
def resume_command(session: Session) -> None:
    """Remove DRAIN and STOP.

    Workers may start again; those that left must be started anew.
    """
    removed = control.resume(session.tree())
    if session.json:
        print_json({"schema": "fleetcraft.resume/1", "removed": removed})
    elif removed:
        print_text(f"removed: {' and '.join(removed)}")
    else:
        print_text("there was no DRAIN and no STOP; nothing was changed")


def _write(session: Session, verb: str, reason: str) -> None:
    tree = session.tree()
    path = tree.paths.drain_marker if verb == "drain" else tree.paths.stop_marker
    name = os.path.basename(path)
    existed = tree.fs.exists(path)
    control.write_marker(tree, path, reason)
    said = control.read_markers(tree).get(name, "")
    if session.json:
        print_json(
            {
                "schema": f"fleetcraft.{verb}/1",
                "marker": name,
                "path": path,
                "said": said,
                "existed": existed,
            }
        )
        return
    print_text(f"{name} {'stood already' if existed else 'stands'}, {said}")
    print_text(f"{session.reach()} resume removes it")
