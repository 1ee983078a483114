"""``fleetcraft telemetry export``: copies of traces that can be given away.

Invariant: what was left out is counted on the screen, too.
"""

from __future__ import annotations

from collections import Counter

import click

from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.cli.telemetry.places import telemetry_place
from fleetcraft.view.text import left_out, one_line, plural

_EXAMPLES = """
fleetcraft telemetry export --anonymize --out published
fleetcraft telemetry export /scratch/me/fleet/telemetry --anonymize --out published --json
"""
_EXITS = """
0 done; 2 the new folder is not empty, or there is no such DIR; 7 there is nothing to read;
3 the scratch tree has no telemetry yet
"""
_SHOWN = 20


@click.command(cls=FleetCommand, name="export", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--out", required=True, metavar="DIR", help="A new folder for the copies.")
@click.option("--anonymize", is_flag=True, help="New names for hosts, jobs and GPUs; no words.")
@pass_session
def export_command(session: Session, folder: str | None, out: str, anonymize: bool) -> int:
    """Copy traces so that they can be published.

    Cells are copied when they have the form of their column: numbers, times, our own words. With
    --anonymize hosts, jobs and GPUs are renamed in the order in which they are met, and free text,
    bus addresses, boot ids and driver facts are gone. Times stay.
    """
    from fleetcraft.telemetry.export import export

    place = telemetry_place(session, folder)
    done = export(place, out, anonymize=anonymize)
    dropped: Counter[str] = Counter()
    for file in done.files:
        dropped.update(file.left_out)
    rows = sum(file.rows for file in done.files)
    for path, why in done.refused:
        note(f"not read: {one_line(path)}: {one_line(why)}")
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.telemetry_export/1",
                "out": done.out,
                "anonymized": anonymize,
                "hosts": done.hosts,
                "rows": rows,
                "left_out": dict(dropped),
                "files": list(done.files),
                "refused": [{"path": path, "reason": why} for path, why in done.refused],
            }
        )
        return 0
    print_text(f"{plural(len(done.files), 'file')} with {plural(rows, 'row')} in {done.out}")
    for file in done.files[:_SHOWN]:
        print_text(f"  {file.name}  {plural(file.rows, 'row')}")
    for line in left_out(len(done.files[_SHOWN:])):
        print_text(line)
    if dropped:
        print_text("left out: " + ", ".join(f"{n} {why}" for why, n in sorted(dropped.items())))
    return 0
