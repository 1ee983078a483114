"""``fleetcraft caches fill``: one writer downloads, verifies and publishes; others wait for it.

Invariant: the command runs only while this process is the one writer of the repository.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import note, print_json, print_text, reading_bar
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

_EXAMPLES = """
fleetcraft caches fill org/model -- hf download org/model
fleetcraft caches fill org/model --wait 2h -- hf download org/model --exclude '*.bin'
fleetcraft caches fill org/model -- python -c 'from transformers import AutoModel; \
AutoModel.from_pretrained("org/model")'
"""
_EXITS = """
0 it is there and verified, whoever fetched it
1 the command failed; the hub is as it was
5 the hub cannot be written; 75 another writer did not end within --wait
7 what was fetched is incomplete or corrupt; nothing was published
"""


@click.command(cls=FleetCommand, name="fill", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("repo", metavar="REPO")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option("--hub", metavar="HUB", help="The hub cache to fill (that of tasks).")
@click.option("--revision", metavar="REV", help="A branch, tag or commit (main).")
@click.option(
    "--repo-type",
    type=click.Choice(["model", "dataset", "space", "kernel"]),
    default="model",
    help="What the repository holds (model).",
)
@click.option("--wait", metavar="TIME", default="1h", help="For another writer (1h); 0s leaves.")
@click.option("--take-over", is_flag=True, help="Follow a silent writer of another node.")
@click.option("--fresh", is_flag=True, help="Drop what an earlier command has left.")
@pass_session
def fill_command(
    session: Session,
    *,
    repo: str,
    command: tuple[str, ...],
    hub: str | None,
    revision: str | None,
    repo_type: str,
    wait: str,
    take_over: bool,
    fresh: bool,
) -> int:
    """Let one writer fill a cache, verify it, and make it read-only.

    REPO is org/name, and COMMAND whatever downloads it: it finds a private hub in HF_HUB_CACHE,
    and may use the network also where tasks may not. What it fetched is proved file by file, made
    read-only and published. Whoever calls meanwhile waits, and downloads nothing.
    """
    if not command:
        raise UsageError(
            "there is no command to download with; nothing was done",
            hint=f"fleetcraft caches fill {repo} -- hf download {repo}",
        )
    from fleetcraft.caches.filling import fill
    from fleetcraft.cli.caches.places import (
        named_repo,
        read_wait_s,
        records_of,
        shared_hub,
    )
    from fleetcraft.view.caches_models import fill_shape, render_fill
    from fleetcraft.view.text import Paint

    place = shared_hub(session, hub)
    with reading_bar() as progress:
        report = fill(
            records_of(session, place),
            place,
            named_repo(repo, repo_type),
            command,
            revision=revision,
            wait_s=read_wait_s(wait),
            take_over=take_over,
            fresh=fresh,
            progress=progress,
            tell=(lambda text: None) if session.json else note,
        )
    if session.json:
        print_json(fill_shape(report))
    else:
        print_text(render_fill(report, paint=Paint.for_stream(sys.stdout)))
    return 0
