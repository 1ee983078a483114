"""``fleetcraft calibrate freeze``: what the newest runs chose becomes the table that workers obey.

Invariant: a run that must not be frozen changes nothing of its row and is told; a table that was
edited, or was written by somebody else meanwhile, is never written over.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fleetcraft.cli.calibrate.places import (
    calibrated_keys,
    key_of,
    read_table_if_any,
    scratch_of,
    table_path,
    unknown_family,
)
from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import FleetError, UsageError
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.batch_table import Row, Table
    from fleetcraft.calibration.records import Calibration

_EXAMPLES = """
fleetcraft calibrate freeze --dry-run
fleetcraft calibrate freeze
fleetcraft calibrate freeze demo
fleetcraft calibrate freeze --run calibration/demo@tiny-dit@8f@4step/20260717T060000.000Z-1a2b3c
"""
_EXITS = """
0 every family that was meant is frozen as its run chose
1 a family's newest run cannot be frozen, and its row stays; the others are frozen. Or there is
  nothing to freeze
3 nothing says where the scratch tree is
7 a family that was named cannot be frozen, or the table was edited: nothing was written
75 somebody else wrote the table meanwhile: nothing was written
"""


@click.command(cls=FleetCommand, name="freeze", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("families", metavar="[FAMILY]...", nargs=-1)
@click.option("--run", "folder", metavar="DIR", help="This run instead of the newest.")
@click.option("--emulated", is_flag=True, help="Also what ran under a budget that is no device's.")
@click.option("--dry-run", is_flag=True, help="Say what would change; write nothing.")
@pass_session
def freeze_command(
    session: Session,
    *,
    families: tuple[str, ...],
    folder: str | None,
    emulated: bool,
    dry_run: bool,
) -> int:
    """Write what the newest runs chose into the frozen table.

    The newest whole run of each FAMILY (of all that were calibrated, when none is named) gives one
    row: batch, reason, peak, device, stack, identity, and hashes of its evidence. A smoke test, a
    run with a fault, without a choice, without four soak cycles or under a budget, and one whose
    memory rose over its cycles, is refused. The table before stays beside the new one, named by its
    hash.
    """
    scratch, path = scratch_of(session), table_path(session)
    before = read_table_if_any(path)
    meant = _meant(session, families, folder)
    if not meant.runs:
        raise FleetError(
            f"nothing was calibrated in {scratch.root}; nothing was frozen",
            hint="fleetcraft calibrate run FAMILY",
        )
    rows, refused = _rows(meant.runs, strict=bool(families or folder), emulated=emulated)
    freezing = _Freezing(
        session=session, path=path, before=before, meant=meant, rows=rows, refused=refused
    )
    return freezing.finish(dry_run=dry_run)


class _Meant(NamedTuple):
    """The run of each family that was meant, by key; and those that have no whole run."""

    runs: dict[str, Calibration]
    not_whole: tuple[str, ...] = ()


def _meant(session: Session, families: tuple[str, ...], folder: str | None) -> _Meant:
    from fleetcraft.calibration.sweep.store import read_calibration
    from fleetcraft.cli.calibrate.standing import newest_or_none

    scratch = scratch_of(session)
    if folder is not None:
        run = read_calibration(folder)
        wrong = [word for word in families if key_of(word) != run.family]
        if wrong:
            raise UsageError(
                f"the run in {folder} is of family {run.family!r}, not of {wrong[0]!r}; "
                "nothing was frozen",
                hint="leave FAMILY away",
            )
        return _Meant({run.family: run})
    known = calibrated_keys(scratch)
    found, not_whole = {}, []
    for word in families or known:
        key = key_of(word) if families else word
        run_or_none = newest_or_none(scratch, key)
        if run_or_none is not None:
            found[key] = run_or_none
        elif families:
            raise unknown_family(key, known)
        else:
            not_whole.append(key)
    return _Meant(found, tuple(not_whole))


def _rows(
    runs: dict[str, Calibration], *, strict: bool, emulated: bool
) -> tuple[dict[str, Row], dict[str, FleetError]]:
    """Rows by family, and why others have none.

    Raises:
        FleetError: A run cannot be frozen, and it was named.
    """
    from fleetcraft.calibration.freezing import row_of

    rows, refused = {}, {}
    for family, run in runs.items():
        try:
            rows[family] = row_of(run, emulated=emulated)
        except FleetError as error:
            if strict:
                raise
            refused[family] = error
    return rows, refused


@dataclass(frozen=True, kw_only=True)
class _Freezing:
    session: Session
    path: str
    before: Table | None
    meant: _Meant
    rows: dict[str, Row]
    refused: dict[str, FleetError]

    def finish(self, *, dry_run: bool) -> int:
        from fleetcraft.batch_table import diff, make_table, write_table
        from fleetcraft.cli.calibrate.standing import why

        kept = self.before.families if self.before else {}
        after = make_table({**kept, **self.rows})
        changes = diff(self.before or make_table({}), after)
        history = ""
        if self.rows and changes and not dry_run:
            history = write_table(
                self.path, after, replaces=self.before.hash if self.before else ""
            )
        value = {
            "schema": "fleetcraft.calibrate_freeze/1",
            "table": self.path,
            "dry_run": dry_run,
            "written": bool(self.rows and changes and not dry_run),
            "before_hash": self.before.hash if self.before else None,
            "hash": after.hash if self.rows else (self.before.hash if self.before else None),
            "kept_as": history or None,
            "frozen": [self._frozen(family) for family in sorted(self.rows)],
            "refused": [
                {
                    "family": family,
                    "run": self.meant.runs[family].folder,
                    "field": error.facts.get("field"),
                    "reason": why(error, family),
                }
                for family, error in sorted(self.refused.items())
            ],
            "no_whole_run": list(self.meant.not_whole),
            "changes": changes,
        }
        self._show(value)
        return 1 if self.refused else 0

    def _frozen(self, family: str) -> dict[str, Any]:
        row = self.rows[family]
        return {
            "family": family,
            "batch": row.batch,
            "timed_batch": row.timed_batch,
            "reason": row.reason,
            "run": self.meant.runs[family].folder,
            "run_ended_at": self.meant.runs[family].ended_at,
        }

    def _show(self, value: dict[str, Any]) -> None:
        from fleetcraft.view.calibration_table import change_shape, render_freeze

        if self.session.json:
            print_json({**value, "changes": [change_shape(each) for each in value["changes"]]})
        else:
            print_text(render_freeze(value, paint=Paint.for_stream(sys.stdout)))
