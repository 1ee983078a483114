"""``fleetcraft evidence archive``: a copy that is proved from the destination's own bytes.

Invariant: what has the final name was read back from there and agrees.
"""

from __future__ import annotations

import os

import click

from fleetcraft.cli.evidence.kept import kept_room
from fleetcraft.cli.output import note, print_json, print_text, reading_bar
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.view.text import one_line

_EXAMPLES = """
fleetcraft evidence archive sweep-1 /work/me/archive/sweep-1
fleetcraft evidence archive sweep-1.manifest.json /work/me/archive/sweep-1
fleetcraft evidence archive /work/me/archive/sweep-1 /backup/sweep-1
"""
_EXITS = """
0 archived; or it was there, and is verified again
1 source or destination is not what the manifest says
2 something else has the name DEST, or DEST lies inside the source
5 the disk is full, or the system refused; nothing has the name DEST
7 the manifest or a file cannot be read, or the source changed meanwhile
"""


@click.command(cls=FleetCommand, name="archive", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("what", metavar="MANIFEST-OR-NAME")
@click.argument("destination", metavar="DEST")
@click.option("--folder", metavar="DIR", help="Where the files are, if not where it says.")
@pass_session
def archive_command(session: Session, *, what: str, destination: str, folder: str | None) -> None:
    """Copy what a manifest names, and prove it from the destination's own bytes.

    Every file is copied, forced to disk, dropped from the page cache, read again from the disk and
    compared; then DEST gets its name, with manifest.json, receipt.json and the files below data/,
    all read-only. The receipt counts the files at each level, and says how they were read. Called
    again, it verifies what is there. The receipt is kept in the scratch tree too, if there is one.
    """
    from fleetcraft.evidence.files.archive import archive
    from fleetcraft.evidence.files.targets import find_target, require_files
    from fleetcraft.view.evidence_files import archive_shape, render_archive

    room = kept_room(session)
    manifest, source = require_files(find_target(what, kept=room, folder=folder))
    with reading_bar() as progress:
        done = archive(manifest, source, destination, progress=progress)
    kept = ""
    if room is not None and os.path.isdir(os.path.dirname(room.folder)):
        from fleetcraft.evidence.files.keeping import keep_receipt

        try:
            kept, held = keep_receipt(room, done.receipt)
            kept = kept if held else ""
        except OSError as error:  # the archive is there and has its own
            note(f"the receipt was not kept in the scratch tree: {one_line(str(error))}")
    if session.json:
        print_json(archive_shape(done, kept=kept))
    else:
        print_text(render_archive(done, kept=kept))
