"""``fleetcraft rollouts requeue``: records back to pending, by hand.

Invariant: what is put back is judged as a record of a batch is; nothing is forced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

if TYPE_CHECKING:
    from fleetcraft.rollouts.records import Refusal

_EXAMPLES = """
fleetcraft rollouts requeue rollouts/wan --dead
fleetcraft rollouts requeue rollouts/wan --reason file_missing --dry-run
fleetcraft rollouts requeue rollouts/wan v000012.seed6.00000031.002.requested.k3j4h5j6.json
"""
_EXITS = """
0 done
1 something that was asked for was not put back; the others were
5 the queue cannot be read or written
75 a trainer owns the queue (--dead), or it cannot be told what was committed
"""


@click.command(cls=FleetCommand, name="requeue", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("folder", metavar="DIR")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--reason", "reasons", multiple=True, metavar="REASON", help="All refused for it.")
@click.option("--dead", is_flag=True, help="End what a dead trainer left in its claim folders.")
@click.option("--by-age", is_flag=True, help="With --dead: follow a silent trainer of elsewhere.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; move nothing.")
@click.option("--limit", type=click.IntRange(0), default=20, help="Names shown as text (20).")
@pass_session
def requeue_command(
    session: Session, /, folder: str, names: tuple[str, ...], limit: int, **given: Any
) -> int:
    """Put records back from quarantine or a dead transaction.

    NAME is a file's name in the quarantine folder. A record goes back only if it is training data
    now: digest, identity, lag, and room in the queue.
    """
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.rollouts.requeue import requeue, requeue_dead
    from fleetcraft.view.rollouts_audit import render_requeue, requeue_shape

    dead, by_age, dry_run = given["dead"], given["by_age"], given["dry_run"]
    _require_sense([*names, *given["reasons"]], dead=dead, by_age=by_age)
    queue = RolloutQueue.open(folder)
    if dead:
        done = requeue_dead(queue, by_age=by_age, dry_run=dry_run)
    else:
        done = requeue(queue, names, reasons=_refusals(given["reasons"]), dry_run=dry_run)
    if session.json:
        print_json(requeue_shape(done, path=queue.paths.folder))
    else:
        print_text(render_requeue(done, path=queue.paths.folder, limit=limit))
    return 1 if done.refused or (done.recovered and done.recovered.problems) else 0


def _require_sense(chosen: list[str], *, dead: bool, by_age: bool) -> None:
    said = "fleetcraft rollouts requeue --help"
    if not chosen and not dead:
        raise UsageError("nothing to requeue: no NAME, --reason or --dead", hint=said)
    if chosen and dead:
        raise UsageError("--dead goes with no NAME and no --reason", hint=said)
    if by_age and not dead:
        raise UsageError("--by-age goes with --dead", hint=said)


def _refusals(reasons: tuple[str, ...]) -> list[Refusal]:
    from difflib import get_close_matches

    from fleetcraft.rollouts.records import Refusal

    known = [refusal.value for refusal in Refusal]
    for reason in reasons:
        if reason not in known:
            near = get_close_matches(reason, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(known)}"
            raise UsageError(f"no reason {reason!r}", hint=hint, reason=reason)
    return [Refusal(reason) for reason in reasons]
