"""``fleetcraft rollouts abort``: asks producers and the trainer to finish and leave.

Needs no scratch tree. Invariant: it ends no process; who reads the marker finishes what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

if TYPE_CHECKING:
    from fleetcraft.rollouts.abort import AbortRequest
    from fleetcraft.rollouts.queue import RolloutQueue

_EXAMPLES = """
fleetcraft rollouts abort rollouts/wan --reason 'reward model is wrong'
fleetcraft rollouts abort rollouts/wan --clear
"""
_EXITS = """
0 it stands, also when it stood already; with --clear, it does not
2 no queue there, or no reason; 5 whether it stands is not known
"""


@click.command(cls=FleetCommand, name="abort", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("queue", metavar="DIR")
@click.option("--reason", metavar="TEXT", help="Why, for those who find it.")
@click.option("--clear", is_flag=True, help="Take it back; the marker is kept under a dated name.")
@click.option("--dry-run", is_flag=True, help="Only say whether it stands.")
@pass_session
def abort_command(
    session: Session, queue: str, reason: str | None, clear: bool, dry_run: bool
) -> int:
    """Ask producers and the trainer to finish and leave.

    DIR is the queue's folder. Producers publish what they have begun and end with exit code 0, the
    trainer commits its step and ends with 3. The first request stands until it is cleared.
    """
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.view.rollouts import abort_shape, render_abort

    opened = RolloutQueue.open(queue)
    action, request, path = _act(opened, reason, clear=clear, dry_run=dry_run)
    if session.json:
        print_json(abort_shape(opened.paths.folder, action, request, path))
    else:
        print_text(render_abort(action, request, path))
    return 0


def _act(
    opened: RolloutQueue, reason: str | None, *, clear: bool, dry_run: bool
) -> tuple[str, AbortRequest | None, str]:
    """What was done, the request it is about, and where that lies."""
    from fleetcraft.rollouts.abort import ask_abort, clear_abort, read_abort

    marker = opened.paths.abort_marker
    if clear and reason:
        raise UsageError("--clear takes no --reason: what was asked is kept as it was")
    if not clear and not dry_run and not reason:
        hint = "fleetcraft rollouts abort DIR --reason TEXT"
        raise UsageError("no reason was given; nothing was asked", hint=hint)
    if dry_run:
        stands = read_abort(opened)
        return ("stood_already", stands, marker) if stands else ("none", None, "")
    if clear:
        cleared = clear_abort(opened)
        return ("cleared", *cleared) if cleared else ("none", None, "")
    asked = ask_abort(opened, reason or "")
    return ("asked" if asked.new else "stood_already", asked.request, marker)
