"""``fleetcraft promote``: waiting tasks that are ready become pending.

Workers do the same when they finish a task or are idle; this is for a spool without any.
"""

from __future__ import annotations

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.spool.control import promote
from fleetcraft.view.text import left_out, plural

_SHOWN = 100


@click.command(cls=FleetCommand, name="promote", examples="fleetcraft promote")
@pass_session
def promote_command(session: Session) -> None:
    """Move waiting tasks that are ready.

    A task is ready when every task it names is done and its files exist.
    """
    names = promote(session.tree())
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.promote/1",
                "count": len(names),
                "promoted": names[:_SHOWN],
                "left_out": max(0, len(names) - _SHOWN),
            }
        )
        return
    print_text(f"promoted {plural(len(names), 'task')}")
    for line in [*(f"  {name}" for name in names[:_SHOWN]), *left_out(len(names[_SHOWN:]))]:
        print_text(line)
