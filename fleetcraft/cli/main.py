"""The entry point: finds the verb, loads only its module, and turns errors into exit codes.

What a person did wrong never ends in a traceback; a defect of fleetcraft does, and says so.
Invariant: importing this module loads click and nothing else that is not tiny.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import click

from fleetcraft import __version__
from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.output import STDOUT, forget, show_error
from fleetcraft.cli.session import Session, shared_options, write_sections
from fleetcraft.errors import ConfigError, FleetError, SpoolError, UsageError

VERBS = {
    "init": ("init", "Make the scratch tree and its spools."),
    "enqueue": ("enqueue", "Publish one task, or many from a file."),
    "launch": ("launch", "Submit a fleet: one Slurm job with a worker on each of its nodes."),
    "run": ("run", "Run the spool's tasks on this machine, without Slurm."),
    "worker": ("worker", "Run tasks as the worker of one node."),
    "status": ("status", "Show what waits, runs and failed, and who works."),
    "show": ("show", "Show one task with its attempts."),
    "logs": ("logs", "Print the log of a task."),
    "retry": ("retry", "Put failed tasks back."),
    "cancel": ("cancel", "End tasks before or while they run."),
    "drain": ("markers", "Ask every worker to finish what it runs and leave."),
    "stop": ("markers", "Ask every worker to interrupt what it runs and leave."),
    "resume": ("markers", "Remove DRAIN and STOP."),
    "recover": ("recover", "Put back the tasks of workers that are gone."),
    "promote": ("promote", "Move waiting tasks that are ready."),
    "check": ("check", "Examine the spool, and repair it."),
    "bridge": ("bridge", "Publish packs for GPUs that nobody uses."),
    "grid": ("grid", "Bind lane last to a frozen list of tasks."),
    "barrier": ("barrier", "Say that something is ready, and verify that it is."),
    "renew": ("renew", "Submit a follow-on fleet where queued work justifies it."),
    "guard": ("guard", "Say whether this login node has room for a launch."),
    "snapshot": ("snapshot", "Show jobs, nodes, GPUs, limits, balance and queue."),
    "telemetry": ("telemetry", "Log GPUs, and read, verify, plot and export what was logged."),
    "top": ("top", "Show what every GPU of the fleet does, now."),
    "mfu": ("mfu", "Estimate model FLOPs utilization from model, device and time."),
    "calibrate": ("calibrate", "Measure whole cycles, choose a batch, freeze it, check it."),
    "train": ("train", "Supervise a training run, say how it stands, and how one died."),
    "rollouts": ("rollouts", "Look at a trajectory queue, prove it, and steer it."),
    "evidence": ("evidence", "Prove what a result rests on: manifests, archives, grids, gates."),
    "report": ("report", "Write one HTML page about what a fleet did."),
    "caches": ("caches", "Show, check and set where models and compilers keep their files."),
    "stream": ("stream", "Send summaries and progress to Weights & Biases."),
    "doctor": ("doctor", "Check this machine and this project, and say what to do."),
    "video": ("video", "Say what a video file holds, and check that it is whole."),
    "config": ("config", "Show the settings and where they come from."),
}
"""Verb to its module in `fleetcraft.cli` and the first line of its help."""

_BUG_EXIT_CODE = 70  # EX_SOFTWARE of sysexits(3): no outcome of a command is meant by it


class _Fleet(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_EXAMPLES, **{"Exit codes": _EXITS})


_EXAMPLES = """
fleetcraft --root /scratch/me/fleet init
fleetcraft --root /scratch/me/fleet enqueue -n hello 'echo hello'
fleetcraft --root /scratch/me/fleet run --workers 2
fleetcraft --root /scratch/me/fleet status
"""
_EXITS = """
0 done; 1 done and the answer is no; 2 usage; 3 configuration; 4 Slurm did not answer or refused;
5 the spool refuses; 6 device; 7 bad data; 75 try again later; 130 and 143 signals
"""


def _print_version(context: click.Context, option: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    if context.ensure_object(Session).json:
        click.echo(f'{{"schema":"fleetcraft.version/1","version":"{__version__}"}}')
    else:
        click.echo(f"fleetcraft {__version__}")
    context.exit()


cli = _Fleet(
    "fleetcraft",
    table=VERBS,
    package="fleetcraft.cli",
    path="fleetcraft",
    help="Keep the GPUs of an allocation busy: a spool of tasks, drained by workers.",
    params=[
        *shared_options(spool=True),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Print the version.",
        ),
    ],
    add_help_option=False,
    context_settings={"max_content_width": 100},
)


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        args: The words after the program's name; those of this process if None.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if args is None else args)
    session = Session(json=_asks_for_json(words))
    _open_closed_streams()
    _make_streams_tolerant()
    try:
        code = _call(words, session)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        forget(sys.stdout)
        return 141  # 128 and SIGPIPE, as a shell would say of a program that it ended
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as error:
        return _fail(error, session)
    finally:
        if args is None:
            # The process ends here; without this the collector walks everything once more on the
            # way out, which costs an enqueue a tenth of its time.
            gc.freeze()


def _call(words: list[str], session: Session) -> int:
    if "_FLEETCRAFT_COMPLETE" in os.environ:  # a shell asks what could come next
        cli.main(words, prog_name="fleetcraft", obj=session)
    try:
        with cli.make_context("fleetcraft", words, obj=session) as context:
            code: Any = cli.invoke(context)
    except click.exceptions.Exit as stopped:
        return stopped.exit_code
    return int(code or 0)


def _asks_for_json(words: list[str]) -> bool:
    """Whether ``--json`` is among the options, known before they are parsed: parsing may fail."""
    end = words.index("--") if "--" in words else len(words)
    return "--json" in words[:end]


def _open_closed_streams() -> None:
    # Who closes them wants no output; a descriptor of that number could become any other file.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _make_streams_tolerant() -> None:
    # A name or command may hold bytes that are no text; printing them must not fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _fail(error: Exception, session: Session) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not session.json:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    shown = _as_ours(error, session)
    if shown is None:
        shown = FleetError(
            f"fleetcraft has a defect: {type(error).__name__}: {error}",
            hint="report this with the traceback; what was written before it stands",
        )
        shown.exit_code = _BUG_EXIT_CODE
        import traceback

        if session.json:
            shown.facts["traceback"] = traceback.format_exc()
        else:
            traceback.print_exc()
    shown.hint = _reaching(shown.hint, session)
    with contextlib.suppress(OSError):  # nobody reads stderr; the exit code still tells
        show_error(shown, as_json=session.json)
    for stream in (sys.stdout, sys.stderr):
        # Else Python tries once more on its way out, says so, and leaves with 120.
        if not _takes_all(stream):
            forget(stream)
    return shown.exit_code


def _takes_all(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _reaching(hint: str, session: Session) -> str:
    """A hint that is a command, with the options that lead it to the same spool."""
    if not hint.startswith("fleetcraft ") or "--help" in hint or hint.startswith("fleetcraft --"):
        return hint
    return session.reach() + hint.removeprefix("fleetcraft")


def _as_ours(error: Exception, session: Session) -> FleetError | None:
    if isinstance(error, FleetError):
        return error
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        hint = "name a command, such as enqueue, run or status; fleetcraft --help lists them"
        return UsageError("no command was given", hint=hint)
    if isinstance(error, click.ClickException):
        return _usage_error(error)
    if isinstance(error, OSError):
        return _system_error(error)
    if isinstance(error, MemoryError):
        return SpoolError("out of memory; what was reported before this stands")
    return None


def _usage_error(error: click.ClickException) -> UsageError:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "fleetcraft"
    return UsageError(message[:1].lower() + message[1:], hint=f"{path} --help shows how it is used")


def _system_error(error: OSError) -> FleetError:
    if error.filename == STDOUT or (not error.filename and not _takes_all(sys.stdout)):
        return SpoolError(
            f"the answer could not be written to stdout: {error.strerror}; "
            "what the command did stands",
            hint="fleetcraft status shows what is there; give stdout a place with room",
            errno=error.errno,
        )
    if not error.filename and _folder_is_gone():
        return ConfigError(
            "the folder in which this was started is gone; nothing relative to it can be found",
            hint="cd to a folder that is there, and call again",
        )
    what = f"cannot use {error.filename}" if error.filename else "the system refused"
    return SpoolError(
        f"{what}: {error.strerror or type(error).__name__}",
        hint="check permissions, free space, quota and the mount",
        errno=error.errno,
    )


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
