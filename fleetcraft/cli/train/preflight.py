"""``fleetcraft train preflight``: what the launcher really built, against what was declared.

Invariant: nothing is launched unless --launch says so.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
from collections.abc import Iterator

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import UsageError
from fleetcraft.layout import Scratch
from fleetcraft.layout.runs import AttemptPaths, RunPaths
from fleetcraft.units import parse_duration_s
from fleetcraft.view.text import Paint

_WITHIN = "10m"
_EXAMPLES = """
fleetcraft train preflight run.yaml --launch
fleetcraft train preflight run.yaml --launch --nodes 6 --within 20m
fleetcraft train preflight run.yaml
fleetcraft train preflight run.yaml runs/distill/attempt-000003 --json
"""
_EXITS = """
0 built as declared, perhaps with a caution
1 something differs from what was declared
2 no such folder; 3 the run file is wrong
7 not every rank has told, so not everything could be compared
75 a supervisor or a launch has the run, so none was started beside it
143 it was ended by TERM, and has stopped what it launched
"""


@click.command(cls=FleetCommand, name="preflight", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("run_file", metavar="RUN.YAML")
@click.argument("folder", metavar="[FOLDER]", required=False)
@click.option("--launch", is_flag=True, help="Start the command until all is built, then stop it.")
@click.option("--nodes", type=click.IntRange(1), help="Nodes of that launch (as declared).")
@click.option("--within", metavar="S", help=f"How long it is waited for ({_WITHIN} with --launch).")
@pass_session
def preflight_command(
    session: Session,
    *,
    run_file: str,
    folder: str | None,
    launch: bool,
    nodes: int | None,
    within: str | None,
) -> int:
    """Compare what the launcher built with what was declared.

    World size, shard groups and activation checkpointing, module by module, as the ranks tell by
    fleetcraft.training.plan.inspection.report_built, which a script calls once after it has
    wrapped its modules. FOLDER is an attempt of the run or the run's folder; without it, the
    newest attempt in the scratch tree that has told. --launch starts the command with
    FLEET_PREFLIGHT set, by which it exits once it has told.
    """
    from fleetcraft.caches.scope import settings_from
    from fleetcraft.training.plan.preflight import compare
    from fleetcraft.training.plan.rehearsal import await_built, rehearse
    from fleetcraft.training.plan.run_file import read_run_file
    from fleetcraft.view.train_preflight import (
        Preflight,
        WaitProgress,
        exit_code,
        preflight_shape,
        render_preflight,
    )

    if launch and folder is not None:
        raise UsageError("--launch takes no FOLDER: it makes an attempt of its own")
    if nodes is not None and not launch:
        raise UsageError("--nodes is of --launch", hint="add --launch, or leave --nodes out")
    within_s = _seconds(within if within is not None else _WITHIN if launch else "0")
    plan = read_run_file(run_file)
    progress = WaitProgress(sys.stderr.isatty())
    rehearsal = None
    try:
        if launch:
            run = RunPaths(Scratch(session.config.root).run_folder(plan.run))
            with _ended_by_exit():
                rehearsal = rehearse(
                    run,
                    plan,
                    within_s=within_s,
                    nodes=nodes,
                    caches=settings_from(session.config),
                    tick=progress,
                )
            built, place = rehearsal.built, rehearsal.folder
        else:
            attempt = _attempt(session, plan.run, folder)
            built, place = await_built(attempt, within_s=within_s, tick=progress), attempt.folder
    finally:
        progress.close()
    done = Preflight(
        plan=plan, built=built, findings=compare(built, plan), folder=place, rehearsal=rehearsal
    )
    if session.json:
        print_json(preflight_shape(done))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_preflight(done, paint=paint, width=columns()))
    return exit_code(done)


@contextlib.contextmanager
def _ended_by_exit() -> Iterator[None]:
    """While something is launched, TERM and HUP end this process so that it stops that first."""

    def leave(number: int, frame: object) -> None:
        for other in before:  # a second one must not cut the stop short
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _attempt(session: Session, run: str, folder: str | None) -> AttemptPaths:
    """The attempt that is meant: the folder itself, or the newest of a run that has told."""
    whole = Scratch(session.config.root).run_folder(run) if folder is None else folder
    if folder is not None and os.path.isdir(AttemptPaths(os.path.abspath(folder)).built):
        return AttemptPaths(os.path.abspath(folder))
    paths = RunPaths(whole)
    attempts = _attempts(paths)
    if not attempts:
        raise UsageError(
            f"no attempt in {whole}, so nothing was built yet",
            hint="add --launch to build it once, or name an attempt's folder",
            folder=whole,
        )
    return next((one for one in attempts if _has_told(one)), attempts[0])


def _attempts(paths: RunPaths) -> list[AttemptPaths]:
    try:
        names = os.listdir(paths.folder)
    except OSError:
        return []
    numbers = (name.rpartition("-")[2] for name in names)
    found = {int(number) for number in numbers if number.isascii() and number.isdecimal()}
    attempts = [paths.attempt(number) for number in sorted(found, reverse=True)]
    return [one for one in attempts if os.path.basename(one.folder) in names]


def _has_told(attempt: AttemptPaths) -> bool:
    try:
        return bool(os.listdir(attempt.built))
    except OSError:
        return False


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        return float(parse_duration_s(text))
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"not a usable time: {text!r}", hint="--within 600, or --within 10m")
    return seconds
