"""``fleetcraft worker``: the worker of one node; what it is told comes from options and Slurm.

Invariant: nothing here asks Slurm; job, step and rank are what the environment says.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from fleetcraft.caches.scope import settings_from
from fleetcraft.cli.grid import bind_as_configured
from fleetcraft.cli.output import note, print_json, print_text
from fleetcraft.cli.session import FleetCommand, Session, pass_session
from fleetcraft.config import Config
from fleetcraft.errors import ConfigError
from fleetcraft.identity import this_job_run
from fleetcraft.spool.control import refuse_markers
from fleetcraft.spool.tree import SpoolTree
from fleetcraft.view.run import event_line
from fleetcraft.view.text import Paint, plural
from fleetcraft.worker.settings import WorkerReport, WorkerSettings, depth_every_s

_EXAMPLES = """
fleetcraft worker
fleetcraft worker --idle 10m --walltime 04:00:00
fleetcraft worker --spool gpu --slots gpu --idle 60
"""
_EXITS = """
0 it left; 5 the spool refuses, such as while DRAIN or STOP stands; 6 no GPU is there, or one was
lost; 8 this node fails task after task; 9 the spool cannot be written; 130 and 143 after a signal
"""


@click.command(cls=FleetCommand, name="worker", examples=_EXAMPLES, exits=_EXITS)
@click.option("--slots", metavar="N|gpu", help="Tasks that it runs at a time (1), or gpu.")
@click.option("--idle", metavar="S", help="It leaves after so long without work (30m).")
@click.option("--rank", type=click.IntRange(0), help="This node's index (FLEET_RANK).")
@click.option("--ranks", type=click.IntRange(1), help="How many nodes there are (FLEET_RANKS).")
@click.option("--walltime", metavar="HH:MM:SS", help="What is left of the allocation.")
@click.option("--until-marker", metavar="FILE", help="It leaves only after this file exists.")
@click.option("--after-marker", metavar="FILE", help="It claims nothing before this is verified.")
@click.option("--orders", is_flag=True, hidden=True, help="Obey its launcher's words on stdin.")
@click.option("--heartbeat", metavar="S", help="Seconds between heartbeats.")
@click.option("--grace", metavar="S", help="Seconds between TERM and KILL when a task is stopped.")
@pass_session
def worker_command(session: Session, /, **given: Any) -> int:
    """Run tasks as the worker of one node.

    Inside a Slurm step, job, step and rank are taken from its environment. Times are seconds or
    durations such as 90s and 00:30:00.
    """
    for option, setting in (
        ("slots", "worker.slots"),
        ("idle", "worker.idle_s"),
        ("heartbeat", "worker.heartbeat_s"),
        ("grace", "worker.grace_s"),
    ):
        worker_flag(session, setting, given[option])
    tree = session.tree()
    refuse_markers(tree)
    bind_as_configured(session, tree)
    from fleetcraft.worker.loop import run_worker

    settings = _settings(session, tree.paths.root, given)
    report = run_worker(settings, _teller(session))
    if settings.orders:
        _turn_off_the_light(tree, settings.run.job)
    _say(session, report)
    return int(report.exit_code)


def _turn_off_the_light(tree: SpoolTree, job_id: str) -> None:
    """Gives the job back, should this have been the last worker of one that lost its launcher."""
    launcher = os.environ.get("FLEET_LAUNCHER_NODE", "")
    if not job_id or not launcher:
        return
    from fleetcraft.fleet.allocation.bereft import give_back_job
    from fleetcraft.slurm.polls import Polls

    if said := give_back_job(tree, job_id, launcher, Polls()):
        note(said)


def worker_flag(session: Session, setting: str, text: str | None) -> None:
    """Hands an option's text to the settings, which read and check it."""
    if text is not None:
        session.flags[setting] = text


def _settings(session: Session, spool_dir: str, given: dict[str, Any]) -> WorkerSettings:
    from fleetcraft.units import parse_duration_s

    config = session.config
    rank, ranks = _place(given["rank"], given["ranks"])
    marker, barrier = given["until_marker"], given["after_marker"]
    return WorkerSettings(
        spool_dir=spool_dir,
        root=config.root,
        slots=config.text("worker.slots"),
        run=this_job_run(os.environ),
        rank=rank,
        ranks=ranks,
        idle_s=config.seconds("worker.idle_s"),
        heartbeat_s=config.seconds("worker.heartbeat_s"),
        grace_s=config.seconds("worker.grace_s"),
        walltime_s=parse_duration_s(given["walltime"]) if given["walltime"] else None,
        drain_margin_s=config.seconds_or_none("worker.drain_margin_s"),
        until_marker=os.path.abspath(marker) if marker else "",
        after_marker=os.path.abspath(barrier) if barrier else "",
        orders=given["orders"],
        node_failures=config.count("worker.node_failures"),
        node_failure_s=config.seconds("worker.node_failure_s"),
        telemetry_dir=config.text("telemetry.dir"),
        telemetry_interval_s=config.seconds("telemetry.interval_s"),
        depth_every_s=depth_every_s(config.seconds("telemetry.interval_s")),
        caches=settings_from(config),
        **batch_settings(config),
    )


def batch_settings(config: Config) -> dict[str, Any]:
    """What a worker is told of the batch table."""
    return {
        "batch_table": config.text("batch.table"),
        "batch_require": config.flag("batch.require"),
        "batch_python": config.text("batch.python"),
    }


def _place(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """Rank and ranks: the options, the launcher's variables, or those of one Slurm step."""
    in_step = "SLURM_STEP_ID" in os.environ
    if rank is None:
        rank = _variable("FLEET_RANK", "SLURM_PROCID" if in_step else "", least=0)
    if ranks is None:
        ranks = _variable("FLEET_RANKS", "SLURM_NTASKS" if in_step else "", least=1)
    return rank, max(ranks, rank + 1)


def _variable(name: str, fallback: str, *, least: int) -> int:
    for variable in (name, fallback):
        text = os.environ.get(variable, "")
        if not text:
            continue
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < least:
            raise ConfigError(
                f"{variable} is {text!r}, expected a whole number from {least}",
                hint=f"the launcher sets {name}; unset it, or give --rank and --ranks",
                variable=variable,
            )
        return int(text)
    return least


def _teller(session: Session) -> Callable[[Mapping[str, Any]], None]:
    if session.json:
        return lambda event: print_json({"schema": "fleetcraft.worker_event/1", **event})
    paint = Paint.for_stream(sys.stderr)

    def tell(event: Mapping[str, Any]) -> None:
        line = event_line(event, paint)
        if line:
            note(line)

    return tell


def _say(session: Session, report: WorkerReport) -> None:
    if session.json:
        print_json(
            {
                "schema": "fleetcraft.worker/1",
                "exit_code": int(report.exit_code),
                "reason": report.reason,
                "outcomes": report.outcomes,
            }
        )
        return
    attempts = sum(report.outcomes.values())
    kinds = ", ".join(f"{count} {outcome}" for outcome, count in sorted(report.outcomes.items()))
    print_text(f"left: {report.reason or 'done'}; {plural(attempts, 'attempt')}: {kinds or 'none'}")
