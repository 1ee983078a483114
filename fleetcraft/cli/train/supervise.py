"""``fleetcraft train supervise``: one run, from its launch or adoption to its end.

Options and output; what is decided is `training.supervision`'s. Invariant: with ``--json`` every
line of stdout is one event.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import columns, note, print_json, print_text
from fleetcraft.cli.session import Amount, FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.units import LONGEST_WAIT_S
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.training.plan.records import RunPlan
    from fleetcraft.training.supervision.entry import DryRun, Settings

_EXAMPLES = """
fleetcraft train supervise run.yaml
fleetcraft train supervise --nodes 6 run.yaml
fleetcraft train supervise --run try-1 -- torchrun --nproc-per-node 4 train.py
fleetcraft train supervise --dry-run run.yaml
"""
_EXITS = """
0 the run is done: it ended with 0 and its declared end is there
1 given up (EXHAUSTED), or what has to be known is not (BLOCKED); the next step is printed
3 ABORTED: the trainer left while ABORT stood; also a run file that is wrong
75 another supervisor has the run, may have it, or has taken it over
143 and 130 it was told to end, and the run was stopped (--detach-on-term: left alive)
"""
_YAML = (".yaml", ".yml")


@click.command(
    cls=FleetCommand,
    name="supervise",
    spool=False,
    examples=_EXAMPLES,
    exits=_EXITS,
)
@click.argument("words", nargs=-1, required=True, metavar="(FILE | -- COMMAND...)")
@click.option("--run", "name", metavar="NAME", help="The run's name, for a command without FILE.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes of its step; the others stay free.")
@click.option("--anew", is_flag=True, help="You changed something: earlier restarts do not count.")
@click.option(
    "--take-over", is_flag=True, help="Follow a silent supervisor of whom nothing is known."
)
@click.option("--detach-on-term", is_flag=True, help="Leave the run alive when told to end.")
@click.option("--dry-run", is_flag=True, help="Only say what would be launched.")
@click.option("--lock-interval", type=Amount(0.05, LONGEST_WAIT_S), hidden=True)
@pass_session
def supervise_command(session: Session, /, words: tuple[str, ...], **given: Any) -> int:
    """Launch a training run, watch it, and heal it.

    FILE is a run file (YAML); without one, the words after -- are the command. A run that an
    earlier supervisor has left alive is adopted. A crash or a standstill is diagnosed, the run is
    stopped whole, and launched again with at most one thing changed, within its budgets. TERM
    stops the run in bounded time, and the next supervise goes on. In a step of several ranks
    (launch --beside) one of them supervises, on nodes of that step, and the others wait for it.
    """
    from fleetcraft.caches.scope import settings_from
    from fleetcraft.training.supervision.entry import LOCK_INTERVAL_S, Settings

    settings = Settings(
        plan=_plan(words, given["name"]),
        root=session.config.root,
        nodes=given["nodes"],
        detach=given["detach_on_term"],
        take_over=given["take_over"],
        anew=given["anew"],
        lock_interval_s=given["lock_interval"] or LOCK_INTERVAL_S,
        caches=settings_from(session.config),
    )
    if given["dry_run"]:
        return _dry_run(session, settings)
    return _supervise(session, settings)


def _plan(words: tuple[str, ...], name: str | None) -> RunPlan:
    """The run that the words name: a run file, or a command.

    Raises:
        UsageError: They are neither.
        ConfigError: The run file is wrong.
    """
    from fleetcraft.training.plan.run_file import plan_of_command, read_run_file

    if len(words) == 1 and words[0].endswith(_YAML):
        if name is not None:
            raise UsageError("--run is for a command; a run file names its run itself")
        if not os.path.exists(words[0]):
            raise UsageError(f"there is no run file {words[0]!r}; nothing was launched")
        return read_run_file(words[0])
    if name is None:
        raise UsageError(
            f"{shlex.join(words)!r} is no run file (.yaml), and a command needs a name for its run",
            hint="fleetcraft train supervise --run NAME -- COMMAND...",
        )
    return plan_of_command(words, run=name)


def _supervise(session: Session, settings: Settings) -> int:
    from fleetcraft.training.supervision.entry import supervise
    from fleetcraft.view.train_events import render_event

    paint, width = Paint.for_stream(sys.stdout), columns()

    def tell(event: Mapping[str, Any]) -> None:
        # Whoever reads along may go away; the run must not end for that.
        try:
            if session.json:
                print_json(event)
            else:
                print_text(render_event(event, paint, width))
            sys.stdout.flush()
        except (OSError, ValueError):  # a closed pipe, a full disk, a mount that went away
            from fleetcraft.cli.output import forget

            forget(sys.stdout)

    ended = supervise(settings, tell)
    # On a terminal the last event has just said it.
    if ended.next_step and not session.json and not sys.stdout.isatty():
        note(f"next step: {ended.next_step}")
    return ended.exit_code


def _dry_run(session: Session, settings: Settings) -> int:
    import msgspec

    from fleetcraft.errors import DataError
    from fleetcraft.training.supervision.entry import plan_launch

    try:
        found = plan_launch(settings)
    except OSError as error:
        raise DataError(
            f"cannot read what was launched before: {error.strerror or error}",
            hint="check the mount and the folder's permissions",
        ) from error
    if session.json:
        print_json({"schema": "fleetcraft.train-dry-run/1", **msgspec.to_builtins(found)})
    else:
        print_text(_dry_run_text(found))
    return 0


def _dry_run_text(found: DryRun) -> str:
    from fleetcraft.view.train_events import render_dry_run

    return render_dry_run(found)
