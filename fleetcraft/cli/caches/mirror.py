"""``fleetcraft caches mirror``: a model copied from one hub cache to another, whole or not at all.

Invariant: exit 0 means that every file was read back from the destination.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import note, print_json, print_text, reading_bar
from fleetcraft.cli.session import FleetCommand, Session, pass_session

_EXAMPLES = """
fleetcraft caches mirror org/model
fleetcraft caches mirror org/model --from ~/.cache/huggingface/hub --to /scratch/me/hub
fleetcraft caches mirror org/model --revision v1.1 --dry-run --json
"""
_EXITS = """
0 it is there, and every file was read back
5 the destination cannot be written; 75 another writes it, also after --wait
7 the source is incomplete or corrupt, or the destination holds something corrupt
"""


@click.command(cls=FleetCommand, name="mirror", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("repo", metavar="REPO")
@click.option("--from", "hub_from", metavar="HUB", help="The hub cache that has it (this user's).")
@click.option("--to", "hub_to", metavar="HUB", help="The hub cache to copy to (that of tasks).")
@click.option("--revision", metavar="REV", help="A branch, tag or commit (main).")
@click.option(
    "--repo-type",
    type=click.Choice(["model", "dataset", "space", "kernel"]),
    default="model",
    help="What the repository holds (model).",
)
@click.option("--allow-partial", is_flag=True, help="Accept files that were never fetched.")
@click.option("--wait", metavar="TIME", default="1h", help="For another writer (1h); 0s leaves.")
@click.option("--take-over", is_flag=True, help="Follow a silent writer of another node.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied, and write nothing.")
@pass_session
def mirror_command(
    session: Session,
    *,
    repo: str,
    hub_from: str | None,
    hub_to: str | None,
    revision: str | None,
    repo_type: str,
    allow_partial: bool,
    wait: str,
    take_over: bool,
    dry_run: bool,
) -> int:
    """Copy a model's cache completely, proving every file by its own name.

    REPO is org/name. No network is used: mirror what was fetched, then let jobs run offline. A
    blob is named by the digest of its content; each is copied, forced to disk, read back and
    compared with its name, and only a whole snapshot is published. Again, it copies nothing.
    """
    from fleetcraft.caches.mirror import mirror
    from fleetcraft.cli.caches.places import (
        effective_hub,
        named_repo,
        read_wait_s,
        shared_hub,
    )
    from fleetcraft.view.caches_models import mirror_shape, render_mirror
    from fleetcraft.view.text import Paint

    with reading_bar() as progress:
        report = mirror(
            hub_from or effective_hub(),
            shared_hub(session, hub_to),
            named_repo(repo, repo_type),
            revision,
            allow_partial=allow_partial,
            dry_run=dry_run,
            wait_s=read_wait_s(wait),
            take_over=take_over,
            progress=progress,
            tell=(lambda text: None) if session.json else note,
        )
    if session.json:
        print_json(mirror_shape(report))
    else:
        print_text(render_mirror(report, paint=Paint.for_stream(sys.stdout)))
    return 0
