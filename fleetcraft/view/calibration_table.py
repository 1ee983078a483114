"""The frozen table as text and JSON: its rows, what a newer run says otherwise, what was changed.

What is compared is handed in. Invariant: a row whose evidence is not here is shown as such, and a
newer run that differs is never silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fleetcraft.batch_table import Change, Row, Table
from fleetcraft.view.calibration_words import reason_words
from fleetcraft.view.text import Paint, joined, left_out, one_line, plural, table

_VALUE_CHARS = 70
_CHANGES_SHOWN = 40


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One family: what is frozen of it, and what its runs say.

    Attributes:
        family: Its key.
        row: What is frozen; None when nothing is.
        evidence_at: When the run that was frozen ended, UTC; empty when it is not here.
        age_s: How long ago that was.
        newest_run: Folder of its newest whole run; empty when there is none.
        newest_at: When that ended.
        is_newest: Whether that run is the one that was frozen.
        would_freeze: Whether that run could be frozen; None when there is none.
        refusal: Why it could not.
        changes: What freezing it would change of the row, evidence left out.
        problem: Why its runs could not be read.
    """

    family: str
    row: Row | None = None
    evidence_at: str = ""
    age_s: float | None = None
    newest_run: str = ""
    newest_at: str = ""
    is_newest: bool = False
    would_freeze: bool | None = None
    refusal: str = ""
    changes: tuple[Change, ...] = ()
    problem: str = ""

    @property
    def differs(self) -> bool:
        """Whether a newer run says something else than the row."""
        return self.row is not None and not self.is_newest and bool(self.changes or self.refusal)


# ------------------------------------------------------------------------------------------ show


def table_shape(path: str, found: Table | None, standings: Sequence[Standing]) -> dict[str, Any]:
    """The JSON value of ``calibrate show``: rows first, then what is calibrated and not frozen."""
    return {
        "schema": "fleetcraft.batch_table_view/1",
        "path": path,
        "hash": found.hash if found else None,
        "families": [standing_shape(each) for each in standings if each.row is not None],
        "not_frozen": [standing_shape(each) for each in standings if each.row is None],
    }


def standing_shape(each: Standing) -> dict[str, Any]:
    """One family as JSON."""
    return {
        "family": each.family,
        "row": None if each.row is None else msgspec.to_builtins(each.row),
        "evidence_at": each.evidence_at or None,
        "evidence_age_s": each.age_s,
        "newest_run": each.newest_run or None,
        "newest_at": each.newest_at or None,
        "newest_is_frozen": each.is_newest,
        "newest_can_be_frozen": each.would_freeze,
        "refusal": each.refusal,
        "differs": each.differs,
        "changes": [change_shape(change) for change in each.changes],
        "problem": each.problem,
    }


def render_table(
    path: str,
    found: Table | None,
    standings: Sequence[Standing],
    *,
    paint: Paint,
    width: int | None = None,
) -> str:
    """The text of ``calibrate show``."""
    rows = [each for each in standings if each.row is not None]
    if found is None:
        head = f"no frozen table at {one_line(path)}: fleetcraft calibrate freeze writes it"
    else:
        head = f"{plural(len(rows), 'family', 'families')} in {one_line(path)}"
        head += f", {found.hash.removeprefix('sha256:')[:12]}"
    return joined(
        [
            head,
            _rows(rows, paint, width) if rows else "",
            "\n".join(line for each in standings for line in _news(each, paint)),
        ]
    )


def _rows(standings: Sequence[Standing], paint: Paint, width: int | None) -> str:
    titles = ["family", "batch", "timed", "peak", "in", "owner", "host", "device", "torch",
              "attention", "age", "reason"]  # fmt: skip
    cells = [titles]
    for each in standings:
        row = each.row
        assert row is not None
        cells.append(
            [
                one_line(each.family),
                str(row.batch),
                str(row.timed_batch),
                _mib(row.peak.device_mib),
                one_line(row.peak.phase),
                one_line(row.peak.owner),
                _mib(row.peak.host_mib),
                one_line(row.device.name),
                one_line(row.stack.torch),
                one_line(row.stack.sdpa),
                age_words(each.age_s) or "not here",
                one_line(reason_words(row.reason)),
            ]
        )
    lines = table(cells, width=width).split("\n")
    return "\n".join([paint("quiet", lines[0]), *lines[1:]])


def _news(each: Standing, paint: Paint) -> list[str]:
    name = one_line(each.family)
    if each.problem:
        return [f"{paint('warn', f'{name}: its runs could not be read')}: {one_line(each.problem)}"]
    if each.row is None:
        if not each.newest_run:
            return [f"{name}: none of its runs is whole: fleetcraft calibrate run"]
        words = f"{name} is calibrated and not frozen: run of {one_line(each.newest_at)}"
        return [f"{words}; {one_line(each.refusal)}" if each.refusal else words]
    if not each.differs:
        return []
    words = paint("warn", f"{name}: a newer run ({one_line(each.newest_at)}) differs")
    if each.refusal:
        return [f"{words}: it cannot be frozen: {one_line(each.refusal)}"]
    return [f"{words}:", *(f"  {line}" for line in change_lines(each.changes, with_family=False))]


def standing_lines(each: Standing, paint: Paint) -> list[str]:
    """What is frozen of one family, for below the report of its newest run."""
    if each.row is None:
        return [f"not frozen: {one_line(each.refusal) or 'fleetcraft calibrate freeze does it'}"]
    row = each.row
    age = age_words(each.age_s)
    lines = [
        f"frozen: batch {row.batch} ({one_line(reason_words(row.reason))}), "
        f"{one_line(row.device.name)}, torch {one_line(row.stack.torch)}, "
        + (f"from a run {age} ago" if age else "from a run that is not here")
    ]
    return lines + ([] if each.is_newest else _news(each, paint))


# ----------------------------------------------------------------------------------- diff, freeze


def change_shape(change: Change) -> dict[str, Any]:
    """One difference as JSON."""
    return {
        "family": change.family,
        "field": change.field,
        "before": change.before,
        "after": change.after,
    }


def change_lines(changes: Sequence[Change], *, with_family: bool = True) -> list[str]:
    """A line for each difference, of a table or of a row."""
    lines = []
    for change in changes[:_CHANGES_SHOWN]:
        family = f"{one_line(change.family)}: " if with_family else ""
        if change.field:
            before, after = _value(change.before), _value(change.after)
            lines.append(f"{family}{one_line(change.field)}: {before} -> {after}")
        else:
            row = change.after if change.before is None else change.before
            words = "added" if change.before is None else "removed"
            lines.append(f"{family}{words}, {_whole(row)}")
    return lines + left_out(max(0, len(changes) - _CHANGES_SHOWN), "more differences")


def _whole(row: Any) -> str:
    if not isinstance(row, Mapping):
        return "a row"
    device = row.get("device")
    where = device.get("name", "") if isinstance(device, Mapping) else ""
    return f"batch {row.get('batch')} on {one_line(str(where))}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return f"{plural(len(value), 'hash', 'hashes')}"
    return one_line(str(value), _VALUE_CHARS) or "''"


def diff_shape(
    a: tuple[str, Table], b: tuple[str, Table], changes: Sequence[Change]
) -> dict[str, Any]:
    """The JSON value of ``calibrate diff``."""
    return {
        "schema": "fleetcraft.batch_table_diff/1",
        "a": a[0],
        "b": b[0],
        "a_hash": a[1].hash,
        "b_hash": b[1].hash,
        "same": not changes,
        "changes": [change_shape(change) for change in changes],
    }


def age_words(age_s: float | None) -> str:
    """``12 min``, ``5 h``, ``9 d``; empty when it is not known."""
    if age_s is None:
        return ""
    minutes = max(0, int(age_s) // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} d"


def _mib(mib: int | None) -> str:
    if mib is None:
        return ""
    return f"{mib} MiB" if mib < 10240 else f"{mib / 1024:.1f} GiB"


def render_freeze(value: Mapping[str, Any], *, paint: Paint) -> str:
    """The text of ``calibrate freeze``, from its JSON value with changes as records."""
    would = "would be " if value["dry_run"] else ""
    lines = []
    for each in value["frozen"]:
        words = f"batch {each['batch']} ({one_line(reason_words(each['reason']))})"
        lines.append(f"{one_line(each['family'])}: {would}frozen at {words}")
    for each in value["refused"]:
        name = paint("warn", f"{one_line(each['family'])}: not frozen")
        lines.append(f"{name}: {one_line(each['reason'])}")
    lines += [f"{one_line(family)}: none of its runs is whole" for family in value["no_whole_run"]]
    changes = [change for change in value["changes"] if change.field != "evidence"]
    if changes:
        lines += ["", *change_lines(changes)]
    elif value["frozen"]:
        new = "the evidence is newer" if value["changes"] else "the table stays as it is"
        lines += ["", f"no row says anything else than before; {new}"]
    if value["written"]:
        lines.append(f"written: {one_line(value['table'])}, {value['hash']}")
    if value["kept_as"]:
        lines.append(f"the table before: {one_line(value['kept_as'])}")
    return "\n".join(lines)
