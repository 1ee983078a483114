"""``fleetcraft telemetry log``: this node's logger, in the foreground until it is told to end.

Invariant: nothing here outlives the logger, and any end that was asked for is exit 0.
"""

from __future__ import annotations

import click
import msgspec

from fleetcraft.cli.output import note, print_json
from fleetcraft.cli.session import FleetCommand, Session, pass_session

_EXAMPLES = """
fleetcraft telemetry log
fleetcraft telemetry log /scratch/me/fleet/telemetry 30
fleetcraft telemetry log telemetry 1s --samples 60
"""
_EXITS = """
0 it was told to end, by TERM, INT or HUP, or took the samples it was asked for
5 somebody else can write the folder, or it cannot be made
75 another logger writes for this node and job
"""


@click.command(cls=FleetCommand, name="log", spool=False, examples=_EXAMPLES, exits=_EXITS)
@click.argument("folder", metavar="[DIR]", required=False)
@click.argument("interval", metavar="[INTERVAL]", required=False)
@click.option("--samples", type=click.IntRange(1), metavar="N", help="End after so many samples.")
@click.option("--all-gpus", is_flag=True, help="Those that CUDA_VISIBLE_DEVICES leaves out too.")
@pass_session
def log_command(
    session: Session, folder: str | None, interval: str | None, samples: int | None, all_gpus: bool
) -> int:
    """Log this node's GPUs and host until it is stopped.

    Writes one CSV file for this node and job into DIR (root/telemetry), a sample every INTERVAL,
    seconds or a duration such as 0.5, 30 or 1m (30), with a sidecar that says how it ended.
    Without GPUs it logs the host. TERM and Ctrl-C end it in order, within a second also while
    the driver does not answer. A second logger for the same node and job is refused.
    """
    from fleetcraft.telemetry.logger.loop import run_logger
    from fleetcraft.telemetry.logger.settings import (
        Ended,
        LoggerSettings,
        Started,
        ended_line,
        started_line,
    )

    def on_start(started: Started) -> None:
        _say(session, "started", started, started_line(started))

    def on_end(ended: Ended) -> None:
        _say(session, "ended", ended, ended_line(ended))

    settings = LoggerSettings.here(
        folder or session.config.telemetry_dir,
        _interval_s(session, interval),
        samples=samples,
        all_gpus=all_gpus,
    )
    return run_logger(settings, on_start, on_end)


def _say(session: Session, what: str, facts: msgspec.Struct, line: str) -> None:
    if session.json:
        told = msgspec.structs.asdict(facts)
        print_json({"schema": "fleetcraft.telemetry_log/1", "event": what, **told})
    else:
        from fleetcraft.view.text import printable

        note(printable(line))


def _interval_s(session: Session, given: str | None) -> float:
    """Seconds between samples: what was typed, else the setting.

    Raises:
        UsageError: What was typed is no duration.
    """
    from fleetcraft.config import BY_NAME, read_text
    from fleetcraft.errors import ConfigError, UsageError

    setting = BY_NAME["telemetry.interval_s"]
    if given is None:
        # A setting of 0 keeps workers from starting loggers; whoever calls this wants one.
        return session.config.seconds(setting.name) or float(setting.default or 0)
    try:
        return float(read_text(setting, given, "INTERVAL") or 0)
    except ConfigError as error:
        raise UsageError(error.message, hint=error.hint, **error.facts) from error
