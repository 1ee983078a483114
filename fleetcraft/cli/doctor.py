"""``fleetcraft doctor``: is this machine, and this project, fit for what is to run?

Looks, tries and asks; what it makes for a trial it removes. Invariant: a check that hangs or
crashes is one unknown finding, and the others are made all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session

_EXAMPLES = """
fleetcraft doctor
fleetcraft --root /scratch/me/fleet doctor --problems
fleetcraft doctor --quick --json
"""
_EXITS = """
0 nothing that was checked is wrong; advice and unknown findings are told
1 something has to be put right
7 nothing could be checked
"""
_ERASE_LINE = "\r\x1b[K"


@click.command(cls=FleetCommand, name="doctor", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--quick", is_flag=True, help="Leave out what takes long: torch, Slurm, records.")
@click.option("--problems", is_flag=True, help="Show only what is not well.")
@pass_session
def doctor_command(session: Session, quick: bool, problems: bool) -> int:
    """Check this machine and this project, and say what to do.

    Looks at Python and its packages, the GPUs and torch's build for them, Slurm, the scratch tree
    (its mount is tried, in a folder that is removed again), clocks, caches, quotas, limits, the
    project's settings and spools, and telemetry. Nothing is repaired. Every check is bounded:
    what hangs is unknown.
    """
    from fleetcraft.doctor.examining import examine
    from fleetcraft.view.doctor import doctor_shape, render_doctor
    from fleetcraft.view.text import Paint

    tell, done = _progress(session)
    try:
        found = examine(session.flags, quick=quick, progress=tell)
    finally:
        done()
    if session.json:
        print_json(doctor_shape(found))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_doctor(found, problems=problems, paint=paint, width=columns()))
    return found.answer.exit_code


def _progress(session: Session) -> tuple[Callable[[str], None], Callable[[], None]]:
    """What tells on a terminal which check is being made, and what takes that line away."""
    if session.json or not sys.stderr.isatty():
        return (lambda what: None), (lambda: None)

    def tell(what: str) -> None:
        sys.stderr.write(f"{_ERASE_LINE}checking {what} ...")
        sys.stderr.flush()

    def done() -> None:
        sys.stderr.write(_ERASE_LINE)
        sys.stderr.flush()

    return tell, done
