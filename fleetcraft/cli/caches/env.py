"""``fleetcraft caches env``: the exports for a wrapper that is no task of a worker.

Invariant: stdout holds nothing but what a POSIX shell can evaluate.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.caches.show import PURPOSES
from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError

if TYPE_CHECKING:
    from fleetcraft.caches.scope import CacheSettings

_EXAMPLES = """
eval "$(fleetcraft caches env --run sweep --attempt 1)"
srun --ntasks-per-node=1 bash -c 'eval "$(fleetcraft caches env --run sweep)"; python train.py'
fleetcraft caches env --run sweep --attempt 1 --purpose train --json
"""
_EXITS = """
0 done
2 a name that cannot be part of a path
3 nothing says where caches are: no --root, no caches.root
5 this node's folder for generated sources cannot be made, or is not private
"""


@click.command(cls=FleetCommand, name="env", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--run", metavar="NAME", help="The task or run (FLEET_TASK, or job).")
@click.option("--attempt", metavar="NAME", help="Which attempt (the Slurm job, or a fresh name).")
@click.option("--slot", metavar="NAME", default="0", help="Processes that follow one another (0).")
@click.option("--node", metavar="NAME", help="The node (this one).")
@click.option("--purpose", type=PURPOSES, default="task", help="For a task (default) or training.")
@pass_session
def env_command(session: Session, /, **given: Any) -> int:
    """Print the exports that a job's wrapper needs before Python starts.

    Libraries read these variables once, when they are imported, so they have to be exported before.
    Call it on the node: what compilers generate lies there, in a folder of this node, run and
    attempt alone. What is set already wins, and is exported as the path that it stands for. Workers
    do all this by themselves.
    """
    from fleetcraft.caches.records import digest
    from fleetcraft.caches.resolve import resolve
    from fleetcraft.caches.scope import Purpose, Scope, environment_for, settings_of
    from fleetcraft.identity import this_host
    from fleetcraft.view.caches import render_env

    node = _name("--node", given["node"] or this_host().host)
    run = _name("--run", given["run"] or os.environ.get("FLEET_TASK", "job"))
    scope = Scope(
        node=node,
        run=run,
        attempt=_name("--attempt", given["attempt"] or _fresh_attempt()),
        # Never a place of a worker, which knows by a lock that it is free.
        slot=f"{node}-env-{run}-{_name('--slot', given['slot'])}",
        purpose=Purpose(given["purpose"]),
    )
    settings = settings_of(session.config)
    variables = environment_for(scope, os.environ, settings)
    _require_local(settings)
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.caches-env/1",
                "node": scope.node,
                "run": scope.run,
                "attempt": scope.attempt,
                "purpose": scope.purpose,
                "variables": variables,
                "digest": digest(resolve({**os.environ, **variables})),
            }
        )
    else:
        _print_exports(render_env(variables))
    return 0


def _print_exports(text: str) -> None:
    """For a shell byte for byte; on a terminal, which only shows them, as harmless text."""
    if sys.stdout.isatty():
        print_text(text)
    else:
        sys.stdout.write(text + "\n")


def _require_local(settings: CacheSettings) -> None:
    """Makes this node's private folder for generated sources.

    Raises:
        SpoolError: It cannot be made, or somebody else owns it or could write it.
    """
    from fleetcraft.caches.local import require_local_root
    from fleetcraft.spool.tree import unreadable

    try:
        require_local_root(os.environ, settings)
    except OSError as error:
        raise unreadable(error.filename or settings.local or "TMPDIR", error) from error


def _name(option: str, text: str) -> str:
    """A name that is one part of a path.

    Raises:
        UsageError: It is none.
    """
    from fleetcraft.evidence.records import NAME

    if NAME.fullmatch(text) is None:
        raise UsageError(
            f"{option} {text!r} cannot be part of a path: it needs letters, digits, '.', '_' and "
            "'-', begins with a letter or digit, and has at most 64 characters",
            hint=f"give another {option}",
        )
    return text


def _fresh_attempt() -> str:
    """A name that no other attempt has: the Slurm job's run, or a random one."""
    from fleetcraft.identity import new_launch_token

    job = os.environ.get("SLURM_JOB_ID", "")
    if not job:
        return new_launch_token()
    return f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
