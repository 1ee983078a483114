"""``fleetcraft calibrate show``: the frozen table, or one family's newest run beside its row.

Invariant: what a newer run says otherwise than the table is told, and changes nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.calibrate.places import (
    calibrated_keys,
    draw,
    figure_place,
    key_of,
    read_table_if_any,
    scratch_of,
    table_path,
    unknown_family,
)
from fleetcraft.cli.output import columns, note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.view.text import Paint, one_line

if TYPE_CHECKING:
    from fleetcraft.calibration.records import Calibration
    from fleetcraft.view.calibration_table import Standing

_EXAMPLES = """
fleetcraft calibrate show
fleetcraft calibrate show demo
fleetcraft calibrate show demo --figure figures
fleetcraft calibrate show --run calibration/demo@tiny-dit@8f@4step/20260717T060000.000Z-1a2b3c
"""
_EXITS = """
0 done
1 of this family nothing is known here
2 there is no such file or family; 3 nothing says where the scratch tree is
7 the table was edited, or a record cannot be read
"""


@click.command(cls=FleetCommand, name="show", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("family", metavar="[FAMILY]", required=False)
@click.option("--run", "folder", metavar="DIR", help="One stored run: its folder or its record.")
@click.option("--figure", metavar="PATH", help="Draw it again: a folder, or FILE.png.")
@pass_session
def show_command(
    session: Session, *, family: str | None, folder: str | None, figure: str | None
) -> int:
    """Show the frozen table, or what is known of one family.

    Without FAMILY: each frozen row with its batch, the reason, its peak, device, stack and the age
    of its evidence; which newer runs say otherwise; and what is calibrated but not frozen. With
    FAMILY (its key, a built-in name, or FILE.py:NAME): the report of its newest whole run, and how
    that stands to the frozen row. --json of one run is what calibrate run prints, and "frozen".
    """
    if family is None and folder is None:
        if figure:
            raise UsageError(
                "a figure is of one family or run; nothing was drawn",
                hint="fleetcraft calibrate show FAMILY --figure PATH",
            )
        return _whole_table(session)
    run = _stored(session, family, folder)
    standing = _standing(session, family, run)
    if run is None:
        return _row_alone(session, standing, figure)
    files: tuple[str, ...] = ()
    if figure:
        place, name = figure_place(figure)
        files, problem = draw(run, place, name=name)
        if problem:
            note(f"no figure: {one_line(problem)}")
    _print_run(session, run, standing, files)
    return 0


def _whole_table(session: Session) -> int:
    from fleetcraft.cli.calibrate.standing import standing_of
    from fleetcraft.view.calibration_table import render_table, table_shape

    path, scratch = table_path(session), scratch_of(session)
    found = read_table_if_any(path)
    rows = found.families if found else {}
    standings = [standing_of(scratch, family, row) for family, row in rows.items()]
    others = [family for family in calibrated_keys(scratch) if family not in rows]
    standings += [standing_of(scratch, family, None) for family in others]
    if session.json:
        print_json(table_shape(path, found, standings))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_table(path, found, standings, paint=paint, width=columns()))
    return 0


def _stored(session: Session, family: str | None, folder: str | None) -> Calibration | None:
    """The run that was asked for; None when the family has none."""
    from fleetcraft.calibration.sweep.store import read_calibration
    from fleetcraft.cli.calibrate.standing import newest_or_none

    if folder is None:
        assert family is not None
        return newest_or_none(scratch_of(session), key_of(family))
    run = read_calibration(folder)
    if family is not None and key_of(family) != run.family:
        raise UsageError(
            f"the run in {folder} is of family {run.family!r}, not of {family!r}",
            hint="leave FAMILY away",
            family=run.family,
        )
    return run


def _standing(session: Session, family: str | None, run: Calibration | None) -> Standing:
    from fleetcraft.cli.calibrate.standing import standing_of

    key = run.family if run is not None else key_of(family or "")
    found = read_table_if_any(table_path(session))
    row = found.families.get(key) if found else None
    scratch = scratch_of(session)
    if run is None and row is None:
        known = sorted({*calibrated_keys(scratch), *(found.families if found else ())})
        raise unknown_family(key, known)
    return standing_of(scratch, key, row)


def _row_alone(session: Session, standing: Standing, figure: str | None) -> int:
    from fleetcraft.view.calibration_table import render_table, table_shape

    if figure:
        note("no figure: no run of this family is here")
    path = table_path(session)
    found = read_table_if_any(path)
    if session.json:
        print_json(table_shape(path, found, [standing]))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_table(path, found, [standing], paint=paint, width=columns()))
    return 0


def _print_run(
    session: Session, run: Calibration, standing: Standing, files: tuple[str, ...]
) -> None:
    from fleetcraft.calibration.sweep.store import to_json
    from fleetcraft.view.calibration import render_calibration
    from fleetcraft.view.calibration_table import standing_lines, standing_shape

    if session.json:
        print_json({**to_json(run), "figure": list(files), "frozen": standing_shape(standing)})
        return
    paint = Paint.for_stream(sys.stdout)
    print_text(render_calibration(run, paint=paint, width=columns(), files=files))
    print_text("\n".join(standing_lines(standing, paint)))
