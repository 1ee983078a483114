"""``fleetcraft evidence results``: what is in a set, arm by arm, and what is wrong with it.

Invariant: reading only; a line that was not used is counted by its reason.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.layout import Scratch
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft evidence results
fleetcraft evidence results sweep-1
fleetcraft evidence results sweep-1 --arm full --json
"""
_EXITS = """
0 every record can be used, and no arm is mixed; a line cut short by a full disk only counts
1 an arm mixes what makes it two measurements
7 a record was changed or cannot be read, an arm states a fact in some records only, or no such set
"""


@click.command(cls=FleetCommand, name="results", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("set_name", metavar="[SET]", default="")
@click.option("--arm", default="", metavar="NAME", help="Only this arm.")
@click.option("--limit", type=click.IntRange(0), default=50, help="Entries a list (50).")
@pass_session
def results_command(session: Session, set_name: str, arm: str, limit: int) -> int:
    """List result records by arm, and what is wrong with them.

    Without SET, lists the sets. Each record carries its digest: one that was changed since is
    never used.
    """
    from fleetcraft.errors import DataError
    from fleetcraft.evidence.results.arms import judge_arm
    from fleetcraft.evidence.results.sets import read_set, set_names
    from fleetcraft.view.evidence_results import (
        render_set,
        render_sets,
        set_shape,
        sets_shape,
    )

    folder = Scratch(session.config.root).evidence
    if not set_name:
        sets = [read_set(folder, name) for name in set_names(folder)]
        listed = [(each.name, len(each.rows), len(each.rejects)) for each in sets]
        if session.json:
            print_json(sets_shape(listed, limit=limit))
        else:
            print_text(render_sets(listed, limit=limit) or "no result sets")
        return 7 if any(each.damaged for each in sets) else 0
    found = read_set(folder, set_name)
    if arm and arm not in found.arms():
        raise DataError(
            f"no record of arm {arm!r} in set {set_name!r}",
            hint=f"arms there: {', '.join(list(found.arms())[:12])}",
            arm=arm,
        )
    if session.json:
        print_json(set_shape(found, arm, limit=limit))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_set(found, arm, limit=limit, paint=paint, width=columns()))
    mixed = [
        each for name, rows in found.arms().items() if arm in ("", name) for each in judge_arm(rows)
    ]
    if any(each.certain for each in mixed):
        return 1
    return 7 if mixed or found.damaged else 0
