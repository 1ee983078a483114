"""``fleetcraft rollouts status``: what waits, who produces, who trains, and what is advised.

Needs no scratch tree. Invariant: it only looks; a worker whose liveness is not known is shown so.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft rollouts status rollouts/wan
fleetcraft rollouts status rollouts/wan --for 45s
fleetcraft rollouts status rollouts/wan --json
"""
_EXITS = """
0 done; 2 no queue there; 5 it cannot be read; 7 its settings cannot be understood
"""


@click.command(cls=FleetCommand, name="status", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("queue", metavar="DIR")
@click.option(
    "--for",
    "for_",
    metavar="DURATION",
    help="Watch the beats for so long: workers of other machines are known by that alone.",
)
@click.option("--shape", default="", help="Advise on workers of this shape only.")
@click.option(
    "--workers-per-node",
    type=click.IntRange(1),
    default=1,
    help="Workers that a further node would run (1).",
)
@click.option("--limit", type=click.IntRange(0), default=20, help="Streams of the text (20).")
@pass_session
def status_command(session: Session, /, queue: str, limit: int, **given: Any) -> int:
    """Show what waits, who produces, who trains, and what is advised.

    DIR is the queue's folder. A worker is fresh when its counter was seen to change; without
    --for that is not known of workers on other machines.
    """
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.rollouts.replenish import advise, workers_of
    from fleetcraft.rollouts.status import Watcher
    from fleetcraft.units import parse_duration_s
    from fleetcraft.view.rollouts import render_status, status_shape

    watch_s = parse_duration_s(given["for_"]) if given["for_"] else 0
    status = Watcher(RolloutQueue.open(queue)).watch(watch_s)
    advice = advise(
        status,
        workers_of(status, given["shape"]),
        rates=status.rates,
        workers_per_node=given["workers_per_node"],
    )
    if session.json:
        print_json(status_shape(status, advice))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_status(status, advice, limit=limit, paint=paint, width=columns()))
    return 0
