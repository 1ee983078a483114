"""``fleetcraft barrier``: records that say that something is ready, and the look whether it is.

Needs no scratch tree: a barrier lies wherever producer and consumers agree.
"""

from __future__ import annotations

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session, write_sections
from fleetcraft.view.text import one_line, plural

_EXAMPLES = """
fleetcraft barrier write ready/step-0200.json checkpoints/step-0200
fleetcraft barrier check ready/step-0200.json
fleetcraft barrier write done.json --note 'all steps are trained'
"""
_WRITE_EXITS = """
0 it stands, also when the same one stood already; 2 a payload is missing;
5 a barrier with another payload is there
"""
_CHECK_EXITS = """
0 it stands and its payload verifies; 1 it does not; 7 it could not be found out
"""


class _BarrierGroup(click.Group):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES)


@click.command(cls=FleetCommand, name="write", examples=_EXAMPLES, exits=_WRITE_EXITS, spool=False)
@click.argument("file")
@click.argument("payload", nargs=-1)
@click.option("--note", default="", metavar="TEXT", help="A line for people.")
@pass_session
def write_barrier(session: Session, file: str, payload: tuple[str, ...], note: str) -> int:
    """Publish FILE over PAYLOAD: files, or folders with all that is in them.

    Without payload it says only that its producer is done.
    """
    from fleetcraft.spool import barrier

    made = barrier.write(file, payload, note=note)
    size = sum(item.bytes for item in made.payload)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.barrier_written/1",
                "path": file,
                "id": made.id,
                "files": len(made.payload),
                "bytes": size,
            }
        )
    else:
        print_text(f"{file}: {plural(len(made.payload), 'file')}, {size} bytes")
    return 0


@click.command(cls=FleetCommand, name="check", examples=_EXAMPLES, exits=_CHECK_EXITS, spool=False)
@click.argument("file")
@pass_session
def check_barrier(session: Session, file: str) -> int:
    """Verify that FILE stands and that its payload is as it says."""
    from fleetcraft.spool import barrier

    state = barrier.check(file)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.barrier/1",
                "path": file,
                "ready": state.ready,
                "reason": state.reason,
                "files": len(state.barrier.payload) if state.barrier else None,
            }
        )
    else:
        words = {True: "ready", False: "not ready", None: "unknown"}[state.ready]
        print_text(f"{words}: {one_line(state.reason or file, 400)}")
    return {True: 0, False: 1, None: 7}[state.ready]


barrier_command = _BarrierGroup(
    "barrier",
    help="Say that something is ready, and verify that it is.\n\n"
    "A barrier names its payload with sizes and SHA-256. Consumers start behind it (worker "
    "--after-marker) and leave after a second one and an empty queue (worker --until-marker).",
    commands=[write_barrier, check_barrier],
    context_settings={"help_option_names": ["-h", "--help"]},
)
