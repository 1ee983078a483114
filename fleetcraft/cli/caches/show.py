"""``fleetcraft caches show``: where every role's files go, what decided that, and where it lies.

Invariant: nothing is made and nothing is downloaded; libraries are asked only with ``--ask``.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.output import columns, note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.caches.ask import Asked

_EXAMPLES = """
fleetcraft caches show
fleetcraft caches show --ask
fleetcraft caches show --purpose train --json
"""
_EXITS = """
0 done
7 with --ask: the tasks' Python did not answer; the computed paths are shown
"""
PURPOSES = click.Choice(["task", "train"])


@click.command(cls=FleetCommand, name="show", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--ask", is_flag=True, help="Ask the libraries of the tasks' Python (batch.python).")
@click.option("--torch", is_flag=True, help="Import torch too, which takes seconds (with --ask).")
@click.option("--purpose", type=PURPOSES, default="task", help="For a task (default) or training.")
@pass_session
def show_command(session: Session, ask: bool, torch: bool, purpose: str) -> int:
    """Show every cache's effective path, what decided it, and where it lies.

    The paths are those of a task of a worker that is started here with this environment; where a
    process without a worker would use others, these are shown too. <task> and <attempt> stand for
    any.
    """
    from fleetcraft.caches.scope import Purpose
    from fleetcraft.fleet.launch.caches import look_at_caches
    from fleetcraft.view.caches import render_show, show_shape

    asked = ask_tasks_python(session, torch=torch) if ask or torch else None
    view = look_at_caches(session.config, os.environ, purpose=Purpose(purpose), asked=asked)
    if session.json:
        print_json(show_shape(view, purpose))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_show(view, paint=paint, width=columns()))
    return 0 if asked is None or asked.answered else 7


def ask_tasks_python(session: Session, *, torch: bool) -> Asked:
    """Asks the libraries of the Python that tasks use, with the environment that tasks get."""
    from fleetcraft.caches.ask import ask
    from fleetcraft.fleet.launch.caches import task_environment

    python = session.config.text("batch.python")
    if sys.stderr.isatty():
        note(f"asking the libraries of {python or sys.executable} ...")
    return ask(python, task_environment(session.config, os.environ), torch=torch)
