"""``fleetcraft telemetry inspect``: what telemetry files hold, and what is wrong with them.

Invariant: rejected rows are an answer, not a failure; only a place of which nothing could be read
is one.
"""

from __future__ import annotations

import math
import sys

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.cli.telemetry.places import telemetry_place
from fleetcraft.errors import UsageError
from fleetcraft.units import parse_duration_s
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft telemetry inspect
fleetcraft telemetry inspect /scratch/me/fleet/telemetry --json
fleetcraft telemetry inspect host04.csv --gap 90
"""
_EXITS = """
0 files could be read, whatever is wrong with them
2 there is no such place; 3 the scratch tree has no telemetry yet
7 no file there could be read
"""


@click.command(cls=FleetCommand, name="inspect", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("place", metavar="[DIR]", required=False)
@click.option("--gap", metavar="S", help="From which step on there is a gap (35, or by sidecar).")
@click.option("--limit", type=click.IntRange(0), default=20, help="Files that text lists (20).")
@pass_session
def inspect_command(session: Session, place: str | None, gap: str | None, limit: int) -> int:
    """Say what is in telemetry files, and what is wrong with them.

    DIR is a folder or one file, of the logger or an archive. Counts rows and rejected lines by
    kind, cells without a value, rows logged twice, steps back in time and gaps, and sums up
    utilization, memory and energy. A GPU that several files have counts once.
    """
    from fleetcraft.telemetry.inspection.whole import inspect
    from fleetcraft.view.inspection import ReadingProgress, render_inspection
    from fleetcraft.view.inspection_shape import inspection_shape

    gap_s = None if gap is None else _seconds(gap)
    there = telemetry_place(session, place)
    progress = ReadingProgress(sys.stderr.isatty())
    try:
        done = inspect(there, gap_s=gap_s, progress=progress)
    finally:
        progress.close()
    if session.json:
        print_json(inspection_shape(done))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_inspection(done, limit=limit, paint=paint, width=columns()))
    return 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return float(parse_duration_s(text))
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"not a usable gap: {text!r}", hint="--gap 35, or --gap 2m", text=text)
    return seconds
