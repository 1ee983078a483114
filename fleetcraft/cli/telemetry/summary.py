"""``fleetcraft telemetry summary``: a window of time in figures, and frozen with its evidence.

Invariant: a window without a row is answered with no, and one without a GPU is never frozen.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import columns, note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Seconds, Session, pass_session
from fleetcraft.cli.stamping import journals_of, stamp_made
from fleetcraft.cli.telemetry.places import FileProgress, spools_of, telemetry_place
from fleetcraft.errors import FleetError, UsageError
from fleetcraft.units import format_seconds
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.telemetry.windows.summary import Read

_EXAMPLES = """
fleetcraft telemetry summary
fleetcraft telemetry summary --window 6h --end 2026-11-30T02:00:00Z
fleetcraft telemetry summary traces --end 2026-07-17T12:00:00 --json
fleetcraft telemetry summary --window 300 --freeze window.json
"""
_EXITS = """
0 done
1 no row lies in the window
2 there is no such folder; 3 the scratch tree has no telemetry yet
7 FILE holds another window
"""


@click.command(cls=FleetCommand, name="summary", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("place", metavar="[DIR]", required=False)
@click.option(
    "--window", type=Seconds(), default=300.0, metavar="TIME", help="How long, in seconds (300)."
)
@click.option("--end", metavar="TIME", help="When it ends, in ISO 8601 (now).")
@click.option("--interval", type=Seconds(), metavar="TIME", help="Between samples; see above.")
@click.option("--freeze", "target", metavar="FILE", help="Write the window with its evidence.")
@click.option("--limit", type=click.IntRange(0), default=20, help="Entries a list of text (20).")
@pass_session
def summary_command(
    session: Session,
    *,
    place: str | None,
    window: float,
    end: str | None,
    interval: float | None,
    target: str | None,
    limit: int,
) -> int:
    """Sum up a window of time, and freeze it with its evidence.

    The window ends at --end, which belongs to it. Without a zone --end is UTC for our files and
    the files' own clock for archives that name none; with a zone, such archives are taken to be of
    it. Samples are so far apart as a file's sidecar says, else --interval, else as its rows show,
    else 30 s. A sample stands for at most one and a half of that. Of hosts without a GPU, memory
    and load are told.
    """
    from fleetcraft.telemetry.windows.span import window_at
    from fleetcraft.telemetry.windows.summary import summarize

    if interval is not None and not 0 < interval < float("inf"):
        raise UsageError(f"not a usable interval: {interval:g} s", hint="--interval 30")
    span = window_at(window, end, time.time())
    folder = telemetry_place(session, place)
    with FileProgress() as progress:
        read = summarize(
            folder,
            span,
            spools=spools_of(session, place),
            interval_s=interval,
            keep=target is not None,
            progress=progress,
        )
    if not read.summary.fleet.figures.samples:
        _show(session, read, folder, limit)
        if target is None and (read.bare.hosts or read.summary.queue.is_told):
            return 0
        raise _no_row(read, folder, target)
    if target is not None:
        from fleetcraft.telemetry.windows.freeze import freeze

        assert read.evidence is not None
        freeze(target, read.summary, read.evidence, read.folder)
        note(f"frozen: {target}")
        journals = journals_of(spools_of(session, place))
        stamp_made([target], journals, made_by="fleetcraft telemetry summary")
    _show(session, read, folder, limit)
    return 0


def _show(session: Session, read: Read, folder: str, limit: int) -> None:
    from fleetcraft.view.summary import render_summary, summary_shape

    if session.json:
        print_json(summary_shape(read, place=folder))
    elif read.summary.fleet.hosts or read.bare.hosts or read.summary.queue.is_told:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_summary(read, limit=limit, paint=paint, width=columns()))


def _no_row(read: Read, folder: str, target: str | None) -> FleetError:
    summary = read.summary
    hint = "fleetcraft telemetry inspect says what is there"
    if read.bare.hosts:
        hint = "what is known of hosts without a GPU is shown, and cannot be frozen"
    elif newest := summary.newest or read.bare.newest:
        hint = f"the newest row is of {newest}: --end {newest}"
    elif summary.rows:
        hint = f"no row of it is about a GPU; {hint}"
    return FleetError(
        f"no row of a GPU in {folder} lies in the {format_seconds(summary.window_s)} up to "
        f"{summary.end}" + ("; nothing was frozen" if target else ""),
        hint=hint,
        place=folder,
        start=summary.start,
        end=summary.end,
        newest=summary.newest or read.bare.newest or None,
        files=summary.files,
    )
