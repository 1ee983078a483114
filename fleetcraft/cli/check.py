"""``fleetcraft check``: is every task in exactly one state, and is all of it readable?

Looking changes nothing; ``--repair`` does only what is safe beside living workers.
"""

from __future__ import annotations

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.spool.check import CheckReport, Fault, check
from fleetcraft.view.text import left_out, one_line, plural

_REPAIRABLE = frozenset({"unpublished", "lost_temporary", "name_missing"})
_EXAMPLES = """
fleetcraft check
fleetcraft check --repair --dry-run
fleetcraft check --repair
"""
_EXITS = """
0 nothing is wrong; 1 there are faults; 5 there is no spool, or it is not safe
"""


@click.command(cls=FleetCommand, name="check", examples=_EXAMPLES, exits=_EXITS)
@click.option("--repair", is_flag=True, help="Repair what is safe to repair.")
@click.option("--dry-run", is_flag=True, help="Only say what --repair would do.")
@click.option("--limit", type=click.IntRange(1), default=100, help="Entries a list (100).")
@pass_session
def check_command(session: Session, repair: bool, dry_run: bool, limit: int) -> int:
    """Examine the spool, and repair it.

    A fault is something wrong that two looks saw; a notice is a harmless leftover, such as an
    enqueue that was cut short.
    """
    report = check(session.tree(), repair=repair and not dry_run)
    found = [*report.faults, *report.notices]
    would = [fault for fault in found if fault.kind in _REPAIRABLE] if dry_run else []
    if session.json:
        print_json(_shape(report, would, limit))
    else:
        _print(report, would, limit)
    return 0 if report.ok else 1


def _shape(report: CheckReport, would: list[Fault], limit: int) -> dict[str, object]:
    value: dict[str, object] = {
        "schema": "fleetcraft.check/1",
        "ok": report.ok,
        "tasks": report.tasks,
    }
    for key, faults in (
        ("faults", report.faults),
        ("notices", report.notices),
        ("repaired", report.repaired),
        ("would_repair", would),
    ):
        value[key] = [
            {"kind": f.kind, "name": f.name, "path": f.path, "detail": f.detail}
            for f in faults[:limit]
        ]
        value[f"{key}_left_out"] = max(0, len(faults) - limit)
    return value


def _print(report: CheckReport, would: list[Fault], limit: int) -> None:
    verdict = "nothing is wrong" if report.ok else plural(len(report.faults), "fault")
    print_text(f"{plural(report.tasks, 'task')} examined: {verdict}")
    for title, faults in (
        ("faults", report.faults),
        ("notices", report.notices),
        ("repaired", report.repaired),
        ("would be repaired", would),
    ):
        if faults:
            print_text(f"{title}:")
        for fault in faults[:limit]:
            print_text(f"  {fault.kind}: {one_line(fault.detail)}")
        for line in left_out(len(faults[limit:])):
            print_text(line)
