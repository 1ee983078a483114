"""``fleetcraft calibrate diff``: what changed between two frozen tables.

Invariant: both tables are verified before they are compared; exit codes are those of diff(1).
"""

from __future__ import annotations

import os

import click

from fleetcraft.cli.calibrate.places import table_path
from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session

_EXAMPLES = """
fleetcraft calibrate diff batch-table.0f3a1c2b4d5e.yaml
fleetcraft calibrate diff before.yaml after.yaml --json
"""
_EXITS = """
0 their rows are the same
1 they differ
7 one is not there, was edited, or another user can write it
"""


@click.command(cls=FleetCommand, name="diff", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@pass_session
def diff_command(session: Session, a: str, b: str | None) -> int:
    """Say what differs between two frozen tables.

    A and B are files; B is the current table when it is not given. Each table that a freeze
    replaced lies beside the current one, named by the first digits of its hash; its bare name is
    enough for A.
    """
    from fleetcraft.batch_table import diff, read_table
    from fleetcraft.view.calibration_table import change_lines, diff_shape

    other = b or table_path(session)
    first = _found(a, other)
    before, after = read_table(first), read_table(other)
    changes = diff(before, after)
    if session.json:
        print_json(diff_shape((first, before), (other, after), changes))
    elif changes:
        print_text("\n".join(change_lines(changes)))
    return 1 if changes else 0


def _found(a: str, current: str) -> str:
    """The file that was typed; a bare name that is not here is looked for beside the other."""
    beside = os.path.join(os.path.dirname(current), a)
    is_bare = os.path.basename(a) == a and not os.path.lexists(a)
    return beside if is_bare and os.path.lexists(beside) else a
