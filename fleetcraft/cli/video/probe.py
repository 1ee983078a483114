"""``fleetcraft video probe``: what files say about themselves, before anything is decoded.

Invariant: HDR and deep files are described like any other; nothing is refused but what cannot be
read.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft video probe clips/seed-3.mp4
fleetcraft video probe clips/*.mp4 --json
"""
_EXITS = """
0 every file was read
7 a file could not be read; the others are shown
"""


@click.command(cls=FleetCommand, name="probe", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(0), default=20, help="Files that text lists (20).")
@pass_session
def probe_command(session: Session, files: tuple[str, ...], limit: int) -> int:
    """Say what files hold, without decoding them.

    Shows codec, size, rate, pixel format with its depth, primaries, transfer, matrix and range,
    whether it is HDR, how many frames its container promises, and the encoder record beside it.
    """
    from fleetcraft.video.check import probe_video
    from fleetcraft.view.video import probe_shape, render_probe

    found = [probe_video(file) for file in files]
    if session.json:
        print_json(probe_shape(found))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_probe(found, limit=limit, paint=paint, width=columns()))
    return 7 if any(item.info is None for item in found) else 0
