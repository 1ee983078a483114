"""``fleetcraft caches quarantine``: a corrupt file of a model set aside, and who is concerned.

Invariant: a file that is what its name promises is moved only by consent.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

_EXAMPLES = """
fleetcraft caches quarantine org/model model-00005-of-00006.safetensors
fleetcraft caches quarantine org/model config.json --anyway --reason 'edited by hand'
fleetcraft caches quarantine org/model model.safetensors --dry-run --json
"""
_EXITS = """
0 it was set aside, with every link to it
1 it is what its name promises, or nothing proves it: nothing was moved
5 it cannot be moved; 7 there is no such file; 75 another writes the repository
"""


@click.command(cls=FleetCommand, name="quarantine", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("repo", metavar="REPO")
@click.argument("file", metavar="FILE")
@click.option("--reason", metavar="TEXT", default="", help="Why, for the record.")
@click.option("--hub", metavar="HUB", help="The hub cache (that of tasks).")
@click.option("--revision", metavar="REV", help="Which snapshot's file, if they differ.")
@click.option(
    "--repo-type",
    type=click.Choice(["model", "dataset", "space", "kernel"]),
    default="model",
    help="What the repository holds (model).",
)
@click.option("--anyway", is_flag=True, help="Also if it is not proved to be corrupt.")
@click.option("--wait", metavar="TIME", default="0s", help="For another writer (0s).")
@click.option("--dry-run", is_flag=True, help="Say what would be moved, and write nothing.")
@pass_session
def quarantine_command(
    session: Session,
    *,
    repo: str,
    file: str,
    reason: str,
    hub: str | None,
    revision: str | None,
    repo_type: str,
    anyway: bool,
    wait: str,
    dry_run: bool,
) -> int:
    """Set a corrupt file of a model aside, and say who must fetch it again.

    FILE is a path in the snapshot, or the name of a blob. It is read and compared with the digest
    that names it. The bytes are kept, with a record of what was found; every snapshot that used
    them is named, with the command that fetches the file again.
    """
    if anyway and not reason and not dry_run:
        raise UsageError(
            "--anyway needs a reason, for the record; nothing was moved",
            hint="add --reason TEXT",
        )
    from fleetcraft.caches.quarantine import quarantine
    from fleetcraft.cli.caches.places import named_repo, read_wait_s, records_of, shared_hub
    from fleetcraft.view.caches_models import quarantine_shape, render_quarantine
    from fleetcraft.view.text import Paint

    place = shared_hub(session, hub)
    record = quarantine(
        records_of(session, place),
        place,
        named_repo(repo, repo_type),
        file,
        reason,
        revision=revision,
        anyway=anyway,
        dry_run=dry_run,
        wait_s=read_wait_s(wait),
    )
    if session.json:
        print_json(quarantine_shape(record, moved=not dry_run))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_quarantine(record, moved=not dry_run, paint=paint))
    return 0
