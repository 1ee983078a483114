"""``fleetcraft init``: the scratch tree with its two spools, and on request a ``fleet.yaml``.

Invariant: nothing is written outside the root, except a ``fleet.yaml`` in the project directory
that was named and has none.
"""

from __future__ import annotations

import os
import shlex

import click

from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.config import FILE_NAME, SETTINGS
from fleetcraft.errors import SpoolError
from fleetcraft.files import FileSystem
from fleetcraft.spool.setup import SetupReport, set_up
from fleetcraft.spool.tree import SpoolTree, unreadable
from fleetcraft.trust import make_folders

_EXAMPLES = """
fleetcraft --root /scratch/me/fleet init
fleetcraft --root /scratch/me/fleet --project-dir ~/project init   # also writes fleet.yaml there
"""


@click.command(cls=FleetCommand, name="init", examples=_EXAMPLES, spool=False)
@pass_session
def init_command(session: Session) -> None:
    """Make the scratch tree and its spools.

    Makes what is missing under the root, private to you, and probes that its file system keeps
    the promises a spool needs. An existing tree is left as it is. With --project-dir, a
    commented fleet.yaml is written there if there is none.
    """
    config = session.config
    root = config.root
    made = [root] if _make_root(root) else []
    reports = [
        set_up(SpoolTree(config.spool_dir("outer"))),
        set_up(SpoolTree(config.spool_dir("gpu"))),
    ]
    for report in reports:
        made += report.made
    written = ""
    if "project_dir" in session.flags:
        written = _write_settings(config.project_dir, root)
    _say(session, root, reports, made, written)


def _make_root(root: str) -> bool:
    """Makes the root; returns whether it was missing."""
    missing = not os.path.lexists(root)
    try:
        make_folders(root)
    except FileExistsError:
        raise SpoolError(f"cannot use {root}: it is no folder", path=root) from None
    except OSError as error:
        raise unreadable(root, error) from error
    return missing


def _write_settings(folder: str, root: str) -> str:
    """Writes ``fleet.yaml`` if there is none; returns its path, or "" if there was one."""
    path = os.path.join(folder, FILE_NAME)
    try:
        # Others may read it; one that they could write would be refused.
        FileSystem().create(path, _settings_text(root).encode(), mode=0o644)
    except FileExistsError:
        return ""
    except OSError as error:
        raise unreadable(path, error) from error
    return path


def _settings_text(root: str) -> str:
    from fleetcraft.cli.output import encode_json

    quoted = encode_json({"root": root}).decode()[len('{"root":') : -1]  # JSON text is YAML text
    lines = [
        "# Settings of fleetcraft. An option or environment variable goes before what stands here;",
        "# `fleetcraft config show` tells every value and where it came from.",
        f"root: {quoted}",
    ]
    section = ""
    for setting in SETTINGS:
        if not setting.in_file or setting.name == "root":
            continue
        group, _, name = setting.name.rpartition(".")
        if group and group != section:
            lines.append(f"# {group}:")
        section = group
        indent = "  " if group else ""
        default = "" if setting.default is None else str(setting.default)
        lines.append(f"# {indent}{name}: {default}".rstrip() + f"  # {setting.doc}")
    return "\n".join(lines) + "\n"


def _say(
    session: Session, root: str, reports: list[SetupReport], made: list[str], written: str
) -> None:
    outer, inner = reports
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.init/1",
                "root": root,
                "spool": outer.root,
                "gpu_spool": inner.root,
                "made": made,
                "hard_links": outer.hard_links and inner.hard_links,
                "settings_file": written or None,
            }
        )
        return
    state = "made" if made else "was there already, nothing was changed"
    print_text(f"root:      {root}  ({state})")
    print_text(f"spool:     {outer.root}")
    print_text(f"gpu spool: {inner.root}")
    if written:
        print_text(f"settings:  {written}")
    if not (outer.hard_links and inner.hard_links):
        print_text("this file system has no hard links; identities are kept as folders instead")
    print_text(f"next:      fleetcraft --root {shlex.quote(root)} enqueue -n hello 'echo hello'")
