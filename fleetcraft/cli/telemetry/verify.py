"""``fleetcraft telemetry verify``: whether a frozen window holds.

Invariant: exit 0 means that everything that could be checked agrees, and says what could not.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft telemetry verify window.json
fleetcraft telemetry verify window.json --sources /scratch/me/fleet/telemetry
"""
_EXITS = """
0 verified
1 refuted: it does not agree with its observations or sources
7 unverifiable, or no frozen window
"""


@click.command(cls=FleetCommand, name="verify", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("file")
@click.option("--sources", metavar="DIR", help="The folder that was summed up.")
@pass_session
def verify_command(session: Session, file: str, sources: str | None) -> int:
    """Recompute a frozen window from its evidence.

    The summary is computed again from the observations in FILE. Where its sources are, in --sources
    or where FILE says or lies or in the scratch tree, their prefixes are hashed and read again; a
    file that has only grown since still agrees. Archived windows of schema 2 are recomputed too.
    """
    from fleetcraft.telemetry.windows.verdicts import Verdict
    from fleetcraft.telemetry.windows.verify import verify
    from fleetcraft.view.frozen import render_verification, verification_shape

    configured = session.config.text("telemetry.dir")
    found = verify(file, sources=sources, elsewhere=(configured,) if configured else ())
    if session.json:
        print_json(verification_shape(found, path=file))
    else:
        print_text(render_verification(found, path=file, paint=Paint.for_stream(sys.stdout)))
    return {Verdict.VERIFIED: 0, Verdict.REFUTED: 1, Verdict.UNVERIFIABLE: 7}[found.verdict]
