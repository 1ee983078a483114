"""``fleetcraft evidence export``: a BagIt bag.

Invariant: what has the final name was read back from there and is valid by the bagit library.
"""

from __future__ import annotations

import click

from fleetcraft.cli.evidence.kept import kept_room
from fleetcraft.cli.output import print_json, print_text, reading_bar
from fleetcraft.cli.session import FleetCommand, Session, pass_session

_EXAMPLES = """
fleetcraft evidence export sweep-1 /work/me/bags/sweep-1
fleetcraft evidence export /work/me/archive/sweep-1 bag/
"""
_EXITS = """
0 exported; or it was there, and is verified again
1 source or destination is not what the manifest says
2 something else has the name BAG, or BAG lies inside the source
3 the bagit library is not installed
5 the disk is full, or the system refused; nothing has the name BAG
7 a name that bags cannot hold, or a file that cannot be read or changed meanwhile
"""


@click.command(cls=FleetCommand, name="export", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("what", metavar="NAME")
@click.argument("bag", metavar="BAG")
@click.option("--folder", metavar="DIR", help="Where the files are, if not where it says.")
@pass_session
def export_command(session: Session, *, what: str, bag: str, folder: str | None) -> None:
    """Write what a manifest names as a BagIt bag.

    NAME is a kept name, a manifest's file, or an archive. The bag is BagIt 1.0 with sha256
    manifests; fleetcraft's own manifest, with kinds and producers, is a tag file in it. It is
    copied and proved as an archive is, and validated by the bagit library before BAG gets its name.
    """
    from fleetcraft.evidence.files.bag import export
    from fleetcraft.evidence.files.targets import find_target, require_files
    from fleetcraft.view.evidence_files import bag_shape, render_bag

    found = find_target(what, kept=kept_room(session), folder=folder)
    manifest, source = require_files(found)
    with reading_bar() as progress:
        done = export(manifest, source, bag, progress=progress)
    if session.json:
        print_json(bag_shape(done))
    else:
        print_text(render_bag(done))
