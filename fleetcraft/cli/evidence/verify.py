"""``fleetcraft evidence verify``: whether files are what their manifest says.

Invariant: exit 0 means that every file agrees at the level that is printed.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.evidence.kept import kept_room
from fleetcraft.cli.output import print_json, print_text, reading_bar
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.evidence.records import Level
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft evidence verify sweep-1
fleetcraft evidence verify /work/me/archive/sweep-1 --level reread
fleetcraft evidence verify sweep-1.manifest.json --folder /scratch/me/results
fleetcraft evidence verify bag/
"""
_EXITS = """
0 verified at the level that is printed
1 refuted: every file that was added, removed, renamed or changed is named
7 unverifiable: a manifest or files that cannot be read, or no such thing
"""
_LEVELS = ("listed", "sized", "hashed", "reread")


@click.command(cls=FleetCommand, name="verify", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("target", metavar="TARGET")
@click.option(
    "--level", type=click.Choice(_LEVELS), default="hashed", help="How closely to look (hashed)."
)
@click.option("--folder", metavar="DIR", help="Where a manifest's files are, if not where it says.")
@click.option("--limit", type=click.IntRange(0), default=20, help="Entries a list of text (20).")
@pass_session
def verify_command(
    session: Session, *, target: str, level: str, folder: str | None, limit: int
) -> int:
    """Compare files with their manifest, at a level that is named.

    TARGET is a manifest's file, an archive, a BagIt bag, or a name that freeze has kept. Each level
    includes those before it: listed looks at names, sized at sizes, hashed reads every file, reread
    reads every file from the disk past the page cache, as well as the file system allows.
    """
    from fleetcraft.evidence.files.targets import find_target, verify_target
    from fleetcraft.evidence.files.verifying import Verdict
    from fleetcraft.view.evidence_files import render_verification, verification_shape

    found = find_target(target, kept=kept_room(session), folder=folder)
    with reading_bar() as progress:
        done = verify_target(found, Level(level), progress=progress)
    kind = found.kind.value
    if session.json:
        print_json(verification_shape(done, target=target, kind=kind))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_verification(done, target=target, kind=kind, limit=limit, paint=paint))
    return {Verdict.VERIFIED: 0, Verdict.REFUTED: 1, Verdict.UNVERIFIABLE: 7}[done.verdict]
