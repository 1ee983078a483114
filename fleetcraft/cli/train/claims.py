"""``fleetcraft train claims``: whether done tasks reached their end, and one resume where not.

Invariant: without ``--resume`` nothing is changed, and with it exactly one task is enqueued for
each stretch that is missing, whoever else calls this.
"""

from __future__ import annotations

import os
from typing import Any

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import DataError, UsageError

_EXAMPLES = """
fleetcraft train claims
fleetcraft train claims wan-3204 --resume --dry-run
fleetcraft train claims wan-3204 --resume
fleetcraft train claims wan-3204 --resume --from-weights
"""
_EXITS = """
0 every done task reached its declared end, or its resume is under way
1 an end is missing, and was not resumed
5 the spool refuses
7 something could not be told, so that nothing was resumed for it
"""


@click.command(cls=FleetCommand, name="claims", examples=_EXAMPLES, exits=_EXITS)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--resume", is_flag=True, help="Enqueue one resume for an end that is missing.")
@click.option("--from-weights", is_flag=True, help="Consent to a resume that is not EXACT.")
@click.option("--dry-run", is_flag=True, help="With --resume: only say what would be enqueued.")
@click.option("--limit", type=click.IntRange(0), default=50, help="Runs a list of text (50).")
@pass_session
def claims_command(session: Session, /, runs: tuple[str, ...], **given: Any) -> int:
    """Check that done tasks reached their end, and resume once if not.

    A task that is done proves that its command ended, not that training did. The end that its run
    declares must be there: the checkpoint of that step, and payloads. Where it is missing, --resume
    enqueues the task once more as TASK.resume-FROM-TO, told from where by FLEET_RESUME_FROM and
    FLEET_RESUME_KIND. A second call, here or anywhere, enqueues nothing.
    """
    from fleetcraft.layout.runs import RunPaths
    from fleetcraft.training.checkpoint.resuming import Standing, look_at_run
    from fleetcraft.view.train_checkpoints import claims_shape, render_claims

    tree = session.tree()
    resume = given["resume"] and not given["dry_run"]
    found = [
        look_at_run(RunPaths(folder), tree, resume=resume, from_weights=given["from_weights"])
        for folder in _folders(session, runs)
    ]
    if session.json:
        print_json(claims_shape(found, dry_run=given["dry_run"]))
    else:
        print_text(render_claims(found, limit=given["limit"], width=columns()))
    standings = {claim.standing for claim in found}
    if Standing.UNKNOWN in standings:
        return 7
    return 1 if standings & {Standing.INVALID, Standing.ASKS} else 0


def _folders(session: Session, runs: tuple[str, ...]) -> list[str]:
    from fleetcraft.layout import Scratch

    scratch = Scratch(session.config.root)
    try:
        there = sorted(entry.name for entry in os.scandir(scratch.runs) if entry.is_dir())
    except FileNotFoundError:
        there = []
    except OSError as error:
        raise DataError(
            f"cannot list the runs in {scratch.runs}: {error.strerror}; nothing was concluded",
            path=scratch.runs,
        ) from error
    for run in runs:
        if run not in there:
            from difflib import get_close_matches

            near = get_close_matches(run, there)
            hint = f"did you mean {', '.join(near)}?" if near else "fleetcraft train status"
            raise UsageError(f"no run named {run!r} in {scratch.runs}", hint=hint, run=run)
    return [scratch.run_folder(run) for run in runs or there]
