"""``fleetcraft top``: what every GPU of the fleet does, once, again and again, or on a live screen.

Joins what telemetry shows with Slurm's word where that is asked for. Invariant: no node is asked
for anything, and a Slurm that does not answer takes nothing away from the rest.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fleetcraft.cli.output import columns, print_json, print_text
from fleetcraft.cli.session import Amount, FleetCommand, Session, pass_session
from fleetcraft.errors import FleetError, SchedulerError, UsageError
from fleetcraft.units import LONGEST_WAIT_S, parse_duration_s
from fleetcraft.view.text import Paint

if TYPE_CHECKING:
    from fleetcraft.telemetry.live.state import Held, Picture

_EXAMPLES = """
fleetcraft top
fleetcraft top --once --json
fleetcraft top --slurm --interval 10
"""
_EXITS = """
0 done, also when it is ended by Ctrl-C
1 with --all-smi: no job of yours runs
3 with --all-smi: it is not installed
4 with --all-smi: Slurm did not answer
"""
_SLURM_EVERY_S = 10.0


@click.command(cls=FleetCommand, name="top", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.option("--once", is_flag=True, help="Look once.")
@click.option(
    "--interval",
    type=Amount(0.2, LONGEST_WAIT_S),
    default=2.0,
    metavar="S",
    help="Seconds between looks (2).",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help="Nodes of text (what the terminal has room for, else 100).",
)
@click.option(
    "--forget",
    default="1h",
    metavar="TIME",
    help="A worker or logger without a word for so long counts no more (1h).",
)
@click.option("--slurm", is_flag=True, help="Ask Slurm too, every 10 s, what it has allocated.")
@click.option("--all-smi", is_flag=True, help="Hand the nodes of running jobs to all-smi instead.")
@pass_session
def top_command(
    session: Session,
    *,
    once: bool,
    interval: float,
    limit: int | None,
    forget: str,
    slurm: bool,
    all_smi: bool,
) -> int:
    """Show what every GPU of the fleet does, now.

    Reads the shared files of loggers and workers alone: no ssh, nothing runs on the nodes. A GPU is
    working, resident idle (memory is held), free idle, silent (nothing was written about it for
    three intervals), lost, or unknown. On a terminal the view is redrawn until Ctrl-C; elsewhere
    it is printed every interval, as JSON Lines with --json.
    """
    if all_smi:
        return _hand_over(session)
    watch = _Watch(session, parse_duration_s(forget), limit)
    if once:
        watch.print(_ask_slurm(session.config.root) if slurm else None)
        return 0
    asked = _AskedAgain(session.config.root) if slurm else None
    with contextlib.suppress(KeyboardInterrupt):
        watch.go_on(interval, asked.latest if asked else lambda: None)
    return 0


class _Watch:
    """Looks, and shows what was seen."""

    def __init__(self, session: Session, forget_s: float, limit: int | None) -> None:
        from fleetcraft.telemetry.live.files import LiveTelemetry
        from fleetcraft.telemetry.live.spool import LiveSpool

        config = session.config
        self._json = session.json
        self._root = config.root
        self._folder = config.text("telemetry.dir")
        self._forget_s = forget_s
        self._limit = limit
        self._telemetry = LiveTelemetry(self._folder, forget_s)
        self._spools = [
            LiveSpool("outer", config.spool_dir("outer"), forget_s),
            LiveSpool("inner", config.spool_dir("gpu"), forget_s),
        ]

    def look(self, held: Held | None) -> Picture:
        """Reads what is new."""
        from fleetcraft.telemetry.live.state import compose

        spools = [spool.look() for spool in self._spools]
        return compose(self._telemetry.look(), spools, forget_s=self._forget_s, held=held)

    def print(self, held: Held | None) -> None:
        """One look, as text or one JSON value."""
        from fleetcraft.clock import timestamp

        picture, taken_at = self.look(held), timestamp()
        if self._json:
            from fleetcraft.view.top_shape import top_shape

            print_json(
                top_shape(picture, root=self._root, telemetry_dir=self._folder, taken_at=taken_at)
            )
        else:
            print_text(self._text(picture, taken_at, columns(), None))
        sys.stdout.flush()

    def _text(self, picture: Picture, taken_at: str, width: int | None, height: int | None) -> str:
        from fleetcraft.view.top import Frame, render_top

        frame = Frame(
            paint=Paint.for_stream(sys.stdout), width=width, height=height, limit=self._limit
        )
        return render_top(picture, frame, root=self._root, taken_at=taken_at)

    def go_on(self, interval_s: float, held: Callable[[], Held | None]) -> None:
        """Looks again and again, until it is interrupted."""
        if sys.stdout.isatty() and not self._json:
            self._redraw(interval_s, held)
        while True:
            began_s = time.monotonic()
            self.print(held())
            time.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    def _redraw(self, interval_s: float, held: Callable[[], Held | None]) -> None:
        from fleetcraft.clock import timestamp
        from fleetcraft.view.top import show_live

        def draw(width: int, height: int) -> str:
            return self._text(self.look(held()), timestamp(), width, height)

        # So that the terminal's first screen is given back before the process ends.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        show_live(draw, interval_s)


# ------------------------------------------------------------------------------ Slurm's word


def _running_places(root: str) -> tuple[Any, list[Any]]:
    """Polls, and this user's jobs that have nodes.

    Raises:
        SchedulerError: Slurm did not answer.
    """
    from fleetcraft.errors import NoAnswerError
    from fleetcraft.fleet.snapshot.jobs_and_nodes import view_jobs
    from fleetcraft.slurm.polls import Polls
    from fleetcraft.slurm.queue import my_jobs

    polls = Polls()
    views, reason = view_jobs(my_jobs(polls), root)
    if reason:
        raise NoAnswerError("scontrol", reason)
    return polls, [view for view in views if view.nodes]


def _ask_slurm(root: str) -> Held:
    """What Slurm has allocated to this user's jobs; without an answer, why."""
    from fleetcraft.fleet.snapshot.gpu_shares import Placed, share_gpus
    from fleetcraft.slurm.nodes import node_states
    from fleetcraft.telemetry.live.state import Held

    try:
        polls, views = _running_places(root)
        placed = [
            Placed(
                job_id=view.job.job_id,
                nodes=view.nodes,
                tres_per_node=view.job.tres_per_node or "",
            )
            for view in views
        ]
        shares, failures = share_gpus(placed, node_states(polls).nodes if placed else {}, polls)
    except SchedulerError as error:
        return Held(problem=error.message)
    except OSError as error:
        return Held(problem=f"Slurm was not asked: {error.strerror or type(error).__name__}")
    counts = {(share.node, share.job_id): share.count for share in shares}
    return Held(counts=counts, problem="; ".join(failures))


class _AskedAgain:
    """Asks Slurm in a thread of its own, so that a controller that hangs stops no view."""

    def __init__(self, root: str) -> None:
        from fleetcraft.telemetry.live.state import Held

        self._root = root
        self._held = Held(problem="it has not answered yet")
        self._at_s: float | None = None
        threading.Thread(target=self._go_on, daemon=True).start()

    def _go_on(self) -> None:
        while True:
            began_s = time.monotonic()
            self._held, self._at_s = _ask_slurm(self._root), began_s
            time.sleep(max(1.0, began_s + _SLURM_EVERY_S - time.monotonic()))

    def latest(self) -> Held:
        """The last answer."""
        from msgspec.structs import replace

        age_s = None if self._at_s is None else time.monotonic() - self._at_s
        return replace(self._held, age_s=age_s)


# -------------------------------------------------------------------------------- all-smi


def _hand_over(session: Session) -> int:
    from fleetcraft.telemetry.live import all_smi

    if session.json:
        raise UsageError("--all-smi has a screen and no JSON", hint="fleetcraft top --once --json")
    program = all_smi.find()
    _, views = _running_places(session.config.root)
    running = [view for view in views if view.job.state == "RUNNING"]
    nodes = list(dict.fromkeys(node for view in running for node in view.nodes))
    if not nodes:
        raise FleetError(
            "no job of yours runs, so there are no nodes; all-smi was not started",
            hint="fleetcraft snapshot shows the jobs that wait",
        )
    return all_smi.show(program, nodes)
