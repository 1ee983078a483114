"""``fleetcraft stream wandb``: sends training runs and telemetry windows to Weights & Biases.

Invariant: it only reads what it follows, and a call that is ended at any moment costs no row.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click

from fleetcraft.cli.lazy import LazyGroup
from fleetcraft.cli.output import columns, note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Seconds, Session, pass_session, write_sections
from fleetcraft.errors import ConfigError, UsageError
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.streaming.service import Service, Told
    from fleetcraft.streaming.stream import Target

COMMANDS = {"wandb": ("stream", "Send runs and telemetry to Weights & Biases, or to its files.")}
_GROUP_EXAMPLES = """
fleetcraft stream wandb --offline --once
fleetcraft stream wandb distill --project video --summaries
"""
_EXAMPLES = """
fleetcraft stream wandb --offline --once
fleetcraft stream wandb distill --project video
fleetcraft stream wandb --summaries --every 60
fleetcraft stream wandb distill --offline --once --json
"""
_EXITS = """
0 sent; also when Ctrl-C or TERM ends it while it follows
2 no such run, or it was begun in the other mode; 3 wandb is not installed, or no login
5 its place cannot be written; 7 records of the stream are damaged
75 W&B did not take it, or somebody else sends it; nothing is lost, call again
130 and 143 when a signal cut --once short; the next call goes on there
"""


class _StreamGroup(LazyGroup):
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, Examples=_GROUP_EXAMPLES)


stream_command = _StreamGroup(
    "stream",
    help="Send summaries and progress to Weights & Biases.\n\n"
    "It needs the extra: pip install 'fleetcraft[wandb]'. Nothing of it is loaded elsewhere.",
    table=COMMANDS,
    package="fleetcraft.cli",
    path="fleetcraft stream",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@click.command(cls=FleetCommand, name="wandb", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--project", default="fleetcraft", metavar="P", help="W&B's project (fleetcraft).")
@click.option("--entity", default="", metavar="E", help="The user or team there (your default).")
@click.option("--offline", is_flag=True, help="Write W&B's files, to be uploaded later.")
@click.option("--once", is_flag=True, help="Send what is there by now, and leave.")
@click.option("--summaries", is_flag=True, help="Send windows of the fleet's telemetry too.")
@click.option(
    "--window", type=Seconds(), default=300.0, metavar="TIME", help="Length of a window (300)."
)
@click.option("--every", type=Seconds(), default=30.0, metavar="TIME", help="Between looks (30).")
@click.option("--take-over", is_flag=True, help="Follow a silent sender of another node.")
@click.option("--limit", type=click.IntRange(0), default=50, help="Streams of text at most (50).")
@pass_session
def wandb_command(
    session: Session,
    *,
    runs: tuple[str, ...],
    project: str,
    entity: str,
    offline: bool,
    once: bool,
    summaries: bool,
    window: float,
    every: float,
    take_over: bool,
    limit: int,
) -> int:
    """Send runs and telemetry to Weights & Biases, or to its files.

    RUN is the name of a run or its folder; without it, every run of the scratch tree, also those
    that begin later. Sent are step, loss, tokens/s, queues, metrics, states, rungs and crashes; no
    log, command line, path or environment. Where it was is kept in the scratch tree, so a call that
    was killed goes on with the very next row. With runs named it leaves when all of them are over.
    WANDB_MODE=offline is the same as --offline; a stream stays in the mode in which it was begun.
    """
    from fleetcraft.streaming.sending import require_wandb
    from fleetcraft.streaming.service import Fleet, Service, Wanted

    target = _target(project, entity, offline=offline)
    _require_times(window, every)
    root = session.config.root
    require_wandb()
    fleet = None
    if summaries:
        spools = {
            "outer": session.config.spool_dir("outer"),
            "inner": session.config.spool_dir("gpu"),
        }
        fleet = Fleet(folder=session.config.telemetry_dir, spools=spools, window_s=window)
    wanted = Wanted(root=root, target=target, runs=runs, fleet=fleet)
    with Service(wanted, by_age=take_over) as service:
        if once:
            told = _send_once(service)
            _show(session, told, target, limit)
        else:
            _follow(session, service, target, every, limit)
    return 0


def _target(project: str, entity: str, *, offline: bool) -> Target:
    import os

    from fleetcraft.evidence.records import NAME
    from fleetcraft.streaming.stream import Target

    for option, name in (("--project", project), ("--entity", entity)):
        if (name or option == "--project") and not NAME.fullmatch(name):
            raise UsageError(
                f"not a usable {option}: {name!r}; nothing was sent",
                hint="letters, digits, '.', '_' and '-', at most 64, the first a letter or digit",
            )
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("disabled", "dryrun") or os.environ.get("WANDB_DISABLED"):
        raise ConfigError(
            "WANDB_MODE or WANDB_DISABLED turns W&B off; nothing was sent",
            hint="unset it, or write files: WANDB_MODE=offline",
        )
    return Target(project=project, entity=entity, offline=offline or mode == "offline")


def _require_times(window: float, every: float) -> None:
    if not 1.0 <= window <= 86400.0:
        raise UsageError(f"not a usable window: {window:g} s", hint="--window 300")
    if not 1.0 <= every <= 86400.0:
        raise UsageError(f"not a usable pause: {every:g} s", hint="--every 30")


def _send_once(service: Service) -> Told:
    from fleetcraft.view.stream import told_shortly

    def draw(told: Told) -> None:
        sys.stderr.write(f"\r\x1b[K{told_shortly(told)}")
        sys.stderr.flush()

    on_terminal = sys.stderr.isatty()
    with _signals(_leave, signal.SIGTERM):
        try:
            return service.send_all(draw if on_terminal else None)
        finally:
            if on_terminal:
                sys.stderr.write("\r\x1b[K")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # so that what is open is closed on the way out


@contextlib.contextmanager
def _signals(
    handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, theirs in before.items():
            signal.signal(number, theirs)


def _follow(session: Session, service: Service, target: Target, every: float, limit: int) -> None:
    from fleetcraft.view.stream import told_shortly

    stop = threading.Event()
    before = ""

    def tell(told: Told) -> None:
        nonlocal before
        if session.json:
            _show(session, told, target, limit)
            sys.stdout.flush()
        elif (said := told.trouble or told_shortly(told)) != before:
            before = said
            note(said)

    with _signals(lambda *_: stop.set(), signal.SIGTERM, signal.SIGINT):
        told = service.follow(every, stop, tell)
    if not session.json:
        _show(session, told, target, limit)


def _show(session: Session, told: Told, target: Target, limit: int) -> None:
    from fleetcraft.view.stream import render_stream, stream_shape

    if session.json:
        print_json(stream_shape(told, target))
        return
    paint = Paint.for_stream(sys.stdout)
    print_text(render_stream(told, target, paint=paint, limit=limit, width=columns()))
