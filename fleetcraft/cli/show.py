"""``fleetcraft show``: one task, where it is, what it runs, and what happened.

``--record`` prints the record file itself, also one that cannot be parsed.
"""

from __future__ import annotations

import sys

import click

from fleetcraft.cli.output import columns, print_bytes, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import SpoolError
from fleetcraft.spool import views
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.task import render_task, task_shape
from fleetcraft.view.text import Paint, printable

_EXAMPLES = """
fleetcraft show gen-00017
fleetcraft show gen-00017 --json
fleetcraft show gen-00017 --record
"""
_EXITS = """
0 found; 5 no such task; 7 its record cannot be read
"""


@click.command(cls=FleetCommand, name="show", examples=_EXAMPLES, exits=_EXITS)
@click.argument("name", metavar="NAME")
@click.option("--record", is_flag=True, help="Print the record file as it is.")
@pass_session
def show_command(session: Session, name: str, record: bool) -> None:
    """Show one task with its attempts."""
    tree = session.tree()
    if record:
        _print_record(session, name, _record_bytes(tree, name))
        return
    view = views.show(tree, name)
    if session.json:
        print_json(task_shape(view))
    else:
        print_text(render_task(view, paint=Paint.for_stream(sys.stdout), width=columns()))


def _record_bytes(tree: SpoolTree, name: str) -> bytes:
    for _ in range(8):
        try:
            return tree.read_bytes(tree.find(name).path)
        except FileNotFoundError:
            continue
    raise SpoolError(f"task {name!r} kept moving and was not read", hint="try again", name=name)


def _print_record(session: Session, name: str, data: bytes) -> None:
    if session.json:
        text = data.decode("utf-8", "surrogateescape")
        print_json({"schema": "fleetcraft.record/1", "name": name, "text": text})
    elif sys.stdout.isatty():
        print_text(printable(data.decode("utf-8", "backslashreplace")).rstrip("\n"))
    else:
        print_bytes(data)
