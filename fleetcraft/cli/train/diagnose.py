"""``fleetcraft train diagnose``: how a run died, from its logs and whatever else is known.

Needs no scratch tree, except for ``--run NAME``. Invariant: it answers for any log that can be
read, also of runs that it never launched, and changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.errors import DataError, UsageError
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.training.diagnosing.changes import Change
    from fleetcraft.training.diagnosing.episode import Episodes
    from fleetcraft.training.diagnosing.recorded import Recorded
    from fleetcraft.training.records import NodeEnd

_EXAMPLES = """
fleetcraft train diagnose logs/*.log
fleetcraft train diagnose rank0.log rank1.log --exit-code 1 --error-file errors/1/error.json
fleetcraft train diagnose slurm-4711.out --slurm-state OUT_OF_MEMORY --json
fleetcraft train diagnose --run distill
"""
_EXITS = """
0 it was diagnosed, whatever the answer is
2 a log or error file is not there
7 a log could not be read
"""


@click.command(cls=FleetCommand, name="diagnose", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@click.option(
    "--error-file",
    "error_files",
    multiple=True,
    metavar="FILE",
    help="What a rank left where TORCHELASTIC_ERROR_FILE points; may be given again.",
)
@click.option("--exit-code", type=int, metavar="N", help="Exit code of the command.")
@click.option("--signal", "signal_name", metavar="NAME", help="Signal that ended it: 9 or KILL.")
@click.option("--slurm-state", metavar="STATE", help="State of its step or job, as sacct says.")
@click.option("--slurm-exit", default="", metavar="E:S", help="ExitCode of it, as sacct says.")
@click.option(
    "--oom-kills",
    type=click.IntRange(0),
    metavar="N",
    help="By how much the kernel's oom_kill counter rose meanwhile.",
)
@click.option(
    "--run",
    "run_name",
    metavar="NAME|DIR",
    help="A supervised run: its logs and ends, and what changed since it was healthy.",
)
@pass_session
def diagnose_command(session: Session, /, logs: tuple[str, ...], **given: Any) -> int:
    """Say from its logs how a run died, whoever launched it.

    A crash that completed steps followed is over. Evidence counts in this order: how the process
    ended, the scheduler, error files, the kernel's counter, the log's text, silence.
    """
    from fleetcraft.training.diagnosing.classify import diagnose
    from fleetcraft.view.train_diagnosis import diagnosis_shape, render_diagnosis

    error_files = given["error_files"]
    recorded = None if given["run_name"] is None else _recorded(session, given["run_name"])
    if recorded is None and not (logs or error_files):
        raise UsageError("no log was given", hint="fleetcraft train diagnose LOG...")
    _require_files((*logs, *error_files))
    episodes, step, notes = _read(logs, recorded)
    found = diagnose(
        episodes=episodes,
        ends=_ends(given["exit_code"], given["signal_name"]) or (recorded.ends if recorded else ()),
        slurm_state=given["slurm_state"],
        slurm_exit=given["slurm_exit"],
        error_files=error_files or (recorded.error_files if recorded else ()),
        oom_kills=given["oom_kills"],
        step=step,
    )
    changed = _changes(recorded)
    if session.json:
        print_json(diagnosis_shape(found, changed, notes))
    else:
        paint = Paint.for_stream(sys.stdout)
        print_text(render_diagnosis(found, changed, notes, paint=paint, width=columns()))
    return 0


def _require_files(paths: Sequence[str]) -> None:
    for path in paths:
        if not os.path.exists(path):
            raise UsageError(f"no such file: {path}; nothing was diagnosed", path=path)
        if os.path.isdir(path):
            raise UsageError(
                f"{path} is a folder; nothing was diagnosed", hint="name the logs in it", path=path
            )


def _recorded(session: Session, run: str) -> Recorded:
    from fleetcraft.layout import Scratch
    from fleetcraft.layout.runs import RunPaths
    from fleetcraft.training.diagnosing.recorded import read_recorded

    inside = os.path.isdir(run) and os.path.basename(run) != run
    folder = run if inside else Scratch(session.config.root).run_folder(run)
    if not os.path.isdir(folder):
        raise UsageError(
            f"no run at {folder}; nothing was diagnosed", hint="fleetcraft train status", run=run
        )
    try:
        return read_recorded(RunPaths(folder))
    except OSError as error:
        raise DataError(
            f"cannot read the records of {folder}: {error.strerror}; nothing was diagnosed"
        ) from error


def _read(
    logs: tuple[str, ...], recorded: Recorded | None
) -> tuple[Episodes, int | None, list[str]]:
    """The episodes, the last step, and what was left out."""
    from fleetcraft.training.diagnosing.classify import read_logs

    notes = list(recorded.trouble) if recorded else []
    if recorded is not None and not logs:
        notes += [f"{path}: not there" for path in recorded.logs if not os.path.exists(path)]
        logs = tuple(path for path in recorded.logs if os.path.exists(path))
    try:
        episodes, step, trouble = read_logs(logs, fences=recorded.fences if recorded else ())
    except OSError as error:
        raise DataError(
            f"cannot read {error.filename or 'a log'}: {error.strerror}; nothing was diagnosed",
            hint="name only logs that you may read",
        ) from error
    return episodes, step, [*notes, *trouble]


def _ends(exit_code: int | None, signal_name: str | None) -> tuple[NodeEnd, ...]:
    from fleetcraft.training.records import NodeEnd

    if exit_code is None and signal_name is None:
        return ()
    number = None if signal_name is None else _signal(signal_name)
    return (NodeEnd(node="command", nonce="", exit_code=exit_code, signal=number),)


def _signal(text: str) -> int:
    import signal

    name = text.upper().removeprefix("SIG")
    for known in signal.Signals:
        if text == str(known.value) or known.name == f"SIG{name}":
            return known.value
    raise UsageError(f"no such signal: {text}", hint="for example --signal KILL", signal=text)


def _changes(recorded: Recorded | None) -> tuple[Change, ...] | None:
    from fleetcraft.training.diagnosing.changes import changes

    if recorded is None or recorded.epoch is None or recorded.healthy is None:
        return None
    return changes(recorded.healthy, recorded.epoch)
