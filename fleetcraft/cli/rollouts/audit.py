"""``fleetcraft rollouts audit``: the proof that training data is sound.

Needs no scratch tree. Invariant: it moves nothing, and says yes only of what it has read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.view.text import Paint

_EXAMPLES = """
fleetcraft rollouts audit rollouts/wan
fleetcraft rollouts audit rollouts/wan --names-only
fleetcraft rollouts audit rollouts/wan --files
fleetcraft rollouts audit rollouts/wan --json
"""
_EXITS = """
0 proved
1 a record was trained on twice or is lost, or something contradicts a commit
7 something could not be read, so nothing is proved
"""
_STEP = 100


@click.command(cls=FleetCommand, name="audit", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("folder", metavar="DIR")
@click.option("--names-only", is_flag=True, help="Compare names; read no consumed record.")
@click.option("--files", is_flag=True, help="Also read every byte of the files beside records.")
@click.option("--limit", type=click.IntRange(0), default=20, help="Problems shown as text (20).")
@pass_session
def audit_command(session: Session, folder: str, names_only: bool, files: bool, limit: int) -> int:
    """Prove that no record was trained on twice, and none was lost.

    Every commit is read, and every consumed record with its digest, identity and lag. Nothing is
    moved; producers and a trainer may go on meanwhile. Files beside records, such as videos, are
    read with --files only; one that was removed since is a problem then.
    """
    from fleetcraft.rollouts.audit import audit
    from fleetcraft.rollouts.queue import RolloutQueue
    from fleetcraft.view.rollouts_audit import audit_shape, render_audit

    if names_only and files:
        raise UsageError("--files goes without --names-only: it reads the records that name them")
    queue = RolloutQueue.open(folder)
    found = audit(queue, records=not names_only, files=files, progress=_show_progress())
    if session.json:
        print_json(audit_shape(found, path=queue.paths.folder))
    else:
        paint = Paint.for_stream(sys.stdout)
        text = render_audit(
            found, path=queue.paths.folder, paint=paint, limit=limit, width=columns()
        )
        print_text(text)
    return {True: 0, False: 1, None: 7}[found.ok]


def _show_progress() -> Callable[[int, int], None]:
    terminal = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        if terminal and total > _STEP and (done % _STEP == 0 or done == total):
            end = "\n" if done == total else "\r"
            sys.stderr.write(f"read {done} of {total} versions{end}")
            sys.stderr.flush()

    return show
