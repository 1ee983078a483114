"""``fleetcraft snapshot``: jobs, nodes, GPUs, limits, balance and queue at one look.

Invariant: what Slurm did not answer is shown as unknown with the reason, and the exit code says
so; everything else is shown all the same.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft snapshot
fleetcraft snapshot --probe
fleetcraft snapshot --json
"""
_EXITS = """
0 done
4 Slurm gave no answer for a part; the others are shown
"""


@click.command(cls=FleetCommand, name="snapshot", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--probe", is_flag=True, help="Ask the nodes too: one short srun a running job.")
@click.option("--limit", type=click.IntRange(0), default=20, help="Entries a list of text (20).")
@pass_session
def snapshot_command(session: Session, probe: bool, limit: int) -> int:
    """Show jobs, nodes, GPUs, limits, balance and queue.

    A GPU is working, resident idle (memory is held), free idle, silent (nothing was written about
    it for three intervals), lost, or unknown; by telemetry, and with --probe by its node.
    Answers of Slurm may be ten seconds old; each part shows its age.
    """
    from fleetcraft.fleet.snapshot.whole import Wanted, take_snapshot
    from fleetcraft.view.snapshot import render_snapshot
    from fleetcraft.view.snapshot_shape import snapshot_shape

    config = session.config
    account = config.text("slurm.account")
    shot = take_snapshot(
        Wanted(
            root=config.root,
            outer=config.spool_dir("outer"),
            inner=config.spool_dir("gpu"),
            account=account,
            qos=config.text("slurm.qos"),
            balance_account=config.text("balance.account") or account,
            balance_tres=config.text("balance.tres"),
            probe=probe,
        )
    )
    if session.json:
        print_json(snapshot_shape(shot))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_snapshot(shot, limit=limit, paint=paint, width=columns()))
    return 0 if shot.answered else 4
