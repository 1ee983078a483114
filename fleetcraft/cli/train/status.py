"""``fleetcraft train status``: how runs stand, once, or again and again.

Reads what supervisors write. Invariant: it changes nothing, and a run that cannot be read is shown
as such beside the others.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import Amount, FleetCommand, Session, pass_session
from fleetcraft.units import LONGEST_WAIT_S
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft train status
fleetcraft train status distill --watch
fleetcraft train status --json
"""
_EXITS = """
0 done, also when it is ended by Ctrl-C; 2 no such run
7 the folder of runs cannot be read
"""


@click.command(cls=FleetCommand, name="status", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=Amount(0.2, LONGEST_WAIT_S),
    default=2.0,
    metavar="S",
    help="Seconds between looks (2).",
)
@click.option("--limit", type=click.IntRange(0), default=100, help="Runs and ranks at most (100).")
@pass_session
def status_command(
    session: Session, *, runs: tuple[str, ...], watch: bool, interval: float, limit: int
) -> int:
    """Show how runs stand: step, throughput, queues, memory, ETA.

    RUN is the name of a run or its folder; without it, every run of the scratch tree. A rank is
    alive, dead (positively gone), or unknown. Numbers are provisional until throughput has reached
    a plateau. With --watch the view is redrawn on a terminal and printed again elsewhere, as JSON
    Lines with --json.
    """
    if not watch:
        _print(session, runs, limit)
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _go_on(session, runs, limit, interval)
    return 0


def _go_on(session: Session, runs: tuple[str, ...], limit: int, interval_s: float) -> None:
    if sys.stdout.isatty() and not session.json:
        from fleetcraft.view.top import show_live

        def draw(width: int, height: int) -> str:
            return _text(session, runs, min(limit, max(1, height - 3)), width)

        # So that the terminal's first screen is given back before the process ends.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        show_live(draw, interval_s)
    while True:
        _print(session, runs, limit)
        sys.stdout.flush()
        time.sleep(interval_s)


def _print(session: Session, runs: tuple[str, ...], limit: int) -> None:
    if session.json:
        from fleetcraft.training.supervision.overview import chosen_runs, look_at_run
        from fleetcraft.view.train_status import status_shape

        looks = [look_at_run(paths) for paths in chosen_runs(session.config.root, runs)]
        print_json(status_shape(looks, limit=limit))
    else:
        print_text(_text(session, runs, limit, columns()))


def _text(session: Session, runs: tuple[str, ...], limit: int, width: int | None) -> str:
    from fleetcraft.training.supervision.overview import chosen_runs, look_at_run
    from fleetcraft.view.train_status import render_status

    looks = [look_at_run(paths) for paths in chosen_runs(session.config.root, runs)]
    return render_status(looks, limit=limit, paint=Paint.for_stream(sys.stdout), width=width)
