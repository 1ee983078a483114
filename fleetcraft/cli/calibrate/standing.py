"""What is frozen of a family beside what its newest run says.

Invariant: a run that cannot be read is told as a problem of its family, and hides no other.
"""

from __future__ import annotations

from fleetcraft.batch_table import Change, Row, diff, make_table
from fleetcraft.calibration.records import Calibration
from fleetcraft.calibration.sweep.store import newest, read_calibration, run_folders
from fleetcraft.clock import now_at, parse_timestamp
from fleetcraft.errors import DataError, FleetError
from fleetcraft.layout import Scratch, calibration_record
from fleetcraft.view.calibration_table import Standing

_RUNS_SEARCHED = 50


def newest_or_none(scratch: Scratch, family: str) -> Calibration | None:
    """The newest whole run of a family; None when it has none.

    Raises:
        DataError: It cannot be read or trusted.
    """
    try:
        return newest(scratch, family)
    except DataError:
        raise
    except FleetError:
        return None


def standing_of(scratch: Scratch, family: str, row: Row | None) -> Standing:
    """Compares one row with the family's runs."""
    try:
        run = newest_or_none(scratch, family)
        source = None if row is None else _source(scratch, family, row, run)
    except DataError as error:
        return Standing(family=family, row=row, problem=error.message)
    would, refusal = (None, "") if run is None else _row_or_refusal(run)
    return Standing(
        family=family,
        row=row,
        evidence_at=source.ended_at if source else "",
        age_s=_age_s(source.ended_at) if source else None,
        newest_run=run.folder if run else "",
        newest_at=run.ended_at if run else "",
        is_newest=bool(run and row and _is_evidence(run, row)),
        would_freeze=None if run is None else would is not None,
        refusal=refusal,
        changes=() if row is None or would is None else changes_of(family, row, would),
    )


def changes_of(family: str, before: Row, after: Row) -> tuple[Change, ...]:
    """What differs between two rows of one family, evidence left out."""
    found = diff(make_table({family: before}), make_table({family: after}))
    return tuple(change for change in found if change.field != "evidence")


def _row_or_refusal(run: Calibration) -> tuple[Row | None, str]:
    from fleetcraft.calibration.freezing import row_of

    try:
        return row_of(run), ""
    except FleetError as error:
        return None, why(error, run.family)


def why(error: FleetError, family: str) -> str:
    """The reason of a refusal, without what every refusal says around it."""
    prefix = f"cannot freeze family {family!r}, "
    return error.message.removeprefix(prefix).removesuffix("; nothing was written")


def _source(scratch: Scratch, family: str, row: Row, run: Calibration | None) -> Calibration | None:
    """The run that the row was frozen from; None when it is not among the newest here."""
    if run is not None and _is_evidence(run, row):
        return run
    for place, folder in enumerate(run_folders(scratch, family)):
        if place >= _RUNS_SEARCHED:
            return None
        try:
            found = read_calibration(calibration_record(folder))
        except DataError:  # not whole, or not ours: it is no evidence of anything
            continue
        if _is_evidence(found, row):
            return found
    return None


def _is_evidence(run: Calibration, row: Row) -> bool:
    journals = {trial.journal_sha256 for trial in run.trials if trial.journal_sha256}
    return bool(journals & set(row.evidence))


def _age_s(ended_at: str) -> float | None:
    moment = parse_timestamp(ended_at)
    return None if moment is None else max(0.0, (now_at() - moment).total_seconds())
