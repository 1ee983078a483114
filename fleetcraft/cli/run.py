"""``fleetcraft run``: the spool drained on this machine by several workers, without Slurm.

Invariant: the exit code is the report's: 0 only when nothing failed and nobody was stopped early.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from fleetcraft.caches.scope import settings_from
from fleetcraft.cli.grid import bind_as_configured
from fleetcraft.cli.output import print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.cli.worker import batch_settings, worker_flag
from fleetcraft.spool import views
from fleetcraft.spool.control import refuse_markers
from fleetcraft.spool.dependencies import Blocked
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.live import Progress, progress_for
from fleetcraft.view.run import Tally, render_run, run_shape
from fleetcraft.view.text import Paint
from fleetcraft.worker.settings import LocalRunReport, WorkerSettings, depth_every_s

_SHOWN = 20
_EXAMPLES = """
fleetcraft run --workers 2
fleetcraft run --workers 1 --slots 4 --json
fleetcraft run --spool gpu --slots gpu
"""
_EXITS = """
0 all that could run is done; 1 a task failed for good, or workers were stopped early;
5 the spool refuses, such as while DRAIN or STOP stands; 130 and 143 after a signal
"""


@click.command(cls=FleetCommand, name="run", examples=_EXAMPLES, exits=_EXITS)
@click.option("--workers", type=click.IntRange(1), default=1, help="Workers to start (1).")
@click.option("--slots", metavar="N|gpu", help="Tasks that each runs at a time (1), or gpu.")
@click.option("--heartbeat", metavar="S", help="Seconds between heartbeats.")
@click.option("--grace", metavar="S", help="Seconds between TERM and KILL when a task is stopped.")
@pass_session
def run_command(
    session: Session, workers: int, slots: str | None, heartbeat: str | None, grace: str | None
) -> int:
    """Run the spool's tasks on this machine, without Slurm.

    Ends when nothing is claimable any more. The workers die with this command.
    """
    worker_flag(session, "worker.slots", slots)
    worker_flag(session, "worker.heartbeat_s", heartbeat)
    worker_flag(session, "worker.grace_s", grace)
    tree = session.tree()
    refuse_markers(tree)
    bind_as_configured(session, tree)
    report, tally = _run(tree, _settings(session, tree), workers, watch=_watch(session))
    if session.json:
        print_json(run_shape(report))
    else:
        _summarize(session, tree, report, tally)
    return report.exit_code


def _settings(session: Session, tree: SpoolTree) -> WorkerSettings:
    config = session.config
    return WorkerSettings(
        spool_dir=tree.paths.root,
        root=config.root,
        slots=config.text("worker.slots"),
        heartbeat_s=config.seconds("worker.heartbeat_s"),
        grace_s=config.seconds("worker.grace_s"),
        node_failures=config.count("worker.node_failures"),
        node_failure_s=config.seconds("worker.node_failure_s"),
        telemetry_dir=config.text("telemetry.dir"),
        telemetry_interval_s=config.seconds("telemetry.interval_s"),
        depth_every_s=depth_every_s(config.seconds("telemetry.interval_s")),
        caches=settings_from(config),
        **batch_settings(config),
    )


def _watch(session: Session) -> bool:
    """Whether somebody reads progress: always, except a program that asked for JSON."""
    return sys.stderr.isatty() or not session.json


def _run(
    tree: SpoolTree, settings: WorkerSettings, workers: int, *, watch: bool
) -> tuple[LocalRunReport, Tally]:
    from fleetcraft.worker.local_fleet import run_local

    now = views.counts(tree)
    tally = Tally(total=now["waiting"] + now["pending"])
    progress: Progress | None = None

    def on_event(event: Mapping[str, Any]) -> None:
        nonlocal progress
        tally.take(event)
        if watch:
            # Not before the first event: a live bar has a thread, and workers are forked by then.
            progress = progress or progress_for(sys.stderr.isatty())
            progress.show(event, tally)

    try:
        return run_local(settings, workers, on_event, forks=True), tally
    finally:
        if progress is not None:
            progress.close()


def _summarize(session: Session, tree: SpoolTree, report: LocalRunReport, tally: Tally) -> None:
    blocked: list[Blocked] = []
    more = 0
    if report.left.get("waiting"):
        seen = views.status(tree, limit=_SHOWN)
        blocked, more = seen.blocked, seen.blocked_left_out
    print_text(
        render_run(
            report,
            tally.failures,
            blocked,
            more,
            command=session.reach(),
            limit=_SHOWN,
            paint=Paint.for_stream(sys.stdout),
        )
    )
