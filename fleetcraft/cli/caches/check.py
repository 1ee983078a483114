"""``fleetcraft caches check``: conflicts of caches before a launch, and what is near its purge.

Invariant: what could not be told makes the answer unknown, never well.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.caches.show import ask_tasks_python
from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import FleetError
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.caches.records import Peer

_EXAMPLES = """
fleetcraft caches check
fleetcraft caches check --ask
fleetcraft caches check --json
"""
_EXITS = """
0 no conflict
1 a conflict: each is printed with its code and its cure
7 no conflict was found, but something could not be told
"""


@click.command(cls=FleetCommand, name="check", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--ask", is_flag=True, help="Ask the libraries of the tasks' Python (batch.python).")
@click.option("--torch", is_flag=True, help="Import torch too, which takes seconds (with --ask).")
@click.option("--limit", type=click.IntRange(0), default=20, help="Of each list; 0 for all.")
@pass_session
def check_command(session: Session, ask: bool, torch: bool, limit: int) -> int:
    """Find conflicts before a launch, and files that are near their purge age.

    Compared are names of one cache with one another, workers that live with one another, places
    with what they are for, and with --ask what was computed with what the libraries say. Advice
    is printed and is no conflict.
    """
    from fleetcraft.caches.records import Severity
    from fleetcraft.fleet.launch.cache_files import look_into_caches
    from fleetcraft.fleet.launch.caches import look_at_caches
    from fleetcraft.view.caches import check_shape, render_check

    asked = ask_tasks_python(session, torch=torch) if ask or torch else None
    view = look_at_caches(session.config, os.environ, asked=asked, peers=_peers(session))
    view = look_into_caches(session.config, view)
    bad = any(one.severity is not Severity.ADVICE for one in view.conflicts)
    code = 1 if bad else 7 if view.unknown else 0
    if session.json:
        answer = {0: "no_conflict", 1: "conflict", 7: "unknown"}[code]
        print_json(check_shape(view, answer))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_check(view, limit=limit or None, paint=paint))
    return code


def _peers(session: Session) -> tuple[Peer, ...]:
    """Workers of the spool that live; none where there is no spool yet."""
    from fleetcraft.fleet.launch.caches import cache_peers

    try:
        if not os.path.isdir(session.spool_dir):
            return ()
        return cache_peers(session.tree())
    except (OSError, FleetError):
        return ()
